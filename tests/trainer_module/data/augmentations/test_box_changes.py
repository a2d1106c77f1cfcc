"""The literals are what the Object Detection API's preprocessor gives for the same image and draws."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.augmentations import RandomJitterBoxes, RandomSelfConcatImage
from detloom.trainer_module.data.augmentations.box_changes import jitter_boxes, self_concat

SEED = tf.constant([1, 2])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("DEFAULT", [[0.17, 0.37, 0.77, 0.94], [0.16, 0.176, 0.6, 0.44]]),
        ("EXPAND", [[0.16, 0.235, 0.81, 1.0], [0.08, 0.168, 0.65, 0.44]]),
        ("SHRINK", [[0.26, 0.385, 0.71, 0.895], [0.18, 0.208, 0.55, 0.4]]),
        ("EXPAND_SYMMETRIC", [[0.16, 0.25, 0.84, 1.0], [0.08, 0.168, 0.62, 0.432]]),
        ("SHRINK_SYMMETRIC", [[0.26, 0.385, 0.74, 0.865], [0.18, 0.208, 0.52, 0.392]]),
        ("EXPAND_SYMMETRIC_XY", [[0.25, 0.25, 0.75, 1.0], [0.08, 0.192, 0.62, 0.408]]),
        ("SHRINK_SYMMETRIC_XY", [[0.26, 0.265, 0.74, 0.985], [0.18, 0.232, 0.52, 0.368]]),
    ],
)
def test_each_jitter_mode_equals_values_computed_by_hand(mode, expected, numbered_sample, draws):
    draws(np.array([[0.9, 0.1, 0.6, 0.3], [0.2, 0.8, 0.5, 1.0]]))
    boxes = tf.constant([[0.25, 0.25, 0.75, 1.0], [0.1, 0.2, 0.6, 0.4]])
    config = RandomJitterBoxes(ratio=0.4, jitter_mode=mode)
    jittered = jitter_boxes(config, {**numbered_sample, "boxes_yxyx_rel": boxes}, SEED)
    np.testing.assert_allclose(jittered["boxes_yxyx_rel"], expected, atol=1e-6)


def test_an_image_below_and_beside_itself_has_each_box_four_times(numbered_sample):
    config = RandomSelfConcatImage(concat_vertical_probability=1.0, concat_horizontal_probability=1.0)
    doubled = self_concat(config, numbered_sample, SEED)
    np.testing.assert_array_equal(doubled["image"], np.tile(numbered_sample["image"], [2, 2, 1]))
    expected = [
        [0.125, 0.125, 0.375, 0.5], [0.0, 0.0, 0.0625, 0.125], [0.625, 0.125, 0.875, 0.5], [0.5, 0.0, 0.5625, 0.125],
        [0.125, 0.625, 0.375, 1.0], [0.0, 0.5, 0.0625, 0.625], [0.625, 0.625, 0.875, 1.0], [0.5, 0.5, 0.5625, 0.625],
    ]  # fmt: skip
    np.testing.assert_allclose(doubled["boxes_yxyx_rel"], expected)
    np.testing.assert_array_equal(doubled["class_indices"], [1, 2] * 4)
    np.testing.assert_array_equal(doubled["box_weights"], [1.0, 0.5] * 4)
    # Row y halves, and in the copy below is half the new image further down; columns likewise.
    np.testing.assert_allclose(doubled["keypoints_yx_rel_GP2"][0], [[0.25, 0.25], [0.125, 0.5]])
    np.testing.assert_allclose(doubled["keypoints_yx_rel_GP2"][6], [[0.75, 0.75], [0.625, 1.0]])
    mask = numbered_sample["masks_GHW"][0]
    np.testing.assert_array_equal(doubled["masks_GHW"][6], np.pad(mask, [[8, 0], [4, 0]]))


def test_usually_an_image_is_not_concatenated(numbered_sample):
    shapes = [
        tuple(self_concat(RandomSelfConcatImage(), numbered_sample, tf.constant([i, 0]))["image"].shape[:2])
        for i in range(60)
    ]
    # of 60 images each stands alone in 0.9 * 0.9 = 49 on average
    assert 40 <= shapes.count((8, 4)) <= 57
    assert set(shapes) <= {(8, 4), (16, 4), (8, 8), (16, 8)}
