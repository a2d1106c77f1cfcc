"""A backbone of three convolutions for tests in which the network does not matter."""

import contextlib
from collections.abc import Iterator
from typing import Any

DEPTH_MULTIPLIER = 0.125


@contextlib.contextmanager
def three_layer_backbone() -> Iterator[None]:
    """Replace MobileNetV2 by three convolutions where the depth multiplier is `DEPTH_MULTIPLIER`.

    The layers have names of MobileNetV2 layers, so that checkpoint keys are known, and strides of 8, 16 and 32.
    """
    from detloom.trainer_module.detectors.one_stage import network as ssd
    from detloom.trainer_module.layers.conv_layers import ConvLayers

    def build(config: Any, image: Any, *, freeze_batchnorm: bool) -> dict[int, Any]:
        if config.depth_multiplier != DEPTH_MULTIPLIER:
            return build_mobilenet_v2(config, image, freeze_batchnorm=freeze_batchnorm)
        layers, features, levels = ConvLayers(config.conv_hyperparams, freeze_batchnorm), image, {}
        for level, size, name, norm in (
            (3, 8, "Conv1", "bn_Conv1"),
            (4, 2, "block_1_expand", "block_1_expand_BN"),
            (5, 2, "Conv_1", "Conv_1_bn"),
        ):
            conv = layers.backbone_conv(32, name, kernel_size=size, strides=size)
            features = levels[level] = layers.activate(layers.normalize(conv(features), norm), f"{name}_relu")
        return levels

    build_mobilenet_v2, ssd.build_mobilenet_v2 = ssd.build_mobilenet_v2, build
    yield
    ssd.build_mobilenet_v2 = build_mobilenet_v2
