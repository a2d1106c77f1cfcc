"""ResNet-50, -101 and -152 (arXiv:1512.03385) without classifier, as the Object Detection API builds them."""

import keras

from detloom.schemas.network_config import FeatureExtractor


def build_resnet_v1(
    config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    """Feature maps of the levels 2 to 5, which have strides of 2**level, of a normalized picture."""
    raise NotImplementedError
