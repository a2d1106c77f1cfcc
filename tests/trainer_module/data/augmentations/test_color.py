import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.augmentations import (
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
)
from detloom.schemas.model.color_augmentations import (
    AdjustGamma,
    RandomJpegQuality,
    RandomPatchGaussian,
    RandomPixelValueScale,
    RandomRgbToGray,
)
from detloom.trainer_module.data.augmentations.apply import apply_all, apply_augmentation
from detloom.trainer_module.data.augmentations.color import change_colors

SEED = tf.constant([1, 2], tf.int32)
BRIGHTNESS = RandomAdjustBrightness(max_delta=0.3)
CONTRAST = RandomAdjustContrast(min_delta=0.5, max_delta=2.0)
HUE = RandomAdjustHue(max_delta=0.5)
SATURATION = RandomAdjustSaturation(min_delta=0.0, max_delta=3.0)
ORDERS = {
    "brightness_first": (BRIGHTNESS, CONTRAST, SATURATION, HUE),
    "brightness_last": (HUE, CONTRAST, SATURATION, BRIGHTNESS),
    "brightness_between": (HUE, SATURATION, BRIGHTNESS, SATURATION, HUE),
    "contrast_last": (SATURATION, BRIGHTNESS, HUE, CONTRAST),
}


def seeds_of(changes):
    return [tf.constant([3, i]) for i in range(len(changes))]


def as_tensorflow_has_it(changes, image, seeds):
    for change, seed in zip(changes, seeds, strict=True):
        image = image / 255.0
        match change:
            case RandomAdjustBrightness(max_delta=delta):
                image = tf.image.adjust_brightness(image, tf.random.stateless_uniform([], seed, -delta, delta))
            case RandomAdjustContrast(min_delta=low, max_delta=high):
                image = tf.image.adjust_contrast(image, tf.random.stateless_uniform([], seed, low, high))
            case RandomAdjustHue(max_delta=delta):
                image = tf.image.adjust_hue(image, tf.random.stateless_uniform([], seed, -delta, delta))
            case RandomAdjustSaturation(min_delta=low, max_delta=high):
                image = tf.image.adjust_saturation(image, tf.random.stateless_uniform([], seed, low, high))
        image = tf.clip_by_value(image, 0.0, 1.0) * 255.0
    return image


@pytest.fixture
def colorful(make_sample):
    """Noise, with rows of grey, black, white and of two channels alike."""
    sample = make_sample([])
    image = sample["image"].numpy().astype(np.float32)
    image[0], image[1], image[2] = image[0, :, :1], 0.0, 255.0
    image[3, :, 0], image[4, :, 1], image[5, :, 2] = image[3, :, 1], image[4, :, 2], image[5, :, 0]
    return {**sample, "image": tf.constant(image)}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_any_order_equals_tensorflow_one_after_the_other(order, colorful):
    changed = change_colors(order, colorful, seeds_of(order))["image"]
    wanted = as_tensorflow_has_it(order, colorful["image"], seeds_of(order))
    np.testing.assert_allclose(changed, wanted, atol=0.005)


def test_images_of_unknown_size_are_changed_equally(colorful):
    order = ORDERS["brightness_first"]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([colorful["image"]]), output_signature=tf.TensorSpec([None, None, 3])
    )
    dataset = dataset.map(lambda image: change_colors(order, {**colorful, "image": image}, seeds_of(order))["image"])
    known = change_colors(order, colorful, seeds_of(order))["image"]
    assert dataset.element_spec.shape.as_list() == [None, None, 3]
    np.testing.assert_allclose(next(iter(dataset)), known, atol=0.001)


def test_apply_all_equals_one_after_the_other(make_sample):
    augmentations = [BRIGHTNESS, SATURATION, RandomRgbToGray(probability=0.0), CONTRAST, HUE]
    seeds = seeds_of(augmentations)
    sample = one_by_one = make_sample([])
    for augmentation, seed in zip(augmentations, seeds, strict=True):
        one_by_one = apply_augmentation(augmentation, one_by_one, seed)
    together = apply_all(augmentations, sample, seeds)
    np.testing.assert_allclose(together["image"], one_by_one["image"], atol=0.001)


@pytest.mark.parametrize(
    ("augmentation", "pixel", "expected"),
    [
        # 0.2989 * 100 + 0.587 * 50 + 0.114 * 10 = 29.89 + 29.35 + 1.14
        (RandomRgbToGray(probability=1.0), [100.0, 50.0, 10.0], [60.38] * 3),
        (AdjustGamma(gamma=2.0, gain=1.2), [0.0, 127.5, 255.0], [0, 76.5, 255]),  # 1.2 * 0.5 ** 2 * 255
        (RandomAdjustSaturation(min_delta=0.0, max_delta=0.0), [10.0, 200.0, 30.0], [200, 200, 200]),
    ],
)
def test_a_color_equals_the_value_computed_by_hand(augmentation, pixel, expected, make_sample):
    sample = {**make_sample([]), "image": tf.constant([[pixel]])}
    np.testing.assert_allclose(apply_augmentation(augmentation, sample, SEED)["image"], [[expected]], rtol=1e-5)


def test_every_value_has_its_own_factor(make_sample):
    sample = {**make_sample([]), "image": tf.fill([20, 30, 3], 100.0)}
    changed = apply_augmentation(RandomPixelValueScale(minval=0.5, maxval=1.5), sample, SEED)["image"].numpy()
    assert 50 <= changed.min() < 52
    assert 148 < changed.max() <= 150
    assert len(np.unique(changed)) > 1500


def test_a_low_jpeg_quality_changes_more_than_a_high_one(make_sample):
    ramp = tf.cast(tf.tile(tf.range(0, 240, 4)[tf.newaxis, :, tf.newaxis], [40, 1, 3]), tf.uint8)
    sample = {**make_sample([]), "image": ramp}
    low, high = (
        apply_augmentation(RandomJpegQuality(min_jpeg_quality=q, max_jpeg_quality=q + 1), sample, SEED)["image"]
        for q in (10, 98)
    )
    assert low.dtype == high.dtype == tf.uint8
    low_error, high_error = (
        np.abs(image.numpy().astype(int) - sample["image"].numpy()).mean() for image in (low, high)
    )
    assert low_error > 2 * high_error > 0


def test_noise_stays_in_a_square_patch(make_sample):
    sample = {**make_sample([]), "image": tf.fill([40, 60, 3], 100.0)}
    config = RandomPatchGaussian(min_patch_size=9, max_patch_size=10, min_gaussian_stddev=0.1, max_gaussian_stddev=0.1)
    seed = tf.constant([5, 5])
    changed = apply_augmentation(config, sample, seed)["image"].numpy()
    rows, columns = np.nonzero((changed != 100).any(axis=-1))
    assert rows.max() - rows.min() == columns.max() - columns.min() == 8
    assert 20 < changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].std() < 31  # 0.1 * 255
