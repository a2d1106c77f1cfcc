"""Masks and keypoints on their way from a record to a batch, for a family that learns both."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import TRAINING_COLUMNS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import Mosaic, RandomHorizontalFlip
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.trainer_module.data import input_pipeline
from detloom.trainer_module.data.class_lookup import ClassLookup, ClassTables
from detloom.trainer_module.data.example_parser import (
    KeypointClass,
    keypoint_class_of,
    parse_ground_truth,
    sample_of,
)
from detloom.trainer_module.data.input_pipeline import build_eval_dataset, build_train_dataset, example_keys
from detloom.trainer_module.detectors import supported
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.detectors.one_stage.family import SsdFamily
from detloom.trainer_module.evaluation.split_evaluator import as_training_batch

LABEL_MAP = LabelMap(((1, "car"), (7, "person")))
KEYPOINTS = Keypoints("person", ("head", "foot"), (0.05, 0.05))
NAN = float("nan")
MASKS, POINTS = "masks_GHW", "keypoints_yx_rel_GP2"


class PointsAndMasks(SsdFamily):
    ground_truth_columns = (*TRAINING_COLUMNS, MASKS, POINTS)
    keypoints = KEYPOINTS


@pytest.fixture
def config(tiny_config, changed, monkeypatch):
    """Images are resized to 32 x 64 and padded to 64 x 64."""
    for module in (input_pipeline, supported):
        monkeypatch.setattr(module, "family_of", PointsAndMasks)
    resizer = KeepAspectRatioResizer(min_dimension=32, max_dimension=64, pad_to_max_dimension=True)
    values = {
        "model.image_resizer": resizer,
        "train.augmentations": (),
        "train_input.max_number_of_boxes": 3,
        "train_input.shuffle": False,
    }
    return changed(tiny_config, values)


def half_of(image_hw, rows):
    mask = np.zeros(image_hw, np.uint8)
    mask[rows] = 1
    return mask


MASKS_IN_INPUT = [half_of((64, 64), slice(16)), half_of((64, 64), slice(16, 32))]
POINTS_IN_INPUT = [[[NAN, NAN]] * 2, [[0.375, 0.25], [NAN, NAN]]]


@pytest.fixture
def shards(tmp_path, make_example, write_records):
    """A car without points, a person with one of two points labelled, and a crowd without a mask; 16 x 32 pixels."""
    boxes = [(0, 0, 0.5, 1), (0.5, 0, 1, 1), (0, 0, 1, 1)]
    record = make_example(
        boxes,
        [1, 7, 7],
        image_hw=(16, 32),
        crowds=[0, 0, 1],
        masks=[half_of((16, 32), slice(8)), half_of((16, 32), slice(8, 16)), None],
        keypoints=[[], [(0.75, 0.25, 2), (0, 0, 0)], []],
    )
    return [str(write_records(tmp_path / "data", [record]))]


def test_a_training_batch_has_the_masks_and_points_of_the_padded_image(config, shards):
    """The image fills the upper half of the input, so the masks are its first and second quarter of rows."""
    dataset = build_train_dataset(config, LABEL_MAP, shards, batch_size=2)
    assert dataset.element_spec[MASKS] == tf.TensorSpec([2, 3, 64, 64], tf.uint8)
    assert dataset.element_spec[POINTS] == tf.TensorSpec([2, 3, 2, 2], tf.float32)
    batch = next(iter(dataset))
    assert batch["class_indices"][0].numpy().tolist() == [0, 1, -1]
    np.testing.assert_array_equal(batch[MASKS][0], [*MASKS_IN_INPUT, np.zeros((64, 64))])
    np.testing.assert_array_equal(batch[POINTS][0], [*POINTS_IN_INPUT, [[NAN, NAN]] * 2])


def test_an_evaluation_batch_has_both_masks_of_the_input_and_stored_masks(config, shards):
    """Boxes and points are relative to the image without padding; the training batch made of it is as above."""
    batch = next(iter(build_eval_dataset(config, LABEL_MAP, shards, batch_size=1)))
    np.testing.assert_allclose(batch[POINTS][0, 1, 0], [0.75, 0.25])
    stored = tf.io.decode_png(batch["mask_pngs"][0, 1])[..., 0]
    np.testing.assert_array_equal(stored, half_of((16, 32), slice(8, 16)))
    assert batch["mask_pngs"][0, 2] == b""
    seen = as_training_batch(batch)
    for name, expected in ((MASKS, MASKS_IN_INPUT), (POINTS, POINTS_IN_INPUT)):
        np.testing.assert_array_equal(seen[name][0, :2], expected)
        assert seen[name].shape[1] == 64


def test_an_object_without_a_mask_is_an_error_with_the_record(config, tmp_path, make_example, write_records):
    record = make_example([(0, 0, 1, 1)], [1], name="img_7")
    shards = [str(write_records(tmp_path / "data", [record]))]
    dataset = build_eval_dataset(config, LABEL_MAP, shards, batch_size=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"an object without a mask[\s\S]*img_7"):
        next(iter(dataset))
    assert set(example_keys(config, LABEL_MAP, shards, step=0, only_broken=True)) == {"img_7"}


def test_a_mask_of_another_size_is_an_error_with_the_record(config, tmp_path, make_example, write_records):
    record = make_example([(0, 0, 1, 1)], [1], image_hw=(16, 32), masks=[np.ones((16, 16))], name="img_7")
    shards = [str(write_records(tmp_path / "data", [record]))]
    assert example_keys(config, LABEL_MAP, shards, step=0, only_broken=True) == ["img_7"] * 2
    parsed = parse_ground_truth(tf.constant(record), ClassTables(ClassLookup(LABEL_MAP)), [MASKS])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a mask of another size[\s\S]*img_7"):
        sample_of(parsed, tf.zeros([]), tf.constant([16, 32]))


def parse_points(record, num_points=2):
    table = ClassTables(ClassLookup(LABEL_MAP))
    parsed = parse_ground_truth(tf.constant(record), table, [POINTS], KeypointClass(1, num_points))
    assert parsed.columns[POINTS].shape[1:] == (num_points, 2)
    return parsed.columns[POINTS].numpy()


BOX = (0.0, 0.0, 1.0, 1.0)
POINT = (0.5, 0.25, 2)


def test_another_number_of_points_names_record_got_and_allowed(make_example):
    record = make_example([BOX, BOX], [1, 7], keypoints=[[POINT], [POINT] * 3], name="img_7")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"number of keypoints[\s\S]*img_7[\s\S]*3[\s\S]*2"):
        parse_points(record)


def test_points_of_another_class_are_nan_and_a_record_without_points_has_none(make_example):
    record = make_example([BOX, BOX], [1, 7], keypoints=[[POINT] * 3, [POINT] * 2])
    np.testing.assert_array_equal(parse_points(record), [[[NAN, NAN]] * 2, [[0.5, 0.25]] * 2])
    np.testing.assert_array_equal(parse_points(make_example([BOX], [7])), [[[NAN, NAN]] * 2])
    assert parse_points(make_example()).shape == (0, 2, 2)


def test_records_of_the_object_detection_api_store_all_points_but_count_the_labelled(make_example):
    """Its `create_coco_tf_record.py` writes `num_keypoints` of the annotation: 1 and 0 of 2 points."""
    record = make_example([BOX, BOX], [7, 1], keypoints=[[POINT, (0, 0, 0)], [(0, 0, 0)] * 2])
    example = tf.train.Example.FromString(record)
    example.features.feature["image/object/keypoint/num"].int64_list.value[:] = [1, 0]
    points = parse_points(example.SerializeToString())
    np.testing.assert_array_equal(points, [[[0.5, 0.25], [NAN, NAN]], [[NAN, NAN]] * 2])


def test_a_class_of_keypoints_that_the_label_map_lacks_is_refused():
    assert keypoint_class_of(KEYPOINTS, LABEL_MAP) == KeypointClass(1, 2)
    assert keypoint_class_of(None, LABEL_MAP) is None
    with pytest.raises(InputError, match=r"'person'.*allowed: car"):
        keypoint_class_of(KEYPOINTS, LabelMap(((1, "car"),)))


def test_mosaic_is_refused_for_masks_and_keypoints(config, changed):
    mixed = changed(config, {"train.augmentations": (RandomHorizontalFlip(), Mosaic())})
    (sentence,) = supported.unsupported_settings(mixed)
    assert sentence.startswith("train.augmentations[1]: got Mosaic")
    assert "masks and keypoints" in sentence
