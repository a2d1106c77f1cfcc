import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, NUM_DETECTIONS, OUTPUT_NAMES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNet, PredictionHeadParams
from detloom.schemas.model.export_and_quantization import Export
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of

pytestmark = pytest.mark.usefixtures("eager")
TWO = LabelMap.from_names(["red", "green"])


@pytest.fixture(scope="module")
def config(center_net_configs) -> CenterNet:
    """Small and quick to train."""
    base = center_net_configs["mobilenet_v2"]
    head = PredictionHeadParams(num_filters=(16,), kernel_sizes=(3,))
    extractor = dataclasses.replace(
        base.feature_extractor, depth_multiplier=0.1, channel_means=(), channel_stds=(), bgr_ordering=False
    )
    centers = dataclasses.replace(base.object_center_params, center_head_params=head, min_box_overlap_iou=0.7)
    return dataclasses.replace(base, feature_extractor=extractor, object_center_params=centers)


@pytest.fixture(scope="module")
def detector(config) -> Detector:
    keras.utils.set_random_seed(0)
    return build_detector(config, TWO)


@pytest.fixture(scope="module")
def batch(config) -> dict[str, tf.Tensor]:
    """Four images with a red and a green square on grey."""
    random = np.random.default_rng(0)
    images = np.full((4, 96, 96, 3), 128, np.uint8)
    boxes = np.zeros((4, 3, 4), np.float32)
    for i in range(4):
        for k in range(2):
            top, left = random.integers(0, 28), 48 * k + random.integers(0, 28)
            images[i, top : top + 20, left : left + 20] = [255 * (1 - k), 255 * k, 0]
            boxes[i, k] = np.array([top, left, top + 20, left + 20]) / 96
    prepared, true_hw = family_of(config).preprocessing.prepare(images)
    return {
        "image": prepared,
        "true_hw": tf.tile(true_hw[tf.newaxis], [4, 1]),
        "boxes_yxyx_rel": tf.constant(boxes),
        "class_indices": tf.constant([[0, 1, -1]] * 4),
    }


def test_a_detector_has_the_losses_and_detections_of_the_interface(detector, batch):
    assert detector.describe() == "a heat map of 24 x 24 cells"
    assert detector.loss_names == ("class_loss", "size_loss", "offset_loss")
    outputs = detector.forward(batch, training=False)
    assert tuple(detector.losses(outputs, batch)) == detector.loss_names
    found = detector.detections(outputs, batch["true_hw"])
    assert set(found) == set(OUTPUT_NAMES)
    assert found[BOXES].shape == (4, 20, 4)
    assert found[NUM_DETECTIONS].shape == (4,)


def test_no_weight_is_penalized_and_the_heat_map_starts_near_its_bias(detector):
    assert detector.network.losses == []
    np.testing.assert_allclose(detector.network.get_layer("head_classes").bias.numpy(), -2.19)


@pytest.mark.nightly
def test_a_step_in_low_precision_is_close_to_float32(config, assert_low_precision_is_close):
    small = dataclasses.replace(config.image_resizer, min_dimension=64, max_dimension=64)
    model = dataclasses.replace(config, image_resizer=small)
    assert_low_precision_is_close(model, bfloat16=(0.01, 0.4), float16=(0.003, 0.05))


# --- keypoints --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cats(config, keypoint_task) -> Detector:
    """Detect ear and tail of the second class."""
    head = PredictionHeadParams(num_filters=(8,), kernel_sizes=(3,))
    heads = dict.fromkeys(("heatmap_head_params", "offset_head_params", "regress_head_params"), head)
    task = dataclasses.replace(keypoint_task, **heads)
    keras.utils.set_random_seed(0)
    model = dataclasses.replace(config, keypoint_estimation_task=task)
    return build_detector(model, LabelMap.from_names(["dog", "cat"]))


@pytest.mark.slow
def test_keypoints_are_outputs_of_the_onnx_file(cats, assert_onnx_file_detects, tmp_path):
    tf.config.run_functions_eagerly(False)
    assert_onnx_file_detects(cats, tmp_path / "model.onnx", Export(box_units="pixels"))


@pytest.fixture(scope="module")
def cat_batch(batch) -> dict[str, tf.Tensor]:
    """The ear in the middle of the box, no label for the tail of every second cat."""
    middle = (batch["boxes_yxyx_rel"][..., :2] + batch["boxes_yxyx_rel"][..., 2:]) / 2
    points = np.stack([middle, middle - 0.05], axis=2)
    points[:, [0, 2]] = np.nan
    points[::2, :, 1] = np.nan
    return {**batch, "box_weights": tf.constant([[1.0, 1.0, 0.0]] * 4), "keypoints_yx_rel_GP2": tf.constant(points)}


def test_a_family_with_keypoints_names_them_and_asks_for_their_ground_truth(cats, detector):
    family = cats.family
    assert (family.keypoints.class_name, family.keypoints.names) == ("cat", ("ear", "tail"))
    assert "keypoints_yx_rel_GP2" in family.ground_truth_columns
    assert detector.family.keypoints is None
    assert "keypoints_yx_rel_GP2" not in detector.family.ground_truth_columns


def test_losses_of_keypoints_of_parts_add_up_to_those_of_the_batch(cats, cat_batch, assert_losses_of_halves_add_up):
    outputs = cats.forward(cat_batch, training=False)
    assert_losses_of_halves_add_up(cats, outputs, cat_batch)
    assert all(loss.numpy() > 0 for loss in cats.losses(outputs, cat_batch).values())


@pytest.mark.nightly
def test_a_training_step_and_the_exported_graph_with_keypoints_compile_under_xla(
    cats, cat_batch, assert_step_compiles, assert_export_compiles
):
    assert_step_compiles(cats, cat_batch)
    assert_export_compiles(cats)


def test_the_class_with_keypoints_must_be_in_the_label_map(cats):
    with pytest.raises(InputError, match=r"keypoint_class_name: got 'cat', allowed: .*red, green"):
        build_detector(cats.config, TWO)


def test_batch_norms_are_folded(detector, assert_folds):
    assert_folds(detector)


@pytest.mark.slow
def test_batch_norms_before_the_convolutions_of_resnet_v2_are_left(center_net_configs, assert_folds):
    """There is one in each of 3 + 4 + 6 + 3 blocks."""
    base = center_net_configs["resnet50"]
    extractor = dataclasses.replace(base.feature_extractor, backbone="resnet50_v2")
    assert_folds(build_detector(dataclasses.replace(base, feature_extractor=extractor), TWO), num_left=16)
