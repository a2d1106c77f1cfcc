import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.ground_truth import MASKS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.data.class_lookup import ClassLookup, ClassTables
from detloom.trainer_module.data.example_parser import parse_ground_truth, sample_of
from detloom.trainer_module.detectors.preprocess import decode_image

LABEL_MAP = LabelMap.from_names(["cat"])


def parse(serialized, optional=()):
    """Parse a record of class 1."""
    parsed = parse_ground_truth(tf.constant(serialized), ClassTables(ClassLookup(LABEL_MAP)), optional)
    image = decode_image(parsed.image_bytes)
    return sample_of(parsed, image, tf.shape(image)[:2])


def test_an_example_with_only_boxes_and_classes_is_enough(make_example):
    example = tf.train.Example.FromString(make_example([(0.0, 0.0, 0.5, 0.25)], image_hw=(64, 80)))
    for key in (keys.IS_CROWD, keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH, keys.IMAGE_SOURCE_ID):
        del example.features.feature[key]
    sample = parse(example.SerializeToString())
    np.testing.assert_array_equal(sample["is_crowd"], [False])
    np.testing.assert_allclose(sample["area_px"], [32 * 20])
    np.testing.assert_array_equal(sample["box_weights"], [1.0])


def test_an_area_that_is_not_above_0_is_that_of_the_box(make_example):
    example = tf.train.Example.FromString(make_example([(0, 0, 0.5, 0.25)] * 3, image_hw=(64, 80)))
    example.features.feature[keys.AREA].float_list.value[:] = [0.0, -1.0, 7.0]
    np.testing.assert_allclose(parse(example.SerializeToString())["area_px"], [32 * 20, 32 * 20, 7])


def test_a_class_outside_the_label_map_is_refused_with_its_record(make_example):
    example = make_example([(0, 0, 1, 1)], [5], name="img_7")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"class id[\s\S]*img_7[\s\S]*5"):
        parse(example)


@pytest.mark.parametrize("columns", [{}, {"masks": [np.ones((64, 64), np.uint8)] * 3}])
def test_boxes_of_unknown_classes_are_dropped_with_their_columns(make_example, columns):
    boxes = [(0, 0, 0.1 * i, 1) for i in (1, 2, 3)]
    example = tf.train.Example.FromString(
        make_example(boxes, [9, 9, 9], crowds=[0, 1, 0], image_hw=(64, 64), **columns)
    )
    feature = example.features.feature
    feature[keys.AREA].float_list.value[:] = [5, 6, 7]
    feature[keys.CLASS_TEXT].bytes_list.value[:] = [b"dog", b"cat", b"dog"]
    del feature[keys.CLASS_ID]
    classes = ClassTables(ClassLookup(LABEL_MAP, "drop"))
    parsed = parse_ground_truth(tf.constant(example.SerializeToString()), classes, [MASKS] if columns else [])
    sample = sample_of(parsed, tf.zeros([]), tf.constant([64, 64]))
    np.testing.assert_allclose(sample["boxes_yxyx_rel"], [boxes[1]])
    assert [sample[name].numpy().tolist() for name in ("class_indices", "is_crowd", "area_px")] == [[0], [True], [6]]
    assert not columns or sample[MASKS].shape == (1, 64, 64)


@pytest.mark.parametrize("key", [keys.IS_CROWD, keys.AREA, keys.BOX_YMAX])
def test_box_features_of_different_lengths_are_refused_with_their_record(make_example, key):
    example = tf.train.Example.FromString(make_example([(0, 0, 1, 1)], name="img_7"))
    feature = example.features.feature[key]
    (feature.int64_list.value if key == keys.IS_CROWD else feature.float_list.value).extend([1, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"box features of different lengths[\s\S]*img_7"):
        parse(example.SerializeToString())


def with_features(example, floats, ints):
    """Return the example with more features, by their keys."""
    message = tf.train.Example.FromString(example)
    for key, numbers in floats.items():
        message.features.feature[key].float_list.value.extend(numbers)
    for key, numbers in ints.items():
        message.features.feature[key].int64_list.value.extend(numbers)
    return message.SerializeToString()


TWO_BOXES = [(0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 1.0, 1.0)]


def test_boxes_have_the_stored_weight(make_example):
    weighted = with_features(make_example(TWO_BOXES), floats={keys.WEIGHT: [0.5, 2.0]}, ints={})
    np.testing.assert_array_equal(parse(weighted)["box_weights"], [0.5, 2.0])


def test_masks_are_read_on_request_and_a_box_without_one_has_none(make_example):
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3, 2:5] = 1
    masked = make_example(TWO_BOXES, image_hw=(4, 6), masks=[mask, None])
    sample = parse(masked, ["masks_GHW"])
    np.testing.assert_array_equal(sample["masks_GHW"], [mask, np.zeros((4, 6))])
    assert "masks_GHW" not in parse(masked)
    without = parse(make_example(TWO_BOXES, image_hw=(4, 6)), ["masks_GHW"])
    np.testing.assert_array_equal(without["masks_GHW"], np.zeros((2, 4, 6)))


def test_keypoints_are_read_on_request_and_those_not_labelled_are_nan(make_example):
    """The first box has two points, of which the second is not labelled, the second box has one."""
    nan = np.nan
    example = make_example(TWO_BOXES, keypoints=[[(0.25, 0.5, 2), (0.0, 0.0, 0)], [(0.75, 1.0, 1)]])
    sample = parse(example, ["keypoints_yx_rel_GP2"])
    expected = [[[0.25, 0.5], [nan, nan]], [[0.75, 1.0], [nan, nan]]]
    np.testing.assert_array_equal(sample["keypoints_yx_rel_GP2"], expected)


@pytest.mark.parametrize(
    ("num_y", "num_x", "visibility", "counts"),
    [(3, 2, [], []), (2, 2, [2], []), (3, 3, [], [2, 2]), (3, 3, [], [4, -1]), (3, 3, [], [])],
)
def test_keypoints_that_do_not_fit_the_boxes_name_their_record(num_y, num_x, visibility, counts, make_example):
    points = {keys.KEYPOINT_Y: [0.5] * num_y, keys.KEYPOINT_X: [0.5] * num_x}
    numbers = {keys.KEYPOINT_VISIBILITY: visibility, keys.NUM_KEYPOINTS: counts}
    example = with_features(make_example(TWO_BOXES, name="img_7"), floats=points, ints=numbers)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"box features of different lengths[\s\S]*img_7"):
        parse(example, ["keypoints_yx_rel_GP2"])


def test_an_image_without_boxes_has_empty_columns(make_example):
    sample = parse(
        make_example([], image_hw=(4, 6)),
        ["masks_GHW", "keypoints_yx_rel_GP2"],
    )
    assert sample["boxes_yxyx_rel"].shape == (0, 4)
    assert [sample[name].shape for name in ("is_crowd", "area_px", "box_weights")] == [(0,)] * 3
    assert (sample["masks_GHW"].shape[0], sample["keypoints_yx_rel_GP2"].shape[0]) == (0, 0)
