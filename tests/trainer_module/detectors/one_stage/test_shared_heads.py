import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.network import BatchNorm, ExtraFeatureLayers, L2Regularizer, RandomNormalInitializer
from detloom.trainer_module.detectors.one_stage.heads import build_shared_heads
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

HEAD, HYPERPARAMS = "box_predictor", "box_predictor.conv_hyperparams"


@pytest.fixture
def make_heads(tiny_config, changed, on_pyramid):
    """Heads of three levels, one anchor a place, 3 class channels: 16 channels in one tower layer, all separable."""

    @functools.wraps(on_pyramid)
    def make(settings=None, channels=(8, 8, 8), **whole):
        return on_pyramid(build_shared_heads, changed(tiny_config.model, {**(settings or {}), **whole}), channels)

    return make


def images(network, batch_size=1):
    random = np.random.default_rng(0)
    return [tf.constant(random.normal(size=(batch_size, *each.shape[1:])), tf.float32) for each in network.inputs]


def layer_names(network):
    return {layer.name for layer in network.layers}


def test_each_level_gets_offsets_and_logits_of_its_size(make_heads):
    shapes = [output.shape[1:] for output in make_heads().outputs]
    assert shapes == [(4, 4, 4), (2, 2, 4), (1, 1, 4), (4, 4, 3), (2, 2, 3), (1, 1, 3)]


def test_convolutions_are_shared_but_their_batch_norm_is_not(make_heads):
    network = make_heads()
    assert len(network.get_layer("head_conv_0")._inbound_nodes) == 3
    assert {layer.name for layer in network.layers if isinstance(layer, FusedBatchNorm)} == {
        f"head_conv_0_level_{level}_bn" for level in (3, 4, 5)
    }


def test_boxes_and_classes_can_have_separate_towers(make_heads):
    settings = {f"{HEAD}.share_prediction_tower": False, f"{HEAD}.num_layers_before_predictor": 2}
    network = make_heads(settings)
    towers = {f"head_{what}_conv_{i}" for what in ("box", "class") for i in (0, 1)}
    norms = {f"{name}_level_{level}_bn" for name in towers for level in (3, 4, 5)}
    assert towers | norms <= layer_names(network)
    assert "head_conv_0" not in layer_names(network)
    before = network(images(network))
    kernel = network.get_layer("head_class_conv_0").pointwise_kernel
    kernel.assign(2 * kernel)
    after = network(images(network))
    np.testing.assert_array_equal(before[0], after[0])  # boxes
    assert not np.array_equal(before[3], after[3])  # classes


@pytest.mark.parametrize(
    ("use_depthwise", "kernel_size", "kind"),
    [(False, 1, keras.layers.Conv2D), (True, 5, keras.layers.SeparableConv2D)],
)
def test_convolutions_have_the_configured_kind_and_kernel_size(make_heads, use_depthwise, kernel_size, kind):
    network = make_heads({f"{HEAD}.use_depthwise": use_depthwise, f"{HEAD}.kernel_size": kernel_size})
    layers = [network.get_layer(name) for name in ("head_conv_0", "head_offsets", "head_classes")]
    assert {type(layer) for layer in layers} == {kind}
    assert {layer.kernel_size for layer in layers[1:]} == {(kernel_size, kernel_size)}


@pytest.mark.parametrize(
    ("settings", "penalized"),
    [
        ({}, 1),  # the tower's depthwise kernel
        ({f"{HEAD}.apply_conv_hyperparams_pointwise": True}, 2),
        ({f"{HEAD}.apply_conv_hyperparams_to_heads": True}, 1 + 4),  # both kernels of both last layers
        ({f"{HEAD}.share_prediction_tower": False}, 2),
        ({f"{HEAD}.use_depthwise": False}, 3),  # full convolutions are always penalized, the last too
        ({f"{HEAD}.use_depthwise": False, f"{HEAD}.share_prediction_tower": False}, 4),
    ],
)
def test_the_same_kernels_are_penalized_as_in_the_reference(make_heads, settings, penalized):
    assert len(make_heads({f"{HYPERPARAMS}.regularizer": L2Regularizer(weight=1.0), **settings}).losses) == penalized


@pytest.mark.parametrize(
    ("setting", "tower", "last"),
    [
        (None, (True, False), (False, False)),
        ("apply_conv_hyperparams_pointwise", (True, True), (False, False)),
        ("apply_conv_hyperparams_to_heads", (True, False), (True, True)),
    ],
)
def test_the_same_kernels_are_initialized_as_in_the_reference(make_heads, setting, tower, last):
    """A mean of 5 marks the kernels that get it: depthwise, pointwise."""
    settings = {f"{HYPERPARAMS}.initializer": RandomNormalInitializer(mean=5.0, stddev=0.01)}
    network = make_heads(settings | ({f"{HEAD}.{setting}": True} if setting else {}))
    for name, expected in {"head_conv_0": tower, "head_classes": last}.items():
        layer = network.get_layer(name)
        means = [float(np.mean(kernel.numpy())) for kernel in (layer.depthwise_kernel, layer.pointwise_kernel)]
        assert tuple(mean > 4 for mean in means) == expected, name


@pytest.mark.parametrize(
    ("settings", "use_bias"),
    [
        ({}, False),
        ({f"{HYPERPARAMS}.batch_norm": None}, True),
        ({f"{HYPERPARAMS}.force_use_bias": True}, True),
        ({f"{HYPERPARAMS}.batch_norm": BatchNorm(center=False)}, False),  # here the reference does not look at it
    ],
)
def test_a_tower_without_batch_norm_has_a_bias(make_heads, settings, use_bias):
    network = make_heads(settings)
    assert network.get_layer("head_conv_0").use_bias is use_bias
    assert network.get_layer("head_offsets").use_bias


def test_scores_start_at_the_configured_bias(make_heads):
    network = make_heads({f"{HEAD}.class_prediction_bias_init": -2.0})
    np.testing.assert_array_equal(network.get_layer("head_classes").bias, np.full(3, -2.0))
    np.testing.assert_array_equal(network.get_layer("head_offsets").bias, np.zeros(4))


def test_dropout_is_for_classes_in_training_only(make_heads):
    settings = {f"{HEAD}.use_dropout": True, f"{HEAD}.dropout_keep_probability": 0.5, "freeze_batchnorm": True}
    network = make_heads(settings)
    first, second = (network(images(network), training=True) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert not np.array_equal(first[3], second[3])
    assert network.get_layer("head_class_dropout").rate == 0.5


def test_levels_are_projected_to_the_most_frequent_depth(make_heads):
    """The reference projects all levels, too, without an activation."""
    network = make_heads(channels=(6, 8, 8))
    for level in (3, 4, 5):
        assert network.get_layer(f"head_project_level_{level}").filters == 8
        norm = network.get_layer(f"head_project_level_{level}_bn")
        assert norm._outbound_nodes[0].operation.name == "head_conv_0"


def test_any_generator_with_equally_many_anchors_per_location_fits(make_heads):
    anchors = SsdAnchorGenerator(num_layers=3, aspect_ratios=(1.0, 2.0), reduce_boxes_in_lowest_layer=False)
    network = make_heads(anchor_generator=anchors, **{"feature_extractor.neck": ExtraFeatureLayers(num_layers=3)})
    assert network.outputs[0].shape[-1] == 3 * 4  # two aspect ratios, and one scale in between
