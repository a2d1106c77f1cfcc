"""MobileNetV1 (arXiv:1704.04861) without its classifier, as the Object Detection API builds it."""

import keras

from detloom.schemas.network_config import FeatureExtractor


def build_mobilenet_v1(
    config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    """Feature maps of the levels 2 to 5, which have strides of 2**level, of a normalized picture."""
    raise NotImplementedError
