"""The literals are what the Object Detection API's preprocessor gives for the same image."""

import numpy as np
import pytest

from detloom.trainer_module.data.augmentations.geometry import (
    flip_horizontally,
    flip_vertically,
    rotate_counter_clockwise,
)

NAN = np.nan
BOXES = [(0.1, 0.2, 0.4, 0.9), (0.0, 0.5, 1.0, 0.75)]


@pytest.mark.parametrize("flip", [flip_horizontally, flip_vertically])
def test_flipping_twice_changes_nothing(flip, make_sample):
    sample = make_sample(BOXES, extras=True)
    assert_equal(flip(flip(sample)), sample)


def test_two_turns_are_two_flips(make_sample):
    sample = make_sample(BOXES, extras=True)
    turned = rotate_counter_clockwise(rotate_counter_clockwise(sample))
    assert_equal(turned, flip_vertically(flip_horizontally(sample)))


@pytest.mark.parametrize(
    ("flip", "pixels", "boxes", "mask", "points"),
    [
        (
            flip_horizontally,
            lambda image: image[0, :, 0] == [10, 7, 4, 1],
            [[0.25, 0.0, 0.75, 0.75], [0.0, 0.75, 0.125, 1.0]],
            (0, [0, 0, 1, 1]),
            [[[0.5, 0.5], [0.25, 0.0]], [[0.0, 1.0], [NAN, NAN]]],
        ),
        (
            flip_vertically,
            lambda image: image[:, 0, 0] == [85, 73, 61, 49, 37, 25, 13, 1],
            [[0.25, 0.25, 0.75, 1.0], [0.875, 0.0, 1.0, 0.25]],
            (7, [1, 1, 0, 0]),
            [[[0.5, 0.5], [0.75, 1.0]], [[1.0, 0.0], [NAN, NAN]]],
        ),
    ],
)
def test_a_flip_moves_all_ground_truth(flip, pixels, boxes, mask, points, numbered_sample):
    flipped = flip(numbered_sample)
    assert np.all(pixels(flipped["image"].numpy()))
    np.testing.assert_allclose(flipped["boxes_yxyx_rel"], boxes)
    row, values = mask
    np.testing.assert_array_equal(flipped["masks_GHW"][1, row], values)
    np.testing.assert_allclose(flipped["keypoints_yx_rel_GP2"], points)


def test_a_rotation_moves_all_ground_truth(numbered_sample):
    turned = rotate_counter_clockwise(numbered_sample)
    np.testing.assert_array_equal(turned["image"][0, :, 0], [10, 22, 34, 46, 58, 70, 82, 94])
    np.testing.assert_allclose(turned["boxes_yxyx_rel"], [[0.0, 0.25, 0.75, 0.75], [0.75, 0.0, 1.0, 0.125]])
    # the diagonal of every fifth pixel, which ran down to the right, now runs up
    expected = [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 1, 0, 0]]
    np.testing.assert_array_equal(turned["masks_GHW"][0], expected)
    expected = [[[0.5, 0.5], [0.0, 0.25]], [[1.0, 0.0], [NAN, NAN]]]
    np.testing.assert_allclose(turned["keypoints_yx_rel_GP2"], expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (flip_horizontally, [[[0.25, 0.0], [0.5, 0.5]], [[NAN, NAN], [0.0, 1.0]]]),
        (flip_vertically, [[[0.75, 1.0], [0.5, 0.5]], [[NAN, NAN], [1.0, 0.0]]]),
        (rotate_counter_clockwise, [[[0.0, 0.25], [0.5, 0.5]], [[NAN, NAN], [1.0, 0.0]]]),
    ],
)
def test_keypoints_are_permuted(change, expected, numbered_sample):
    np.testing.assert_allclose(change(numbered_sample, (1, 0))["keypoints_yx_rel_GP2"], expected)


def assert_equal(one, other):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-6, err_msg=name)
