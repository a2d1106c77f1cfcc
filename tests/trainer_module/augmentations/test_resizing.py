"""The literals are what the Object Detection API's preprocessor gives for the same picture."""

import numpy as np
import tensorflow as tf

from detloom.schemas.augmentation_config import RandomDownscaleToTargetPixels, RandomImageScale
from detloom.trainer_module.augmentations.resizing import random_downscale, random_image_scale

SEED = tf.constant([1, 2])


def test_a_picture_is_scaled_with_its_corners_in_place(numbered_sample):
    scaled = random_image_scale(RandomImageScale(min_scale_ratio=0.5, max_scale_ratio=0.5), numbered_sample, SEED)
    np.testing.assert_allclose(scaled["image"][..., 0], [[1, 10], [29, 38], [57, 66], [85, 94]], atol=1e-4)
    np.testing.assert_array_equal(scaled["boxes_yxyx_rel"], numbered_sample["boxes_yxyx_rel"])
    assert scaled["masks_GHW"].shape == (2, 4, 2)


def test_a_picture_is_scaled_down_to_the_number_of_pixels(numbered_sample):
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


def test_a_smaller_picture_is_not_scaled_up(numbered_sample):
    config = RandomDownscaleToTargetPixels(min_target_pixels=33, max_target_pixels=34)
    assert random_downscale(config, numbered_sample, SEED)["image"].shape == (8, 4, 3)


def test_some_pictures_are_left_at_their_size(numbered_sample):
    config = RandomDownscaleToTargetPixels(min_target_pixels=8, max_target_pixels=9, random_coef=0.5)
    shapes = [tuple(random_downscale(config, numbered_sample, tf.constant([i, 0]))["image"].shape) for i in range(40)]
    assert 10 <= shapes.count((8, 4, 3)) <= 30
    assert set(shapes) == {(8, 4, 3), (4, 2, 3)}
