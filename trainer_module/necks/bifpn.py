"""Bidirectional feature pyramid (arXiv:1911.09070, section 3), as the Object Detection API builds it."""

import keras

from detloom.schemas.network_config import FeatureExtractor


def build_bifpn(
    config: FeatureExtractor, features: dict[int, keras.KerasTensor], *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    """Pyramid by level."""
    raise NotImplementedError
