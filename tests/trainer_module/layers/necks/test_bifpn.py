from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model.network import BiFpn, FeatureExtractor
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.layers.necks.bifpn import WeightedSum, bifpn_nodes, build_bifpn


def extractor(**neck: object) -> FeatureExtractor:
    config = find_preset("efficientdet_d0").config.model.feature_extractor
    settings = {"num_iterations": 1, "num_filters": 4} | neck
    return replace(config, min_depth=4, neck=BiFpn(**settings))


def build(image_hw: tuple[int, int] = (128, 256), **neck: object) -> keras.Model:
    config = extractor(**neck)
    levels = range(config.neck.min_level, min(config.neck.max_level, 5) + 1)
    inputs = {level: keras.Input((image_hw[0] >> level, image_hw[1] >> level, 2 * level)) for level in levels}
    return keras.Model(list(inputs.values()), build_bifpn(config, inputs, freeze_batchnorm=False))


def test_nodes_equal_the_figure_in_the_paper():
    nodes = bifpn_nodes(BiFpn(min_level=4, max_level=6, num_iterations=2, num_filters=8))
    assert [(node.name, node.inputs) for node in nodes] == [
        ("0_up_6", ("0_up_5",)),
        ("1_down_5", ("0_up_5", "0_up_6")),
        ("1_down_4", ("0_up_4", "1_down_5")),
        ("1_up_5", ("0_up_5", "1_down_5", "1_down_4")),
        ("1_up_6", ("0_up_6", "1_up_5")),
        ("2_down_5", ("1_up_5", "1_up_6")),
        ("2_down_4", ("1_down_4", "2_down_5")),
        ("2_up_5", ("1_up_5", "2_down_5", "2_down_4")),
        ("2_up_6", ("1_up_6", "2_up_5")),
    ]


@pytest.mark.parametrize("max_level", [4, 8])
def test_levels_have_their_strides_and_equal_channels(max_level):
    shapes = {level: feature.shape[1:] for level, feature in build((256, 512), max_level=max_level).output.items()}
    assert shapes == {level: (256 >> level, 512 >> level, 4) for level in range(3, max_level + 1)}


def test_min_depth_is_the_fewest_channels():
    config = replace(extractor(), min_depth=16)
    inputs = {level: keras.Input((128 >> level, 128 >> level, 8)) for level in (3, 4, 5)}
    assert build_bifpn(config, inputs, freeze_batchnorm=False)[3].shape[-1] == 16


# Inputs 1 and 10; weights 3 and -1, of which the fast fusion uses 3 and 0.
@pytest.mark.parametrize(("is_fast", "expected"), [(True, 3 * 1 / (3 + 1e-4)), (False, 1 + 10)])
def test_inputs_are_weighted(is_fast, expected):
    layer = WeightedSum(is_fast=is_fast)
    inputs = [tf.ones((1, 2, 2, 1)), tf.fill((1, 2, 2, 1), 10.0)]
    layer(inputs)
    layer.bifpn_combine_weights.assign([[3.0], [-1.0]])
    np.testing.assert_allclose(layer(inputs), np.full((1, 2, 2, 1), expected), rtol=1e-6)


def test_a_plain_sum_has_no_weights():
    assert not [v.path for v in build(combine_method="sum").weights if "combine" in v.path]
    weighted = [v for v in build(combine_method="fast_attention").weights if "combine" in v.path]
    assert {tuple(v.shape) for v in weighted} == {(2, 1), (3, 1)}
    assert {v.name for v in weighted} == {"bifpn_combine_weights"}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fast_attention", marks=pytest.mark.slow),
        *(pytest.param(method, marks=pytest.mark.nightly) for method in ("attention", "sum")),
    ],
)
def test_all_fusions_compile_under_xla_with_equal_gradients(method):
    network = build(min_level=4, max_level=5, combine_method=method)
    generator = np.random.default_rng(0)
    inputs = [tf.constant(generator.normal(size=(2, *x.shape[1:])), tf.float32) for x in network.inputs]

    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(feature**2) for feature in network(inputs).values()])
        return tape.gradient(loss, network.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    for ours, compiled in zip(gradients(), tf.function(gradients, jit_compile=True)(), strict=True):
        np.testing.assert_allclose(ours, compiled, rtol=1e-3, atol=1e-3)


def test_both_kernels_of_a_separable_convolution_are_penalized():
    conv = build().get_layer("neck_1_down_3_conv")
    assert conv.depthwise_kernel.regularizer.l2 == conv.pointwise_kernel.regularizer.l2 == pytest.approx(2e-5)


def test_a_map_of_odd_sides_gets_the_nearest_neighbours():
    """google/automl resizes to the sides of the finer map; 3 rows to 5, and 2 columns to 4."""
    config = extractor(min_level=5, max_level=6, combine_method="sum")
    inputs = {5: keras.Input((5, 4, 10))}
    network = keras.Model(inputs[5], build_bifpn(config, inputs, freeze_batchnorm=False))
    assert {level: feature.shape[1:] for level, feature in network.output.items()} == {5: (5, 4, 4), 6: (3, 2, 4)}
    cut = network.get_layer("neck_1_down_5_input_1_cut")
    before = keras.Model(network.inputs, [network.get_layer("neck_1_down_5_input_1_upsample").input, cut.output])
    coarse, fitted = before(np.random.default_rng(0).normal(size=(1, 5, 4, 10)).astype(np.float32))
    np.testing.assert_array_equal(fitted, tf.compat.v1.image.resize_nearest_neighbor(coarse, (5, 4)))


def test_one_level_is_refused():
    with pytest.raises(InputError, match="min_level: got 3, allowed: below max_level"):
        BiFpn(min_level=3, max_level=3, num_iterations=1, num_filters=8)
