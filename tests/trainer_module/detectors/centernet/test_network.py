import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.detectors.centernet.network import build_centernet
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.runtime.numerics import network_precision


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3)).astype(np.uint8)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_prepared_images_equal_the_reference(name, center_net_configs, center_net_reference, images):
    prepared, true_hw = family_of(center_net_configs[name]).preprocessing.prepare(images)
    wanted = center_net_reference[f"{name}_preprocessed"]
    np.testing.assert_allclose(prepared.numpy()[:, ::5, ::5], wanted, atol=1e-4)
    assert true_hw.numpy().tolist() == [72, 96]


@pytest.mark.parametrize(
    "precision",
    [pytest.param("bfloat16", marks=pytest.mark.slow), pytest.param("float16", marks=pytest.mark.nightly)],
)
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
