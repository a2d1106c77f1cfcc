"""The literals are what the Object Detection API's preprocessor gives for the same image and draws."""

import numpy as np
import tensorflow as tf

from detloom.schemas.model.augmentations import RandomAbsolutePadImage, RandomPadImage
from detloom.schemas.model.crop_augmentations import SsdRandomCropPadFixedAspectRatio
from detloom.trainer_module.data.augmentations.pads import pad_to_aspect_ratio, random_absolute_pad, random_pad

NAN = np.nan
SEED = tf.constant([1, 2])


def test_an_image_is_padded_with_its_mean_up_to_twice_the_size(numbered_sample, draws):
    draws(0.75)
    padded = random_pad(RandomPadImage(), numbered_sample, SEED)
    # 8 + 0.75 * 8 = 14 rows, of which 0.75 * 6 = 4 are above; 4 + 3 = 7 columns, of which 2 are left
    expected = np.full((14, 7), 47.5)
    expected[4:12, 2:6] = numbered_sample["image"][..., 0]
    np.testing.assert_allclose(padded["image"][..., 0], expected)
    boxes = [[6 / 14, 3 / 7, 10 / 14, 6 / 7], [4 / 14, 2 / 7, 5 / 14, 3 / 7]]
    np.testing.assert_allclose(padded["boxes_yxyx_rel"], boxes, atol=1e-6)
    points = [[[8 / 14, 4 / 7], [6 / 14, 6 / 7]], [[4 / 14, 2 / 7], [NAN, NAN]]]
    np.testing.assert_allclose(padded["keypoints_yx_rel_GP2"], points, atol=1e-6)
    np.testing.assert_array_equal(padded["masks_GHW"][:, 4:12, 2:6], numbered_sample["masks_GHW"])
    assert padded["masks_GHW"].shape == (2, 14, 7)


def test_an_image_is_padded_up_to_a_size_in_pixels(numbered_sample):
    config = RandomPadImage(
        min_image_height=9, min_image_width=5, max_image_height=10, max_image_width=6, pad_color=(0.0, 0.0, 0.0)
    )
    padded = random_pad(config, numbered_sample, SEED)
    expected = np.zeros((9, 5))  # below 10 and below 6; of one row or column none is above or left
    expected[:8, :4] = numbered_sample["image"][..., 0]
    np.testing.assert_allclose(padded["image"][..., 0], expected)
    boxes = [[2 / 9, 0.2, 6 / 9, 0.8], [0.0, 0.0, 1 / 9, 0.2]]
    np.testing.assert_allclose(padded["boxes_yxyx_rel"], boxes, atol=1e-6)


def test_an_image_above_the_largest_size_is_unchanged(numbered_sample):
    config = RandomPadImage(min_image_height=2, min_image_width=2, max_image_height=3, max_image_width=3)
    padded = random_pad(config, numbered_sample, SEED)
    np.testing.assert_array_equal(padded["image"], numbered_sample["image"])


def test_an_image_is_padded_by_pixels(numbered_sample, draws):
    draws(0.75)
    padded = random_absolute_pad(
        RandomAbsolutePadImage(max_height_padding=5, max_width_padding=9), numbered_sample, SEED
    )
    # 0.75 * 5 = 3 rows, 2 of them above; 0.75 * 9 = 6 columns, 4 of them left
    expected = np.full((11, 10), 47.5)
    expected[2:10, 4:8] = numbered_sample["image"][..., 0]
    np.testing.assert_allclose(padded["image"][..., 0], expected)
    boxes = [[4 / 11, 0.5, 8 / 11, 0.8], [2 / 11, 0.4, 3 / 11, 0.5]]
    np.testing.assert_allclose(padded["boxes_yxyx_rel"], boxes, atol=1e-6)


def test_an_aspect_ratio_is_reached_by_black_below_and_to_the_right(numbered_sample):
    config = SsdRandomCropPadFixedAspectRatio(
        aspect_ratio=1.5, min_padded_size_ratio=(1.0, 1.0), max_padded_size_ratio=(1.0, 1.0)
    )
    padded = pad_to_aspect_ratio(config, numbered_sample, SEED)
    expected = np.zeros((8, 12))  # 8 * 1.5 columns
    expected[:, :4] = numbered_sample["image"][..., 0]
    np.testing.assert_allclose(padded["image"][..., 0], expected)
    boxes = [[0.25, 1 / 12, 0.75, 4 / 12], [0.0, 0.0, 0.125, 1 / 12]]
    np.testing.assert_allclose(padded["boxes_yxyx_rel"], boxes, atol=1e-6)
    assert padded["masks_GHW"].shape == (2, 8, 12)


def test_an_aspect_ratio_is_reached_at_a_larger_size(numbered_sample):
    config = SsdRandomCropPadFixedAspectRatio(
        aspect_ratio=0.4, min_padded_size_ratio=(1.5, 1.5), max_padded_size_ratio=(1.5, 1.5)
    )
    padded = pad_to_aspect_ratio(config, numbered_sample, SEED)
    # 4 / 0.4 = 10 rows would do; 1.5 times the 8 there are is 12, so 1.2 times 10 x 4, or 12 x 5
    assert padded["image"].shape == (12, 5, 3)
    boxes = [[2 / 12, 0.2, 0.5, 0.8], [0.0, 0.0, 1 / 12, 0.2]]
    np.testing.assert_allclose(padded["boxes_yxyx_rel"], boxes, atol=1e-6)
