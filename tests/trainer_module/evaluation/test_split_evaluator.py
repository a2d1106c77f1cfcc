import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.ground_truth import TRAINING_COLUMNS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT_METRIC_NAMES, METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.trainer_module.data import input_pipeline
from detloom.trainer_module.data.input_pipeline import build_eval_dataset
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.detectors.one_stage.family import SsdFamily
from detloom.trainer_module.evaluation.coco_metrics import ClassMetrics, CocoMetrics
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics
from detloom.trainer_module.evaluation.split_evaluator import Evaluation, SplitEvaluator, as_training_batch

LABEL_MAP = LabelMap.from_names(["red", "green"])
BOXES = ((0.125, 0.125, 0.5, 0.5), (0.25, 0.5, 0.75, 1.0), (0.0, 0.0, 0.25, 0.25))


def outlines_of(boxes):
    """Return a fake detector that finds the same boxes in every image, of class 1 with a score of 0.75."""
    count = len(boxes)

    def detections(outputs, true_hw_B2=None):
        batch_size = tf.shape(outputs)[0]
        return {
            names.BOXES: tf.tile(tf.constant(boxes, tf.float32, [1, count, 4]), [batch_size, 1, 1]),
            names.SCORES: tf.fill([batch_size, count], 0.75),
            names.CLASSES: tf.fill([batch_size, count], 1.0),
            names.NUM_DETECTIONS: tf.fill([batch_size], float(count)),
        }

    def losses(outputs, batch):
        num_boxes = tf.math.count_nonzero(batch["class_indices"] >= 0, dtype=tf.float32)
        return {"class_loss": num_boxes, "box_loss": tf.constant(0.5)}

    return SimpleNamespace(
        label_map=LABEL_MAP,
        forward=lambda batch, training: batch["image"],
        detections=detections,
        losses=losses,
    )


@pytest.fixture
def dataset_of(tmp_path, write_records, tiny_config):
    def build(records, batch_size=2):
        file = str(write_records(tmp_path / "Split-eval" / "data", records))
        return build_eval_dataset(tiny_config, LABEL_MAP, [file], batch_size=batch_size), [file]

    return build


@pytest.fixture
def five_images(make_example):
    """Images with 0, 1, 2, 3 and 1 boxes, all of class 1."""
    return [make_example(BOXES[:count], name=str(i)) for i, count in enumerate((0, 1, 2, 3, 1))]


def metrics_of(value=0.5, per_class=()):
    numbers = dict.fromkeys(METRIC_NAMES, value)
    return CocoMetrics(**numbers, per_class=per_class, num_images=4, num_boxes=4)


def evaluation_of(per_class=(), **losses):
    return Evaluation(metrics=metrics_of(per_class=per_class), losses=losses, num_images=4, seconds=1.5)


def class_row(name, ap):
    return ClassMetrics(class_id=1, name=name, num_boxes=3, **dict.fromkeys(METRIC_NAMES, ap))


def test_detections_are_matched_with_the_ground_truth_of_their_image(dataset_of, five_images):
    """The first box is found in 4 of 5 images with 7 boxes; all scores are equal, and the first image has no box.

    Recall ends at 4 of 7, with a precision of at most 4/5 up to there: 0.8 at the recalls 0, 0.01, ... 0.57.
    """
    evaluation = SplitEvaluator(outlines_of(BOXES[:1]), *dataset_of(five_images))()
    assert (evaluation.num_images, evaluation.keypoint_metrics) == (5, None)
    assert evaluation.metrics.num_boxes == 7
    assert evaluation.value_of("AR100") == pytest.approx(4 / 7)
    assert evaluation.value_of("AP50") == pytest.approx(0.8 * 58 / 101)
    assert evaluation.value_of("AP/red") == pytest.approx(0.8 * 58 / 101)
    assert evaluation.explain("AP/green") == "no ground truth of this class"


def test_losses_of_keypoints_are_no_metrics_of_keypoints():
    points = KeypointMetrics(**dict.fromkeys(KEYPOINT_METRIC_NAMES, -1.0))
    evaluation = replace(evaluation_of(keypoint_heatmap_loss=2.0), keypoint_metrics=points)
    assert evaluation.value_of("keypoint_heatmap_loss") == 2
    assert evaluation.explain("keypoint_heatmap_loss") is None
    assert evaluation.explain("keypoint_AP") == "no ground truth with labelled keypoints"


def test_losses_are_means_over_the_images_and_loss_is_their_sum(dataset_of, five_images):
    """The batches have 2, 2 and 1 images with 0 + 1, 2 + 3 and 1 boxes: (2 * 1 + 2 * 5 + 1 * 1) / 5."""
    evaluator = SplitEvaluator(outlines_of(BOXES), *dataset_of(five_images))
    assert evaluator().losses == pytest.approx({"loss": 3.1, "class_loss": 2.6, "box_loss": 0.5})


@pytest.mark.slow
def test_numbers_of_a_real_network_are_repeatable(one_level_config, dataset_of, five_images):
    """They are bit-equal, and one graph serves all shapes."""
    tf.keras.utils.set_random_seed(0)
    detector = build_detector(one_level_config.model, LABEL_MAP)
    evaluator = SplitEvaluator(detector, *dataset_of(five_images))
    first, second = evaluator(), evaluator()
    assert (first.metrics, first.losses) == (second.metrics, second.losses)
    assert evaluator._measure.experimental_get_tracing_count() == 1
    expected = dict.fromkeys(detector.loss_names, 0.0)
    for batch, weight in zip(dataset_of(five_images)[0], (2, 2, 1), strict=True):
        seen = as_training_batch(batch)
        for name, loss in detector.losses(detector.forward(seen, training=False), seen).items():
            expected[name] += weight * float(loss) / 5
    assert {name: first.losses[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_crowd_is_in_the_ground_truth_but_in_no_loss(dataset_of, make_example):
    with_crowd, _ = dataset_of([make_example(BOXES[:2], [1, 1], crowds=[0, 1])], batch_size=1)
    batch = next(iter(with_crowd))
    assert batch["class_indices"][:, :3].numpy().tolist() == [[0, 0, -1]]
    seen = as_training_batch(batch)
    assert seen["class_indices"][0, :3].numpy().tolist() == [0, -1, -1]
    assert seen["box_weights"][0, :3].numpy().tolist() == [1, 0, 0]


def test_boxes_for_losses_are_relative_to_the_padded_image():
    """An image of 32 rows in a network input of 64: its lower edge is at 0.5."""
    batch = {
        "image": tf.zeros([1, 64, 64, 3]),
        "true_hw": tf.constant([[32, 64]]),
        "boxes_yxyx_rel": tf.constant([[[0.5, 0.25, 1.0, 0.75]]]),
        "class_indices": tf.constant([[1]]),
        "is_crowd": tf.constant([[False]]),
        "box_weights": tf.constant([[0.5]]),
    }
    for call in (as_training_batch, tf.function(as_training_batch)):
        seen = call(batch)
        np.testing.assert_allclose(seen["boxes_yxyx_rel"][0, 0], [0.25, 0.25, 0.5, 0.75])
        assert seen["box_weights"].numpy().tolist() == [[0.5]]


def test_split_without_boxes_has_no_metrics_and_an_explanation(dataset_of, make_example):
    dataset, files = dataset_of([make_example(name="a"), make_example(name="b"), make_example(name="c")])
    evaluation = SplitEvaluator(outlines_of(BOXES), dataset, files)()
    assert (evaluation.value_of("AP"), evaluation.explain("AP")) == (-1.0, "no ground truth")
    assert (evaluation.value_of("AP/red"), evaluation.explain("AP/red")) == (-1.0, "no ground truth of this class")
    assert "AP -1.000, AP50 -1.000 (-1: no ground truth), loss 0.500" in evaluation.sentence()


def test_split_without_images_is_refused(dataset_of):
    evaluator = SplitEvaluator(outlines_of(BOXES), *dataset_of([]))
    with pytest.raises(InputError, match="Split-eval: got no image"):
        evaluator()


def test_unusable_record_is_named_in_one_sentence(dataset_of, make_example):
    evaluator = SplitEvaluator(outlines_of(BOXES), *dataset_of([make_example(BOXES[:1], [7])]))
    with pytest.raises(InputError, match=r"Split-eval: .*class id") as caught:
        evaluator()
    assert "\n" not in str(caught.value)


def test_numbers_are_found_by_name():
    evaluation = evaluation_of((class_row("red", 0.25),), loss=1.5, class_loss=1.0)
    values = [evaluation.value_of(name) for name in ("AP50", "AP/red", "loss", "class_loss")]
    assert values == [0.5, 0.25, 1.5, 1.0]
    assert {name: evaluation.value_of(name) for name in evaluation.numbers()} == evaluation.numbers()
    assert evaluation.explain("loss") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AP/blue", "'AP/blue': got the class 'blue', allowed: .*red"),
        ("loss", "got 'loss', allowed.*: AP, .*AP/<class name>"),
    ],
)
def test_unknown_number_is_refused_by_name(name, message):
    evaluation = evaluation_of((class_row("red", 0.25),))
    with pytest.raises(InputError, match=message):
        evaluation.value_of(name)


# --- masks and keypoints --------------------------------------------------------------------------------------------


class PointsAndMasks(SsdFamily):
    ground_truth_columns = (*TRAINING_COLUMNS, "masks_GHW", "keypoints_yx_rel_GP2")
    keypoints = Keypoints("red", ("top", "bottom"), (0.05, 0.05))


def test_masks_and_keypoints_are_measured_with_their_boxes(
    monkeypatch, tmp_path, write_records, tiny_config, make_example
):
    """The box and the keypoints are exact; the mask, the upper half of the box, is exact up to its edge."""
    monkeypatch.setattr(input_pipeline, "family_of", PointsAndMasks)
    upper = np.zeros((64, 64), np.uint8)
    upper[16:32, 16:48] = 1
    box, points = (0.25, 0.25, 0.75, 0.75), [(0.25, 0.5, 2), (0.75, 0.5, 2)]
    record = make_example([box], masks=[upper], keypoints=[points])
    dataset = build_eval_dataset(
        tiny_config, LABEL_MAP, [str(write_records(tmp_path / "data", [record]))], batch_size=1
    )
    detector = outlines_of([box])
    whole = detector.detections

    def detections(outputs, true_hw_B2=None):
        found = whole(outputs)
        mask = tf.concat([tf.ones([1, 1, 17, 33]), tf.zeros([1, 1, 16, 33])], axis=2)
        extra = {names.MASKS: mask, names.KEYPOINTS: tf.constant([[[[0.25, 0.5], [0.75, 0.5]]]])}
        return {**found, **extra, names.KEYPOINT_SCORES: tf.ones([1, 1, 2])}

    detector.detections = detections
    evaluation = SplitEvaluator(detector, dataset, keypoints=PointsAndMasks.keypoints)()
    assert evaluation.value_of("AP") == pytest.approx(1)
    assert evaluation.value_of("keypoint_AP") == pytest.approx(1)
    assert 0.5 < evaluation.value_of("mask_AP") <= 1
    assert evaluation.value_of("mask_AP/red") == evaluation.value_of("mask_AP")
    assert "mask AP" in evaluation.sentence()
    assert "keypoint AP 1.000" in evaluation.sentence()
    assert {"mask_AP50", "keypoint_ARl", "mask_AP/green"} <= set(evaluation.numbers())
    assert evaluation.explain("mask_AP/green") == "no ground truth of this class"
    values = json.loads(json.dumps(evaluation.to_dict()))
    assert values["mask_metrics"]["AP"] == evaluation.value_of("mask_AP")
    assert values["keypoint_metrics"]["AP"] == evaluation.value_of("keypoint_AP")
    plain = replace(evaluation, keypoint_metrics=None)
    with pytest.raises(InputError, match="'keypoint_AP', allowed in this evaluation"):
        plain.value_of("keypoint_AP")
