"""A CenterNet with two small stacked hourglasses."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, SCORES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNetFeatureExtractor
from detloom.trainer_module.detectors.centernet.network import OUTPUTS, normalize
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.layers.backbones.hourglass import HOURGLASSES, Hourglass
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_keys
from detloom.trainer_module.weights.restore import find_trained, plan_restore

pytestmark = pytest.mark.usefixtures("eager")
FIVE = LabelMap.from_names(["a", "b", "c", "d", "e"])
# With fewer than 16 channels, oneDNN's gradient of a strided 1x1 convolution writes outside its memory (AVX-512).
SMALL = Hourglass(stem_channels=16, channels=(16, 16), num_blocks=(1, 1), num_stacked=2)


@pytest.fixture(scope="module")
def detector(hourglass_config) -> Detector:
    keras.utils.set_random_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HOURGLASSES, "hourglass_104", SMALL)
        detector = build_detector(hourglass_config, FIVE)
        yield detector


@pytest.fixture(scope="module")
def batch(center_net_truth) -> dict[str, tf.Tensor]:
    images = np.random.default_rng(0).uniform(0, 255, (2, 128, 128, 3)).astype(np.float32)
    return {"image": tf.constant(images), **{key: tf.constant(value) for key, value in center_net_truth.items()}}


def outputs_of_one(outputs: dict[str, tf.Tensor], suffix: str) -> dict[str, tf.Tensor]:
    """Give all hourglasses the outputs of one."""
    return {f"{name}{other}": outputs[f"{name}{suffix}"] for name in OUTPUTS for other in ("", "_hourglass1")}


def test_each_hourglass_has_outputs(detector):
    shapes = {name: output.shape for name, output in detector.network.output.items()}
    assert shapes.keys() == {f"{name}{suffix}" for name in OUTPUTS for suffix in ("", "_hourglass1")}
    assert shapes["class_logits_BHWK"] == shapes["class_logits_BHWK_hourglass1"] == (None, 32, 32, 5)


def test_losses_are_the_average_over_hourglasses(detector, batch):
    outputs = detector.forward(batch, training=True)
    first, last = (detector.losses(outputs_of_one(outputs, suffix), batch) for suffix in ("_hourglass1", ""))
    for name, loss in detector.losses(outputs, batch).items():
        assert float(first[name]) != float(last[name])
        assert float(loss) == pytest.approx((float(first[name]) + float(last[name])) / 2, rel=1e-5)


def test_detections_are_those_of_the_last_hourglass(detector, batch):
    outputs = detector.forward(batch, training=False)
    found, expected = detector.detections(outputs), detector.detections(outputs_of_one(outputs, ""))
    np.testing.assert_array_equal(found[BOXES], expected[BOXES])
    np.testing.assert_array_equal(found[SCORES], expected[SCORES])


def test_every_variable_has_its_own_key(detector):
    keys = odapi_keys(detector.family, detector.network)
    assert len(set(keys.values())) == len(keys) == len(detector.network.weights)
    head, network = "model/_prediction_head_dict/object_center", "model/_feature_extractor/_network"
    first, second = (f"{network}/hourglass_network/{index}" for index in range(2))
    for layer, key in {  # only heads of stacked hourglasses have a number
        "head_classes": f"{head}/1/layer_with_weights-1",
        "head_classes_hourglass1": f"{head}/0/layer_with_weights-1",
        "stem_block_0_conv": f"{network}/downsample_input/residual_block/skip/conv",
        "hourglass2_level1_down1_1_conv": f"{second}/encoder_block2/0/conv_block/conv",
        "hourglass1_level1_inside1_2_conv": f"{first}/inner_block/0/conv",
        "hourglass1_next_input_conv": f"{network}/intermediate_conv1/0/conv",
    }.items():
        assert keys[f"{layer}/kernel"] == f"{key}/kernel{VALUE}"


def test_only_the_last_class_layers_depend_on_the_number_of_classes(detector, hourglass_config):
    other = build_detector(hourglass_config, LabelMap.from_names(["a"])).network
    differing = {
        one.name
        for one, two in zip(detector.network.layers, other.layers, strict=True)
        if [weight.shape for weight in one.weights] != [weight.shape for weight in two.weights]
    }
    assert differing == {"head_classes", "head_classes_hourglass1"}


def test_colors_are_normalized_by_the_means_alone():
    extractor = CenterNetFeatureExtractor(
        backbone="hourglass_10", bgr_ordering=True, channel_means=(1.0, 2.0, 3.0), channel_stds=(1.0, 2.0, 4.0)
    )
    # Blue, green, red: (30 - 1) / 1, (20 - 2) / 2, (11 - 3) / 4.
    np.testing.assert_allclose(normalize(extractor, tf.constant([[[11.0, 20.0, 30.0]]])), [[[29.0, 9.0, 2.0]]])


def test_a_checkpoint_without_heads_is_restored_as_detection(detector, tiny_config, tmp_path, write_arrays):
    """The zoo trains Hourglass-104 from such a checkpoint."""
    network = detector.network
    keys = odapi_keys(detector.family, network)
    variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
    stored = {key: variables[name].numpy() + 1 for name, key in keys.items() if not name.startswith("head_")}
    path = write_arrays(tmp_path / "ckpt-1", stored)
    train = dataclasses.replace(tiny_config.train, fine_tune_checkpoint=path, fine_tune_checkpoint_type="detection")
    report = plan_restore(train, detector, find_trained(train, detector)).report
    assert (report.refusal, report.share, report.unread) == ("", 1.0, ())
    assert {row.path.partition("/")[0] for row in report.restored} == {"backbone"}


@pytest.mark.nightly  # XLA compiles the gradients for several seconds
def test_a_training_step_compiles_under_xla(detector, batch, assert_step_compiles):
    assert_step_compiles(detector, batch)
