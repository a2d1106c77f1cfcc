from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.network import FeatureExtractor, L2Regularizer
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.layers.backbones.efficientnet import build_efficientnet, efficientnet_blocks


def extractor_of(size: int, **neck: object) -> FeatureExtractor:
    config = find_preset(f"efficientdet_d{size}").config.model.feature_extractor
    backbone = f"efficientnet-b{size}"
    return replace(config, backbone=backbone, neck=replace(config.neck, **neck))


def lite_extractor(number: int) -> FeatureExtractor:
    return find_preset(f"efficientdet_lite{number}").config.model.feature_extractor


def build(config: FeatureExtractor, image_hw: tuple[int, int] = (64, 96), *, freeze_batchnorm: bool = False):
    image = keras.Input((*image_hw, 3))
    return keras.Model(image, build_efficientnet(config, image, freeze_batchnorm=freeze_batchnorm))


@pytest.fixture(scope="module")
def b0() -> keras.Model:
    return build(extractor_of(0))


def test_levels_have_their_strides_and_the_channels_of_the_paper(b0):
    shapes = {level: feature.shape[1:] for level, feature in b0.output.items()}
    assert shapes == {2: (16, 24, 24), 3: (8, 12, 40), 4: (4, 6, 112), 5: (2, 3, 320)}


@pytest.mark.parametrize(
    ("last", "names"),
    [
        (False, {2: "block2b", 3: "block3b", 4: "block5c", 5: "block7a"}),
        (True, {2: "block2c", 3: "block3c", 4: "block5d", 5: "block7b"}),
    ],
)
def test_features_of_larger_networks_come_after_the_last_blocks_only_if_configured(last, names):
    blocks = efficientnet_blocks(extractor_of(1, features_of_last_blocks=last))
    assert {block.level: block.name for block in blocks if block.level} == names
    assert blocks[-1].name == names[5]


@pytest.mark.parametrize(
    ("extractor", "num_blocks", "channels", "last_block"),
    [
        # 3.1 times 1, 2, 2, 3, 3, 4, 1, rounded up
        (extractor_of(7, features_of_last_blocks=True), 4 + 7 + 7 + 10 + 10 + 13 + 4, (64, 640), "block7d"),
        # 1.8 times 2, 2, 3, 3, 4, rounded up; neither stem nor first and last stage
        (lite_extractor(4), 1 + 4 + 4 + 6 + 6 + 8 + 1, (32, 448), "block7a"),
        (extractor_of(0, min_level=3, max_level=4), 1 + 2 + 2 + 3 + 3, (32, 112), "block5c"),  # up to the last level
    ],
)
def test_blocks_scale_with_the_size(extractor, num_blocks, channels, last_block):
    blocks = efficientnet_blocks(extractor)
    assert (len(blocks), blocks[-1].name) == (num_blocks, last_block)
    assert (blocks[0].channels_in, blocks[-1].channels_out) == channels


def test_lite_has_relu6_and_no_squeeze_and_excitation():
    network = build(lite_extractor(0), (32, 32))
    names = [layer.name for layer in network.layers]
    assert not [name for name in names if "_se_" in name]
    activations = [layer for layer in network.layers if layer.name.endswith("activation")]
    assert len(activations) == 1 + 15 + 16  # stem, all expansions but the first block's, all depthwise convolutions
    assert {(type(layer), layer.max_value) for layer in activations} == {(keras.layers.ReLU, 6.0)}


def test_blocks_are_skipped_at_random_with_a_rate_that_grows_linearly(b0):
    rates = {layer.name: layer.rate for layer in b0.layers if isinstance(layer, keras.layers.Dropout)}
    assert len(rates) == 9  # of 16 blocks, 7 begin a stage and have no shortcut
    assert rates["block2b_drop"] == pytest.approx(0.2 * 2 / 16)
    assert rates["block6d_drop"] == pytest.approx(0.2 * 14 / 16)


def test_a_block_is_skipped_for_whole_images(b0):
    drop = b0.get_layer("block6d_drop")
    kept = drop(tf.ones((64, 2, 3, 4)), training=True).numpy().reshape(64, -1)
    assert (kept == kept[:, :1]).all()
    np.testing.assert_allclose(np.unique(kept), [0, 1 / (1 - drop.rate)], rtol=1e-6)


def test_all_kernels_except_depthwise_ones_are_penalized(b0):
    regularized = {v.path for v in b0.trainable_variables if v.regularizer is not None}
    convolutions = {v.path for v in b0.trainable_variables if v.path.endswith("kernel") and "dwconv" not in v.path}
    biases = {v.path for v in b0.trainable_variables if v.path.endswith("bias")}
    assert regularized == convolutions | biases
    assert float(b0.get_layer("stem_conv").kernel.regularizer.l2) == pytest.approx(5e-6)


def test_the_penalty_of_the_neck_applies_only_if_configured():
    config = extractor_of(0, max_level=4)
    hyperparams = replace(config.conv_hyperparams, regularizer=L2Regularizer(weight=0.5))
    other = replace(config, conv_hyperparams=hyperparams, override_base_feature_extractor_hyperparams=True)
    assert float(build(other).get_layer("stem_conv").kernel.regularizer.l2) == pytest.approx(0.25)
