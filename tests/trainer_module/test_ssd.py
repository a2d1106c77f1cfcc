import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.network_config import L2Regularizer, RandomNormalInitializer
from detloom.trainer_module.anchors import build_anchors
from detloom.trainer_module.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.preprocess import network_hw
from detloom.trainer_module.ssd import build_ssd

EXTRACTOR, HEAD = "feature_extractor.conv_hyperparams", "box_predictor.conv_hyperparams"


def count(variables):
    return sum(int(np.prod(variable.shape)) for variable in variables)


def test_the_zoos_network_has_the_references_size(zoo_config):
    network = build_ssd(zoo_config.model, num_classes=90)
    # trainable parameters and variables, moving statistics, batch norms and penalties of the reference's own
    assert (count(network.trainable_variables), len(network.trainable_variables)) == (2626746, 232)
    assert count(network.non_trainable_variables) == 40256
    assert len([layer for layer in network.layers if isinstance(layer, FusedBatchNorm)]) == 76
    assert len(network.losses) == 63


@pytest.mark.parametrize("add_background_class", [False, True])
def test_the_network_has_one_row_for_every_anchor(tiny_config, changed, add_background_class):
    config = changed(tiny_config.model, {"add_background_class": add_background_class})
    outputs = build_ssd(config, num_classes=3)(tf.zeros([2, 64, 64, 3]))
    num_anchors = len(build_anchors(config.anchor_generator, (64, 64)))
    assert outputs["offsets_BA4"].shape == (2, num_anchors, 4)
    assert outputs["class_logits_BAC"].shape == (2, num_anchors, 3 + add_background_class)


@pytest.mark.parametrize(
    ("image_hw", "levels"),
    [((320, 320), (3, 7)), ((96, 160), (4, 6)), ((64, 32), (2, 5)), ((48, 80), (2, 4)), ((313, 96), (3, 5))],
)
def test_anchors_and_network_agree_for_other_sizes_and_levels(tiny_config, changed, image_hw, levels):
    low, high = levels
    both = {"feature_extractor.neck", "anchor_generator"}
    settings = {f"{part}.min_level": low for part in both} | {f"{part}.max_level": high for part in both}
    size = {"image_resizer.height": image_hw[0], "image_resizer.width": image_hw[1]}
    config = changed(tiny_config.model, {**settings, **size})
    anchors = build_anchors(config.anchor_generator, network_hw(config.image_resizer))
    assert build_ssd(config, 1).output["offsets_BA4"].shape == (None, len(anchors), 4)


def test_scores_start_at_the_configured_bias(tiny_config, changed):
    config = changed(tiny_config.model, {"box_predictor.class_prediction_bias_init": -2.0})
    logits = build_ssd(config, 2)(tf.random.stateless_normal([1, 64, 64, 3], [0, 0]))["class_logits_BAC"]
    assert float(tf.reduce_mean(logits)) == pytest.approx(-2.0, abs=0.2)


def test_batch_norm_has_each_groups_settings(tiny_config, changed):
    config = changed(tiny_config.model, {f"{EXTRACTOR}.batch_norm.decay": 0.8, f"{HEAD}.batch_norm.decay": 0.7})
    layers = [layer for layer in build_ssd(config, 1).layers if isinstance(layer, FusedBatchNorm)]
    assert {layer.momentum for layer in layers if layer.name.startswith("head")} == {0.7}
    assert {layer.momentum for layer in layers if not layer.name.startswith("head")} == {0.8}


def test_all_batch_norm_can_be_frozen(tiny_config, changed):
    network = build_ssd(changed(tiny_config.model, {"freeze_batchnorm": True}), 1)
    before = [variable.numpy() for variable in network.non_trainable_variables]
    network(tf.random.stateless_normal([2, 64, 64, 3], [0, 0]), training=True)
    for variable, value in zip(network.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_without_batch_norm_convolutions_have_a_bias(tiny_config, changed):
    settings = {f"{EXTRACTOR}.batch_norm": None, f"{HEAD}.batch_norm": None}
    override = {"feature_extractor.override_base_feature_extractor_hyperparams": False}
    network = build_ssd(changed(tiny_config.model, {**settings, **override}), 1)
    for name in ("neck_smooth_3", "head_conv_0"):
        assert network.get_layer(name).use_bias
    norms = {layer.name for layer in network.layers if isinstance(layer, FusedBatchNorm)}
    assert not {name for name in norms if name.startswith(("neck", "head"))}


def test_a_bias_before_batch_norm_can_be_forced(tiny_config, changed):
    plain, forced = (
        build_ssd(changed(tiny_config.model, {f"{EXTRACTOR}.force_use_bias": flag, f"{HEAD}.force_use_bias": flag}), 1)
        for flag in (False, True)
    )
    for name in ("neck_smooth_3", "head_conv_0"):
        assert (plain.get_layer(name).use_bias, forced.get_layer(name).use_bias) == (False, True)


@pytest.mark.parametrize(
    ("settings", "penalized"),
    [
        # Backbone 52, neck 3 lateral convolutions and 2 depthwise kernels, 1 in the head's tower.
        ({}, 52 + 5 + 1),
        ({"box_predictor.apply_conv_hyperparams_pointwise": True}, 52 + 5 + 2),
        ({"box_predictor.apply_conv_hyperparams_to_heads": True}, 52 + 5 + 1 + 4),  # both kernels of both last layers
    ],
)
def test_penalties_lie_on_the_references_kernels(tiny_config, changed, settings, penalized):
    weights = {f"{group}.regularizer": L2Regularizer(weight=1.0) for group in (EXTRACTOR, HEAD)}
    assert len(build_ssd(changed(tiny_config.model, {**weights, **settings}), 1).losses) == penalized


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"head_conv_0": (True, False), "head_classes": (False, False)}),
        (
            {"box_predictor.apply_conv_hyperparams_pointwise": True},
            {"head_conv_0": (True, True), "head_classes": (False, False)},
        ),
        (
            {"box_predictor.apply_conv_hyperparams_to_heads": True},
            {"head_conv_0": (True, False), "head_classes": (True, True)},
        ),
    ],
)
def test_the_initializer_is_for_the_references_kernels(tiny_config, changed, settings, expected):
    """A mean of 5 marks the kernels that get it: depthwise, pointwise."""
    marked = {f"{HEAD}.initializer": RandomNormalInitializer(mean=5.0, stddev=0.01)}
    network = build_ssd(changed(tiny_config.model, {**marked, **settings}), 1)
    for name, (depthwise, pointwise) in expected.items():
        layer = network.get_layer(name)
        means = [float(np.mean(kernel.numpy())) for kernel in (layer.depthwise_kernel, layer.pointwise_kernel)]
        assert [mean > 4 for mean in means] == [depthwise, pointwise], name


def test_activations_are_each_groups(tiny_config, changed):
    settings = {f"{EXTRACTOR}.activation": "SWISH", f"{HEAD}.activation": "NONE"}
    network = build_ssd(changed(tiny_config.model, settings), 1)
    assert network.get_layer("neck_smooth_3_activation").activation is keras.activations.silu
    assert "head_conv_0_level_3_activation" not in {layer.name for layer in network.layers}


def test_the_pyramids_channels_are_multiplied_too_and_the_heads_are_not(tiny_config, changed):
    settings = {"feature_extractor.depth_multiplier": 0.2, "box_predictor.depth": 24}
    network = build_ssd(changed(tiny_config.model, settings), 1)
    assert network.get_layer("neck_lateral_3").filters == 32  # 160 * 0.2
    assert network.get_layer("head_conv_0").filters == 24


def test_kernels_have_the_configured_size(tiny_config, changed):
    network = build_ssd(changed(tiny_config.model, {"box_predictor.kernel_size": 5}), 1)
    sizes = [network.get_layer(name).kernel_size for name in ("head_conv_0", "head_offsets", "neck_smooth_3")]
    assert sizes == [(5, 5), (5, 5), (3, 3)]


def test_dropout_is_for_classes_in_training_only(tiny_config, changed):
    settings = {"box_predictor.use_dropout": True, "box_predictor.dropout_keep_probability": 0.5}
    network = build_ssd(changed(tiny_config.model, {**settings, "freeze_batchnorm": True}), 1)
    images = tf.random.stateless_normal([1, 64, 64, 3], [0, 0])
    first, second = (network(images, training=True) for _ in range(2))
    np.testing.assert_array_equal(first["offsets_BA4"], second["offsets_BA4"])
    assert not np.array_equal(first["class_logits_BAC"], second["class_logits_BAC"])
    assert network.get_layer("head_dropout").rate == 0.5


def test_head_convolutions_are_shared_and_their_batch_norm_is_not(tiny_config):
    names = [layer.name for layer in build_ssd(tiny_config.model, 1).layers]
    assert names.count("head_conv_0") == 1
    assert {f"head_conv_0_level_{level}_bn" for level in (3, 4, 5)} <= set(names)


def test_a_finer_level_gets_the_smoothed_coarser_one(tiny_config):
    """As in the reference; the paper passes it on before it is smoothed."""
    network = build_ssd(tiny_config.model, 1)
    upsample = network.get_layer("neck_upsample_3")
    assert upsample.input is network.get_layer("neck_smooth_4_activation").output
