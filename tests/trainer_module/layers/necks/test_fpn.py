import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    RandomNormalInitializer,
)
from detloom.trainer_module.layers.necks.fpn import build_fpn

CHANNELS = {2: 3, 3: 4, 4: 5, 5: 6}


def make_fpn(image_hw=(64, 64), *, levels=(3, 7), depth=8, hyperparams=None, freeze_batchnorm=False, **settings):
    """The neck alone, on four inputs that stand for a backbone's feature maps."""
    hyperparams = {"batch_norm": BatchNorm(), "regularizer": L2Regularizer(weight=2.0), **(hyperparams or {})}
    config = FeatureExtractor(
        backbone="mobilenet_v1",
        neck=Fpn(min_level=levels[0], max_level=levels[1], additional_layer_depth=depth),
        conv_hyperparams=ConvHyperparams(initializer=RandomNormalInitializer(), **hyperparams),
        **{"min_depth": 1, **settings},
    )
    inputs = {
        level: keras.Input((-(-image_hw[0] // 2**level), -(-image_hw[1] // 2**level), channels), name=f"level_{level}")
        for level, channels in CHANNELS.items()
        if levels[0] <= level <= levels[1]
    }
    pyramid = build_fpn(config, inputs, freeze_batchnorm=freeze_batchnorm)
    return keras.Model(list(inputs.values()), {str(level): feature for level, feature in pyramid.items()})


def ones(network):
    return [tf.ones([1, *feature.shape[1:]]) for feature in network.inputs]


@pytest.mark.parametrize("levels", [(3, 7), (2, 5), (5, 5)])
def test_levels_have_their_strides_and_the_configured_channels(levels):
    outputs = make_fpn((128, 64), levels=levels).output
    assert {int(level): feature.shape[1:] for level, feature in outputs.items()} == {
        level: (-(-128 // 2**level), -(-64 // 2**level), 8) for level in range(levels[0], levels[1] + 1)
    }


def test_an_output_equals_the_value_computed_by_hand():
    """One channel, kernels of ones, a bias of 1 in the laterals; no batch norm, no activation."""
    network = make_fpn(
        levels=(4, 6), depth=1, hyperparams={"batch_norm": None, "activation": "NONE", "regularizer": L2Regularizer()}
    )
    for layer in network.layers:
        for variable in layer.weights:
            variable.assign(tf.ones(variable.shape))
    pyramid = network(ones(network))
    # Level 5: 6 channels of 1, and the bias. Level 4: 5 + 1 of its own and the 7 from above, 3x3 (2x2 in the
    # corner), and a bias of 1. Level 6 of level 5's 2x2: all four pixels, and the bias.
    np.testing.assert_array_equal(pyramid["5"], np.full((1, 2, 2, 1), 7.0))
    assert float(pyramid["4"][0, 1, 1, 0]) == 9 * 13 + 1
    assert float(pyramid["4"][0, 0, 0, 0]) == 4 * 13 + 1
    np.testing.assert_array_equal(pyramid["6"], np.full((1, 1, 1, 1), 4 * 7.0 + 1))


def test_explicit_padding_of_a_stride_is_symmetrical():
    """'same' pads 4 rows with one below; explicit padding adds one above, and uses rows -1 to 1 and 1 to 3."""
    plain, explicit = (
        make_fpn((128, 128), levels=(5, 6), depth=1, use_explicit_padding=flag) for flag in (False, True)
    )
    rows = tf.reshape(tf.constant([1.0, 10.0, 100.0, 1000.0]), [1, 4, 1, 1]) * tf.ones([1, 4, 4, 6])
    answers = []
    for network in (plain, explicit):
        network.get_layer("neck_lateral_5").kernel.assign(tf.ones([1, 1, 6, 1]) / 6)
        network.get_layer("neck_coarse_6").kernel.assign(tf.ones([3, 3, 1, 1]))
        coarse = keras.Model(network.input, network.get_layer("neck_coarse_6").output)
        answers.append(coarse([rows])[0, :, :, 0].numpy())
    np.testing.assert_allclose(answers[0], [[333, 222], [3300, 2200]])  # three columns, then two and padding
    np.testing.assert_allclose(answers[1], [[22, 33], [2220, 3330]])


def test_a_finer_level_gets_the_smoothed_coarser_one():
    """This is as in the reference; the paper uses the map before it is smoothed."""
    network = make_fpn()
    assert network.get_layer("neck_upsample_3").input is network.get_layer("neck_smooth_4_activation").output


@pytest.mark.parametrize(
    ("use_depthwise", "kinds", "kernels"),
    [(False, keras.layers.Conv2D, ["kernel"]), (True, keras.layers.SeparableConv2D, ["depthwise_kernel"])],
)
def test_convolutions_can_be_separable_except_laterals(use_depthwise, kinds, kernels):
    network = make_fpn(use_depthwise=use_depthwise)
    for name in ("neck_smooth_3", "neck_coarse_7"):
        assert type(network.get_layer(name)) is kinds
    assert type(network.get_layer("neck_lateral_3")) is keras.layers.Conv2D
    # One penalty each: laterals 3, 4, 5, smoothing 3, 4, coarser 6, 7; of separable ones on the depthwise kernel alone.
    assert len(network.losses) == 7
    expected = sum(
        float(tf.reduce_sum(getattr(network.get_layer(name), kernel) ** 2))
        for name in ("neck_smooth_3", "neck_smooth_4", "neck_coarse_6", "neck_coarse_7")
        for kernel in kernels
    ) + sum(float(tf.reduce_sum(network.get_layer(f"neck_lateral_{level}").kernel ** 2)) for level in (3, 4, 5))
    assert float(sum(network.losses)) == pytest.approx(expected, rel=1e-5)  # weight 2, of which the penalty is half


@pytest.mark.parametrize(
    ("settings", "channels"),
    [({"depth_multiplier": 0.5}, 20), ({"depth_multiplier": 0.1, "min_depth": 16}, 16), ({}, 40)],
)
def test_channels_are_multiplied_but_not_below_the_minimum(settings, channels):
    assert make_fpn(depth=40, **settings).output["3"].shape[-1] == channels


@pytest.mark.parametrize(("hyperparams", "use_bias"), [({}, False), ({"batch_norm": None}, True)])
def test_laterals_always_have_a_bias_and_others_if_batch_norm_has_no_offset(hyperparams, use_bias):
    network = make_fpn(hyperparams=hyperparams)
    assert network.get_layer("neck_lateral_3").use_bias
    assert {network.get_layer(name).use_bias for name in ("neck_smooth_3", "neck_coarse_6")} == {use_bias}
