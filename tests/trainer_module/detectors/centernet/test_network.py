"""Values of the reference: both sides fill each variable with numbers drawn from its checkpoint key."""

import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.center_net import CenterNet
from detloom.trainer_module.detectors.centernet.network import build_centernet
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.runtime.numerics import network_precision
from detloom.trainer_module.weights.odapi_keys import odapi_keys

NAMES = ("resnet50", "mobilenet_v2")
OUTPUTS = {"class_logits": "class_logits_BHWK", "sizes": "sizes_BHW2", "offsets": "offsets_BHW2"}


def drawn(key: str, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(zlib.crc32(key.encode()))
    name = key.split("/")[-3]
    if name.endswith("kernel"):
        fan_in = np.prod(shape[:2]) if name == "depthwise_kernel" else np.prod(shape[:-1])
        return random.standard_normal(shape) * np.sqrt(1 / fan_in)
    if name in ("gamma", "moving_variance"):
        return random.uniform(0.7, 1.3, shape)
    return random.standard_normal(shape) * 0.1


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3)).astype(np.uint8)


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return str(request.param)


@pytest.fixture
def network(name, center_net_configs) -> keras.Model:
    config = center_net_configs[name]
    network = build_centernet(config, num_classes=5)
    keys = odapi_keys(family_of(config), network)
    for layer in network.layers:
        for variable in layer.weights:
            variable.assign(drawn(keys[f"{layer.name}/{variable.name}"], tuple(variable.shape)))
    return network


def test_prepared_images_equal_the_reference(name, center_net_configs, center_net_reference, images):
    prepared, true_hw = family_of(center_net_configs[name]).preprocessing.prepare(images)
    wanted = center_net_reference[f"{name}_preprocessed"]
    np.testing.assert_allclose(prepared.numpy()[:, ::5, ::5], wanted, atol=1e-4)
    assert true_hw.numpy().tolist() == [72, 96]


@pytest.mark.parametrize("training", [False, True])
def test_network_outputs_equal_the_reference(name, training, network, center_net_configs, center_net_reference, images):
    prepared, _ = family_of(center_net_configs[name]).preprocessing.prepare(images)
    outputs = network(prepared, training=training)
    for theirs, ours in OUTPUTS.items():
        wanted = center_net_reference[f"{name}_{'train' if training else 'eval'}_{theirs}"]
        error = np.abs(outputs[ours].numpy()[:, ::3, ::3] - wanted).max()
        assert error < 2e-3 * max(1.0, wanted.std()), theirs


def test_moving_statistics_equal_the_reference(name, network, center_net_configs, center_net_reference, images):
    prepared, _ = family_of(center_net_configs[name]).preprocessing.prepare(images)
    network(prepared, training=True)
    first = network.get_layer("conv1_bn" if name == "resnet50" else "bn_Conv1")
    last = network.get_layer("neck_smooth_2_bn")
    for theirs, ours in (
        ("first_moving_variance", first.moving_variance),
        ("moving_mean", last.moving_mean),
        ("moving_variance", last.moving_variance),
    ):
        np.testing.assert_allclose(ours.numpy(), center_net_reference[f"{name}_{theirs}_after"], rtol=1e-4, atol=1e-4)


def test_no_weight_is_penalized_and_the_heat_map_starts_near_its_bias(center_net_configs):
    config: CenterNet = center_net_configs["mobilenet_v2"]
    network = build_centernet(config, num_classes=3)
    assert network.losses == []
    np.testing.assert_allclose(network.get_layer("head_classes").bias.numpy(), -2.19)


def test_only_the_last_class_layer_depends_on_the_number_of_classes(center_net_configs):
    config = center_net_configs["mobilenet_v2"]
    few, many = (
        {layer.name: [tuple(weight.shape) for weight in layer.weights] for layer in build_centernet(config, num).layers}
        for num in (2, 7)
    )
    assert [name for name in few if few[name] != many[name]] == ["head_classes"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_bilinear_upsampling_compiles_in_low_precision_under_xla(precision, center_net_configs):
    """XLA's gradient of this operation is float32 for any input, which fails in the next operation."""
    config = center_net_configs["mobilenet_v2"]
    with network_precision(precision):
        network = build_centernet(config, num_classes=5)
    upsample = network.get_layer("neck_upsample_4")

    @tf.function(jit_compile=True)
    def gradient(features: tf.Tensor) -> tf.Tensor:
        features = tf.cast(features, precision)
        with tf.GradientTape() as tape:
            tape.watch(features)
            total = tf.reduce_sum(upsample(features))
        return tf.nn.relu(tape.gradient(total, features))

    found = gradient(tf.ones([1, 2, 2, 1]))
    assert config.feature_extractor.upsampling_interpolation == "bilinear"
    assert found.dtype == precision
    np.testing.assert_array_equal(tf.cast(found, tf.float32), np.full([1, 2, 2, 1], 4.0))  # four pixels for each
