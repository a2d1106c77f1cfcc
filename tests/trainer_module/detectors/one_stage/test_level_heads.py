import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    L2Regularizer,
    RandomNormalInitializer,
)
from detloom.trainer_module.detectors.one_stage.heads import build_level_heads


@pytest.fixture
def make_heads(tiny_config, changed, on_pyramid):
    """Heads of three levels with 3, 5 and 5 anchors a place, 3 class channels; settings of the box predictor."""

    def make(channels=(4, 6, 8), hyperparams=None, freeze_batchnorm=False, **settings):
        group = {"regularizer": L2Regularizer(weight=1.0), "batch_norm": BatchNorm(), **(hyperparams or {})}
        initializer = RandomNormalInitializer(mean=5.0, stddev=0.01)  # marks the kernels that get it
        head = ConvolutionalBoxPredictor(
            conv_hyperparams=ConvHyperparams(initializer=initializer, **group), **{"use_dropout": False, **settings}
        )
        changes = {
            "feature_extractor.neck": ExtraFeatureLayers(num_layers=3),
            "anchor_generator": SsdAnchorGenerator(num_layers=3, aspect_ratios=(1.0, 2.0, 0.5, 3.0)),
            "box_predictor": head,
            "freeze_batchnorm": freeze_batchnorm,
        }
        return on_pyramid(build_level_heads, changed(tiny_config.model, changes), channels)

    return make


def images(network):
    random = np.random.default_rng(0)
    return [tf.constant(random.normal(size=(1, *each.shape[1:])), tf.float32) for each in network.inputs]


def convolutions(network):
    return {layer.name: layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)}


def test_each_level_has_its_own_layers_for_its_anchors(make_heads):
    network = make_heads()
    assert [output.shape[1:] for output in network.outputs] == [
        (4, 4, 12), (2, 2, 20), (1, 1, 20), (4, 4, 9), (2, 2, 15), (1, 1, 15)
    ]  # fmt: skip
    assert set(convolutions(network)) == {f"head_{what}_{i}" for what in ("offsets", "classes") for i in range(3)}


@pytest.mark.parametrize(
    ("settings", "depths"),
    [
        ({"max_depth": 6}, [4, 6, 6]),  # of 4, 6 and 8 channels
        ({"min_depth": 5, "max_depth": 7}, [5, 6, 7]),
        ({}, []),  # without a largest depth there is no such layer
    ],
)
def test_layers_before_the_last_have_the_depth_of_the_level_within_limits(make_heads, settings, depths):
    network = make_heads(num_layers_before_predictor=2, **settings)
    towers = [layer for name, layer in convolutions(network).items() if name.startswith("head_conv_1")]
    assert [layer.filters for layer in towers] == depths
    assert all(layer.kernel_size == (1, 1) for layer in towers)
    names = {layer.name for layer in network.layers}
    assert {f"{tower.name}_{part}" for tower in towers for part in ("bn", "activation")} <= names


@pytest.mark.parametrize("use_depthwise", [False, True])
def test_biases_are_set_and_initializer_and_penalty_are_not_for_depthwise_kernels(make_heads, use_depthwise):
    network = make_heads(use_depthwise=use_depthwise, kernel_size=3, class_prediction_bias_init=-2.0)
    # Also for separable convolutions, where the reference does not apply the bias.
    np.testing.assert_array_equal(network.get_layer("head_classes_0").bias, np.full(9, -2.0))
    np.testing.assert_array_equal(network.get_layer("head_offsets_0").bias, np.zeros(12))
    layers = convolutions(network).values()
    assert {layer.kernel_size for layer in layers} == {(1, 1) if use_depthwise else (3, 3)}
    assert all(float(tf.reduce_mean(layer.kernel)) > 4 for layer in layers)
    assert len(network.losses) == len(layers) == 6
    depthwise = [layer for layer in network.layers if isinstance(layer, keras.layers.DepthwiseConv2D)]
    assert {layer.name for layer in depthwise} == (
        {f"head_{what}_depthwise_{i}" for what in ("box", "class") for i in range(3)} if use_depthwise else set()
    )
    assert all(abs(float(tf.reduce_mean(layer.kernel))) < 1 and not layer.use_bias for layer in depthwise)


def test_dropout_is_for_classes_in_training_only(make_heads):
    network = make_heads(use_dropout=True, dropout_keep_probability=0.5)
    first, second = (network(images(network), training=True) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert not np.array_equal(first[3], second[3])
    assert network.get_layer("head_class_dropout_0").rate == 0.5


def test_batch_norm_can_be_frozen(make_heads):
    network = make_heads(num_layers_before_predictor=1, max_depth=8, freeze_batchnorm=True)
    assert network.get_layer("head_conv_0_2_bn").use_moving_statistics
