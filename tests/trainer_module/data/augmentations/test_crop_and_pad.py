import numpy as np
import tensorflow as tf

from detloom.schemas.model.crop_augmentations import (
    RandomCropPadImage,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropFixedAspectRatioOperation,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
    SsdRandomCropPadOperation,
)
from detloom.trainer_module.data.augmentations.crop_and_pad import (
    random_crop_pad,
    ssd_random_crop_fixed_aspect_ratio,
    ssd_random_crop_pad,
    ssd_random_crop_pad_fixed_aspect_ratio,
)

BOX = (0.25, 0.25, 0.75, 0.75)


def test_the_padded_size_is_relative_to_the_image_before_the_crop(numbered_sample, draws):
    """Literals from the Object Detection API's `random_crop_pad_image`, given the same draws."""
    draws(0.75)
    config = RandomCropPadImage(
        random_coef=1.0,  # the whole image
        min_padded_size_ratio=(1.5, 1.25),
        max_padded_size_ratio=(1.5, 2.0),
        pad_color=(0.0, 0.0, 0.0),
    )
    padded = random_crop_pad(config, numbered_sample, tf.constant([0, 0]))
    # 1.5 * 8 = 12 rows; 5 + 0.75 * (8 - 5) = 7 columns; three quarters of what is added is above and left
    expected = np.zeros((12, 7))
    expected[3:11, 2:6] = numbered_sample["image"][..., 0]
    np.testing.assert_array_equal(padded["image"][..., 0], expected)
    boxes = [[5 / 12, 3 / 7, 0.75, 6 / 7], [0.25, 2 / 7, 1 / 3, 3 / 7]]
    np.testing.assert_allclose(padded["boxes_yxyx_rel"], boxes, atol=1e-6)


def test_a_window_is_padded_with_its_mean_color(make_sample):
    config = RandomCropPadImage(
        min_area=0.25, max_area=0.25, min_padded_size_ratio=(1.0, 1.0), max_padded_size_ratio=(1.0, 1.0)
    )
    padded = random_crop_pad(config, make_sample([BOX], hw=(80, 80)), tf.constant([3, 4]))
    assert padded["image"].shape == (80, 80, 3)
    # A quarter of the image that covers a box of a quarter is the box itself, or the whole image is taken.
    height, width = (padded["boxes_yxyx_rel"][0, 2:] - padded["boxes_yxyx_rel"][0, :2]).numpy()
    np.testing.assert_allclose([height, width], [0.5, 0.5], atol=0.02)


def test_the_padding_of_an_ssd_crop_has_the_color_of_its_operation(make_sample):
    kinds = tuple(
        SsdRandomCropPadOperation(
            min_aspect_ratio=1.0,
            max_aspect_ratio=1.0,
            min_area=0.25,
            max_area=0.25,
            min_padded_size_ratio=(2.0, 2.0),
            max_padded_size_ratio=(2.0, 2.0),
            pad_color_r=red,
        )
        for red in (250.0, 100.0)
    )
    sample = make_sample([BOX], hw=(40, 40))
    colors = set()
    for i in range(12):
        padded = ssd_random_crop_pad(SsdRandomCropPad(operations=kinds), sample, tf.constant([i, i]))["image"].numpy()
        assert padded.shape == (80, 80, 3)  # around 20 x 20 pixels
        values, counts = np.unique(padded.reshape(-1, 3), axis=0, return_counts=True)
        colors.add(tuple(values[counts.argmax()].tolist()))
        assert counts.max() >= 80 * 80 - 20 * 20
    assert colors == {(250, 0, 0), (100, 0, 0)}


def test_crops_of_one_aspect_ratio_have_this_ratio(make_sample):
    sample, sides = make_sample([BOX], hw=(100, 160)), set()
    for i in range(20):
        cropped = ssd_random_crop_fixed_aspect_ratio(SsdRandomCropFixedAspectRatio(), sample, tf.constant([i, i]))
        height, width, _ = cropped["image"].shape
        assert height == width
        sides.add(height)
    assert len(sides) > 5


def test_an_image_without_a_first_crop_is_cropped_to_the_ratio(make_sample):
    kind = SsdRandomCropFixedAspectRatioOperation(max_area=1.0, random_coef=1.0)
    config = SsdRandomCropFixedAspectRatio(operations=(kind,), aspect_ratio=2.0)
    sample = make_sample([BOX], hw=(100, 160))
    assert ssd_random_crop_fixed_aspect_ratio(config, sample, tf.constant([0, 0]))["image"].shape == (80, 160, 3)


def test_windows_are_padded_to_one_aspect_ratio(make_sample):
    config = SsdRandomCropPadFixedAspectRatio(aspect_ratio=1.6)
    for i in range(10):
        padded = ssd_random_crop_pad_fixed_aspect_ratio(config, make_sample([BOX]), tf.constant([i, i]))
        height, width, _ = padded["image"].shape
        assert abs(width - 1.6 * height) <= 1.3  # both sides are rounded
