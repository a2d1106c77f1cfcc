"""Heads of plain SSD (arXiv:1512.02325): each level has convolutions of its own."""

import keras

from detloom.schemas.model_config import Ssd


def build_level_heads(
    config: Ssd, pyramid: dict[int, keras.KerasTensor], num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Offsets and class logits of each level."""
    raise NotImplementedError
