import keras
import pytest
import tensorflow as tf

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    ExtraFeatureLayers,
    FeatureExtractor,
    L2Regularizer,
    RandomNormalInitializer,
)
from detloom.trainer_module.layers.necks.extra_layers import build_extra_layers


def make_extra_layers(num_layers=6, *, side=300, hyperparams=None, freeze_batchnorm=False, **settings):
    """The neck alone, on two inputs that stand for a backbone's feature maps."""
    hyperparams = {"batch_norm": BatchNorm(), "regularizer": L2Regularizer(weight=2.0), **(hyperparams or {})}
    config = FeatureExtractor(
        backbone="mobilenet_v2",
        neck=ExtraFeatureLayers(num_layers=num_layers),
        conv_hyperparams=ConvHyperparams(initializer=RandomNormalInitializer(mean=5.0, stddev=0.01), **hyperparams),
        **settings,
    )
    inputs = {
        level: keras.Input((-(-side // 2**level), -(-side // 2**level), channels), name=f"level_{level}")
        for level, channels in ((4, 6), (5, 8))
        if level < 4 + num_layers
    }
    features = {level: keras.layers.Identity()(feature) for level, feature in inputs.items()}
    pyramid = build_extra_layers(config, features, freeze_batchnorm=freeze_batchnorm)
    return keras.Model(list(inputs.values()), {str(level): feature for level, feature in pyramid.items()})


@pytest.mark.parametrize("use_explicit_padding", [False, True])
def test_each_level_is_half_as_large_rounded_up(use_explicit_padding):
    network = make_extra_layers(use_explicit_padding=use_explicit_padding)
    # Before it is halved, a level gets half the channels.
    assert [network.get_layer(f"neck_squeeze_{level}").filters for level in (6, 7, 8, 9)] == [256, 128, 128, 64]
    assert network.get_layer("neck_squeeze_6").kernel_size == (1, 1)
    assert network.get_layer("neck_coarse_6").kernel_size == (3, 3)
    # The reference's depths: 512, 256, 256, 128.
    assert {int(level): feature.shape[1:] for level, feature in network.output.items()} == {
        4: (19, 19, 6),
        5: (10, 10, 8),
        6: (5, 5, 512),
        7: (3, 3, 256),
        8: (2, 2, 256),
        9: (1, 1, 128),
    }


@pytest.mark.parametrize(("num_layers", "levels"), [(1, [4]), (2, [4, 5]), (4, [4, 5, 6, 7])])
def test_the_number_of_levels_is_configured(num_layers, levels):
    assert [int(level) for level in make_extra_layers(num_layers).output] == levels


def test_channels_are_multiplied_but_not_below_the_minimum():
    network = make_extra_layers(depth_multiplier=0.25, min_depth=40)
    assert [network.get_layer(f"neck_coarse_{level}").filters for level in (6, 7, 8, 9)] == [128, 64, 64, 40]
    assert [network.get_layer(f"neck_squeeze_{level}").filters for level in (6, 7, 8, 9)] == [64, 40, 40, 40]


@pytest.mark.parametrize("use_depthwise", [False, True])
def test_initializer_and_penalty_are_not_for_depthwise_kernels(use_depthwise):
    """A mean of 5 marks the kernels that get the initializer."""
    network = make_extra_layers(4, use_depthwise=use_depthwise)
    convolutions = [layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]
    assert len(convolutions) == 4
    assert all(float(tf.reduce_mean(layer.kernel)) > 4 for layer in convolutions)
    depthwise = [layer for layer in network.layers if isinstance(layer, keras.layers.DepthwiseConv2D)]
    assert [layer.kernel_size for layer in depthwise] == ([(3, 3)] * 2 if use_depthwise else [])
    assert all(abs(float(tf.reduce_mean(layer.kernel))) < 1 for layer in depthwise)
    assert len(network.losses) == 4


@pytest.mark.parametrize(
    ("hyperparams", "use_bias"), [({}, False), ({"batch_norm": None}, True), ({"force_use_bias": True}, True)]
)
def test_a_convolution_has_a_bias_if_batch_norm_has_no_offset(hyperparams, use_bias):
    network = make_extra_layers(3, hyperparams=hyperparams, use_depthwise=True)
    names = ("neck_squeeze_6", "neck_coarse_6_depthwise", "neck_coarse_6")
    assert {network.get_layer(name).use_bias for name in names} == {use_bias}


def test_explicit_padding_is_symmetrical():
    """A kernel of ones at the corner of 10x10 ones: 2x2 of them with a row and a column of padding, 3x3 without."""
    for use_explicit_padding, corner in ((False, 9), (True, 4)):
        network = make_extra_layers(3, use_explicit_padding=use_explicit_padding, depth_multiplier=0.1, min_depth=1)
        conv = network.get_layer("neck_coarse_6")
        conv.kernel.assign(tf.ones(conv.kernel.shape))
        inner = keras.Model(network.get_layer("neck_squeeze_6_activation").output, conv.output)
        channels = conv.kernel.shape[2]
        assert float(inner(tf.ones([1, 10, 10, channels]))[0, 0, 0, 0]) == corner * channels
