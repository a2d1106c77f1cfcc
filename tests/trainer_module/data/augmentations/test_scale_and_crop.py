"""The literals are what the Object Detection API's preprocessor gives for the same image."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.augmentations import RandomDownscaleToTargetPixels, RandomImageScale
from detloom.schemas.model.crop_augmentations import RandomScaleCropAndPadToSquare, RandomSquareCropByScale
from detloom.trainer_module.data.augmentations.scale_and_crop import (
    random_downscale,
    random_image_scale,
    scale_crop_and_pad,
    square_crop_by_scale,
)

NAN = np.nan
SEED = tf.constant([1, 2])


def test_a_smaller_scale_leaves_black_below_and_to_the_right(numbered_sample):
    config = RandomScaleCropAndPadToSquare(output_size=8, scale_min=0.5, scale_max=0.5)
    square = scale_crop_and_pad(config, numbered_sample, SEED)
    # the longer side is 8 * 0.5 = 4 pixels, the other 2
    expected = np.zeros((8, 8))
    expected[:4, :2] = [[1, 7], [25, 31], [49, 55], [73, 79]]
    np.testing.assert_allclose(square["image"][..., 0], expected, atol=1e-4)
    np.testing.assert_allclose(square["boxes_yxyx_rel"], [[0.125, 0.0625, 0.375, 0.25], [0.0, 0.0, 0.0625, 0.0625]])
    points = [[[0.25, 0.125], [0.125, 0.25]], [[0.0, 0.0], [NAN, NAN]]]
    np.testing.assert_allclose(square["keypoints_yx_rel_GP2"], points)
    assert square["masks_GHW"].numpy().sum(axis=(1, 2)).tolist() == [2, 1]


def test_a_larger_scale_crops_the_image(numbered_sample):
    config = RandomScaleCropAndPadToSquare(output_size=4, scale_min=1.25, scale_max=1.25)
    square = scale_crop_and_pad(config, numbered_sample, SEED)
    # 5 x 2 pixels, of which at most one row is over: 5 - 4 times a share below 1 is 0, so that the last one goes
    expected = np.zeros((4, 4))
    expected[:, :2] = [[1, 7], [20.2, 26.2], [39.4, 45.4], [58.6, 64.6]]
    np.testing.assert_allclose(square["image"][..., 0], expected, atol=1e-4)
    np.testing.assert_allclose(
        square["boxes_yxyx_rel"], [[0.3125, 0.125, 0.9375, 0.5], [0.0, 0.0, 0.15625, 0.125]], atol=1e-6
    )


def test_a_box_that_is_cut_away_is_dropped(make_sample, draws):
    draws(0.5)
    config = RandomScaleCropAndPadToSquare(output_size=40, scale_min=3.0, scale_max=3.0)
    # 80 x 120 pixels, of which rows 20 to 60 and columns 40 to 80 are kept
    sample = make_sample([(0.0, 0.0, 0.2, 0.2), (0.25, 0.0, 0.5, 0.5)])
    square = scale_crop_and_pad(config, sample, SEED)
    np.testing.assert_array_equal(square["class_indices"], [1])
    np.testing.assert_allclose(square["boxes_yxyx_rel"], [[0.0, 0.0, 0.5, 0.5]], atol=1e-6)


def test_a_square_around_the_centre_is_padded_with_black(numbered_sample):
    config = RandomSquareCropByScale(max_border=8, scale_min=1.25, scale_max=1.25, num_scales=1)
    square = square_crop_by_scale(config, numbered_sample, SEED)
    # The border is 8 / 2 = 4 of 8 rows and 8 / 4 = 2 of 4 columns, so the centre is (4, 2); the side is 1.25 * 8 = 10.
    expected = np.zeros((10, 10, 3))
    # The reference leaves the image's last row and column out, which only its boxes know of.
    expected[1:9, 3:7] = numbered_sample["image"]
    np.testing.assert_array_equal(square["image"], expected)
    np.testing.assert_allclose(square["boxes_yxyx_rel"], [[0.3, 0.4, 0.7, 0.7], [0.1, 0.3, 0.2, 0.4]], atol=1e-6)
    points = [[[0.5, 0.5], [0.3, 0.7]], [[0.1, 0.3], [NAN, NAN]]]
    np.testing.assert_allclose(square["keypoints_yx_rel_GP2"], points, atol=1e-6)
    np.testing.assert_array_equal(square["masks_GHW"][:, 1:9, 3:7], numbered_sample["masks_GHW"])
    np.testing.assert_array_equal(square["box_weights"], [1.0, 0.5])


def test_a_small_square_cuts_and_drops_boxes(numbered_sample):
    config = RandomSquareCropByScale(max_border=8, scale_min=0.5, scale_max=0.5, num_scales=1)
    square = square_crop_by_scale(config, numbered_sample, SEED)
    np.testing.assert_array_equal(
        square["image"][..., 0], [[25, 28, 31, 34], [37, 40, 43, 46], [49, 52, 55, 58], [61, 64, 67, 70]]
    )
    np.testing.assert_allclose(square["boxes_yxyx_rel"], [[0.0, 0.25, 1.0, 1.0]])
    np.testing.assert_allclose(square["keypoints_yx_rel_GP2"], [[[0.5, 0.5], [0.0, 1.0]]])


def test_squares_have_the_configured_sides_and_centres(make_sample):
    config = RandomSquareCropByScale(max_border=16, scale_min=0.5, scale_max=1.0, num_scales=3)
    sample = make_sample([(0.2, 0.2, 0.8, 0.8)])
    sides = [len(square_crop_by_scale(config, sample, tf.constant([i, i]))["image"]) for i in range(24)]
    assert sorted(set(sides)) == [30, 45, 60]  # 0.5, 0.75 and 1 of 60 pixels
    assert min(sides.count(side) for side in set(sides)) >= 3


@pytest.mark.parametrize("hw", [(1, 1), (1, 90), (2, 3), (7, 300)])
def test_images_of_a_few_pixels_stay_valid(hw, make_sample):
    sample = make_sample([(0.0, 0.0, 1.0, 1.0)], hw=hw)
    for i in range(5):
        assert min(square_crop_by_scale(RandomSquareCropByScale(), sample, tf.constant([i, i]))["image"].shape) > 0
        square = scale_crop_and_pad(RandomScaleCropAndPadToSquare(output_size=16), sample, tf.constant([i, i]))
        assert square["image"].shape == (16, 16, 3)
        assert np.isfinite(square["boxes_yxyx_rel"].numpy()).all()


def test_an_image_is_scaled_with_aligned_corners(numbered_sample):
    scaled = random_image_scale(RandomImageScale(min_scale_ratio=0.5, max_scale_ratio=0.5), numbered_sample, SEED)
    np.testing.assert_allclose(scaled["image"][..., 0], [[1, 10], [29, 38], [57, 66], [85, 94]], atol=1e-4)
    np.testing.assert_array_equal(scaled["boxes_yxyx_rel"], numbered_sample["boxes_yxyx_rel"])
    assert scaled["masks_GHW"].shape == (2, 4, 2)


def test_an_image_is_scaled_down_to_the_number_of_pixels(numbered_sample):
    config = RandomDownscaleToTargetPixels(min_target_pixels=18, max_target_pixels=19)
    scaled = random_downscale(config, numbered_sample, SEED)
    # sqrt(18 / 32) = 0.75: 6 x 3
    np.testing.assert_allclose(
        scaled["image"][..., 0],
        [[1, 5, 9], [17, 21, 25], [33, 37, 41], [49, 53, 57], [65, 69, 73], [81, 85, 89]],
        atol=1e-4,
    )
    np.testing.assert_array_equal(
        scaled["masks_GHW"][0], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    )


def test_a_smaller_image_is_not_scaled_up(numbered_sample):
    config = RandomDownscaleToTargetPixels(min_target_pixels=33, max_target_pixels=34)
    assert random_downscale(config, numbered_sample, SEED)["image"].shape == (8, 4, 3)


def test_some_images_are_left_at_their_size(numbered_sample):
    config = RandomDownscaleToTargetPixels(min_target_pixels=8, max_target_pixels=9, random_coef=0.5)
    shapes = [tuple(random_downscale(config, numbered_sample, tf.constant([i, 0]))["image"].shape) for i in range(40)]
    assert 10 <= shapes.count((8, 4, 3)) <= 30
    assert set(shapes) == {(8, 4, 3), (4, 2, 3)}
