"""Coarser levels by stride-2 convolutions (plain SSD, arXiv:1512.02325), as the Object Detection API builds them."""

import keras

from detloom.schemas.network_config import FeatureExtractor


def build_extra_layers(
    config: FeatureExtractor, features: dict[int, keras.KerasTensor], *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    """Pyramid by level."""
    raise NotImplementedError
