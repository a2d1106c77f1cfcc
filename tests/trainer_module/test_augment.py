import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.augmentation_config import (
    RandomAbsolutePadImage,
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomCropImage,
    RandomHorizontalFlip,
    RandomRotation90,
    RandomVerticalFlip,
)
from detloom.trainer_module import augment
from detloom.trainer_module.example_parser import Sample

SEED = tf.constant([1, 2], tf.int32)
BOXES = [[], [(0.25, 0.5, 0.75, 1.0)], [(0.1 * i, 0.05 * i, 0.1 * i + 0.1, 0.05 * i + 0.2) for i in range(9)]]
ALL = [
    RandomHorizontalFlip(probability=1.0),
    RandomVerticalFlip(probability=1.0),
    RandomRotation90(probability=1.0),
    RandomCropImage(min_object_covered=0.1, min_area=0.3, max_area=0.6),
    RandomCropImage(min_object_covered=0.0, min_area=0.0, overlap_thresh=0.0),
    RandomAbsolutePadImage(max_height_padding=30, max_width_padding=20),
    RandomAdjustBrightness(),
    RandomAdjustContrast(),
    RandomAdjustHue(max_delta=0.5),
    RandomAdjustSaturation(),
]
IDS = [f"{type(augmentation).__name__}_{i}" for i, augmentation in enumerate(ALL)]
LOWER_RIGHT = (tf.constant([20, 30]), tf.constant([20, 30]))  # begin and size of a quarter of 40 x 60


def make_sample(boxes, hw=(40, 60)) -> Sample:
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    image = np.random.default_rng(0).integers(0, 256, (*hw, 3), np.uint8)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) * hw[0] * hw[1]
    count = len(boxes)
    return Sample(
        image=tf.constant(image),
        boxes_yxyx_rel=tf.constant(boxes),
        class_indices=tf.range(count),
        is_crowd=tf.zeros([count], tf.bool),
        area_px=tf.constant(areas, tf.float32),
    )


@pytest.mark.parametrize("boxes", BOXES, ids=["no_box", "one_box", "crowd"])
@pytest.mark.parametrize("augmentation", ALL, ids=IDS)
def test_boxes_stay_inside_and_in_step_inside_tf_data(augmentation, boxes):
    sample = make_sample(boxes)
    dataset = tf.data.Dataset.from_tensors(sample).map(lambda s: augment.apply_augmentation(augmentation, s, SEED))
    changed = next(iter(dataset))
    result = changed["boxes_yxyx_rel"].numpy()
    assert result.shape == (len(changed["class_indices"]), 4)
    assert ((result >= 0) & (result <= 1)).all()
    assert (result[:, 2:] > result[:, :2]).all()
    assert float(tf.reduce_min(tf.cast(changed["image"], tf.float32))) >= 0
    assert float(tf.reduce_max(tf.cast(changed["image"], tf.float32))) <= 255


@pytest.mark.parametrize("flip", [augment.flip_horizontally, augment.flip_vertically])
def test_flipping_twice_changes_nothing(flip):
    sample = make_sample(BOXES[2])
    twice = flip(flip(sample))
    np.testing.assert_array_equal(twice["image"], sample["image"])
    np.testing.assert_allclose(twice["boxes_yxyx_rel"], sample["boxes_yxyx_rel"], atol=1e-6)


def test_a_flip_moves_the_box_with_the_picture():
    flipped = augment.flip_horizontally(make_sample(BOXES[1]))
    np.testing.assert_allclose(flipped["boxes_yxyx_rel"], [[0.25, 0.0, 0.75, 0.5]], atol=1e-6)
    np.testing.assert_array_equal(flipped["image"][:, 0], make_sample([])["image"][:, -1])


def test_a_turn_moves_the_box_with_the_picture():
    sample = make_sample([(0.25, 0.5, 0.75, 0.9)])
    turned = augment.rotate_counter_clockwise(sample)
    # what was right is now on top: y from 1 - 0.9 to 1 - 0.5, x as y was
    np.testing.assert_allclose(turned["boxes_yxyx_rel"], [[0.1, 0.25, 0.5, 0.75]], atol=1e-6)
    assert turned["image"].shape == (60, 40, 3)
    np.testing.assert_array_equal(turned["image"][0], sample["image"][:, -1])


def test_four_turns_change_nothing():
    sample = turned = make_sample(BOXES[2])
    for _ in range(4):
        turned = augment.rotate_counter_clockwise(turned)
    np.testing.assert_array_equal(turned["image"], sample["image"])
    np.testing.assert_allclose(turned["boxes_yxyx_rel"], sample["boxes_yxyx_rel"], atol=1e-6)


def test_a_crop_by_hand():
    # the lower right quarter: y (0.5..1 -> 0..1), the box (0.25, 0.5, 0.75, 1) keeps its lower half, now y 0 to 0.5
    cropped = augment.crop(make_sample(BOXES[1]), *LOWER_RIGHT, min_visible=0.5)
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[0.0, 0.0, 0.5, 1.0]], atol=1e-6)
    np.testing.assert_array_equal(cropped["image"], make_sample([])["image"][20:, 30:])
    # area 0.5 * 0.5 * 40 * 60 = 600 px, of which half is visible
    np.testing.assert_allclose(cropped["area_px"], [300.0], rtol=1e-5)


def test_a_crop_can_leave_boxes_whole():
    cropped = augment.crop(make_sample(BOXES[1]), *LOWER_RIGHT, min_visible=0.5, clip_boxes=False)
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[-0.5, 0.0, 0.5, 1.0]], atol=1e-6)


def test_a_box_that_is_mostly_cut_off_is_dropped():
    cropped = augment.crop(make_sample(BOXES[1]), *LOWER_RIGHT, min_visible=0.6)
    assert cropped["boxes_yxyx_rel"].shape == (0, 4)


def test_a_box_outside_the_window_is_dropped_whatever_the_threshold():
    cropped = augment.crop(make_sample([(0.0, 0.0, 0.5, 0.5)]), *LOWER_RIGHT, min_visible=0.0)
    assert cropped["boxes_yxyx_rel"].shape == (0, 4)


def test_a_box_that_fills_the_window_is_all_visible():
    cropped = augment.crop(make_sample([(0.5, 0.5, 1.0, 1.0)]), *LOWER_RIGHT, min_visible=1.0)
    np.testing.assert_array_equal(cropped["boxes_yxyx_rel"], [[0.0, 0.0, 1.0, 1.0]])


def crops(config, sample, count=40):
    return [augment.random_crop(config, sample, tf.constant([i, 0])) for i in range(count)]


def test_windows_have_the_configured_areas_and_shapes():
    config = RandomCropImage(
        min_object_covered=0.0, min_aspect_ratio=0.5, max_aspect_ratio=2.0, min_area=0.2, max_area=0.5
    )
    shapes = np.array([cropped["image"].shape[:2] for cropped in crops(config, make_sample(BOXES[1], hw=(200, 300)))])
    areas, ratios = shapes.prod(axis=1) / 60000, shapes[:, 1] / shapes[:, 0]
    assert 0.19 < areas.min() < 0.3 < 0.4 < areas.max() < 0.51
    assert 0.49 < ratios.min() < 0.8 < 1.3 < ratios.max() < 2.02


def test_windows_cover_the_configured_share_of_a_box():
    config = RandomCropImage(min_object_covered=0.9, min_area=0.1, max_area=0.5, overlap_thresh=0.0)
    sample = make_sample([(0.4, 0.4, 0.6, 0.6)])
    visible = [float(cropped["area_px"][0] / sample["area_px"][0]) for cropped in crops(config, sample)]
    assert min(visible) >= 0.9


def test_the_whole_picture_is_taken_where_no_window_fits():
    config = RandomCropImage(min_object_covered=1.0, max_area=0.2)  # no such window covers a box of half the picture
    sample = make_sample([(0.0, 0.0, 1.0, 0.5)])
    for cropped in crops(config, sample, count=3):
        np.testing.assert_array_equal(cropped["image"], sample["image"])
        np.testing.assert_array_equal(cropped["boxes_yxyx_rel"], sample["boxes_yxyx_rel"])


def test_some_pictures_are_left_alone_by_chance():
    config = RandomCropImage(min_object_covered=0.0, max_area=0.5, random_coef=0.7)
    whole = [cropped["image"].shape == (40, 60, 3) for cropped in crops(config, make_sample([]), count=100)]
    assert 55 <= sum(whole) <= 85


def test_colors_by_hand():
    sample = make_sample([])
    sample["image"] = tf.constant([[[100, 50, 50], [200, 50, 50]]], tf.uint8)
    brighter = RandomAdjustBrightness(max_delta=0.0)
    np.testing.assert_allclose(augment.apply_augmentation(brighter, sample, SEED)["image"], sample["image"], atol=1e-4)
    # red's mean is 150, its distances -50 and 50 double
    contrast = RandomAdjustContrast(min_delta=2.0, max_delta=2.0)
    expected = [[[50, 50, 50], [250, 50, 50]]]
    np.testing.assert_allclose(augment.apply_augmentation(contrast, sample, SEED)["image"], expected, atol=1e-3)
    # without saturation only the largest channel's value is left
    grey = RandomAdjustSaturation(min_delta=0.0, max_delta=0.0)
    expected = [[[100, 100, 100], [200, 200, 200]]]
    np.testing.assert_allclose(augment.apply_augmentation(grey, sample, SEED)["image"], expected, atol=1e-3)
    hue = RandomAdjustHue(max_delta=0.0)
    np.testing.assert_allclose(augment.apply_augmentation(hue, sample, SEED)["image"], sample["image"], atol=1e-3)


@pytest.mark.parametrize("augmentation", ALL, ids=IDS)
def test_the_same_seed_gives_the_same_picture(augmentation):
    first, second = (augment.apply_augmentation(augmentation, make_sample(BOXES[2]), SEED) for _ in range(2))
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])


def test_a_probability_of_zero_changes_nothing():
    sample = make_sample(BOXES[2])
    changed = augment.apply_augmentation(RandomHorizontalFlip(probability=0.0), sample, SEED)
    np.testing.assert_array_equal(changed["image"], sample["image"])


def test_padding_grows_the_picture_by_less_than_the_most_and_moves_its_boxes_with_it():
    sample = make_sample(BOXES[1])
    config = RandomAbsolutePadImage(max_height_padding=30, max_width_padding=20, pad_color=(7.0, 8.0, 9.0))
    sides = set()
    for i in range(20):
        padded = augment.apply_augmentation(config, sample, tf.constant([i, i], tf.int32))
        height, width, _ = padded["image"].shape
        assert 40 <= height < 70
        assert 60 <= width < 80
        sides.add((height, width))
        # The box was rows 10 to 30 and columns 30 to 60: what it shows stays.
        ymin, xmin, ymax, xmax = np.rint(padded["boxes_yxyx_rel"][0].numpy() * [height, width, height, width]).astype(
            int
        )
        np.testing.assert_array_equal(padded["image"][ymin:ymax, xmin:xmax], sample["image"][10:30, 30:60])
        added = height * width - 40 * 60
        assert int(np.all(padded["image"].numpy() == [7, 8, 9], axis=-1).sum()) == added
    assert len(sides) > 10


def test_padding_without_a_colour_takes_the_pictures_mean():
    sample = make_sample([])
    padded = augment.apply_augmentation(RandomAbsolutePadImage(max_height_padding=30), sample, SEED)
    assert len(padded["image"]) > 40
    corners = padded["image"].numpy()[[0, -1], 0]
    mean = sample["image"].numpy().mean(axis=(0, 1)).astype(np.uint8)
    assert any((corner == mean).all() for corner in corners)
