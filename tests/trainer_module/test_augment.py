import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.config import HorizontalFlip, RandomBrightness, RandomContrast, RandomCrop, VerticalFlip
from detloom.trainer_module import augment
from detloom.trainer_module.example_parser import Sample

SEED = tf.constant([1, 2], tf.int32)
BOXES = [[], [(0.25, 0.5, 0.75, 1.0)], [(0.1 * i, 0.05 * i, 0.1 * i + 0.1, 0.05 * i + 0.2) for i in range(9)]]
ALL = [
    HorizontalFlip(probability=1.0),
    VerticalFlip(probability=1.0),
    RandomCrop(min_area=0.3, max_area=0.6),
    RandomBrightness(),
    RandomContrast(),
]


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
@pytest.mark.parametrize("augmentation", ALL, ids=lambda a: type(a).__name__)
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


def test_a_crop_by_hand():
    # the lower right quarter: y (0.5..1 -> 0..1), the box (0.25, 0.5, 0.75, 1) keeps its lower half, now y 0 to 0.5
    cropped = augment.crop(make_sample(BOXES[1]), tf.constant([0.5, 0.5, 1.0, 1.0]), min_visible=0.5)
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[0.0, 0.0, 0.5, 1.0]], atol=1e-6)
    assert cropped["image"].shape == (20, 30, 3)
    # area 0.5 * 0.5 * 40 * 60 = 600 px, of which half is visible
    np.testing.assert_allclose(cropped["area_px"], [300.0], rtol=1e-5)


def test_a_box_that_is_mostly_cut_off_is_dropped():
    cropped = augment.crop(make_sample(BOXES[1]), tf.constant([0.5, 0.5, 1.0, 1.0]), min_visible=0.6)
    assert cropped["boxes_yxyx_rel"].shape == (0, 4)


def test_a_random_crop_that_would_lose_every_box_is_not_made():
    sample = make_sample([(0.0, 0.0, 0.02, 0.02)])
    config = RandomCrop(min_area=0.1, max_area=0.1, min_visible=1.0)
    for i in range(10):
        changed = augment.random_crop(config, sample, tf.constant([i, 0]))
        assert len(changed["class_indices"]) == 1


@pytest.mark.parametrize("augmentation", ALL, ids=lambda a: type(a).__name__)
def test_the_same_seed_gives_the_same_picture(augmentation):
    first, second = (augment.apply_augmentation(augmentation, make_sample(BOXES[2]), SEED) for _ in range(2))
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])


def test_a_probability_of_zero_changes_nothing():
    sample = make_sample(BOXES[2])
    changed = augment.apply_augmentation(HorizontalFlip(probability=0.0), sample, SEED)
    np.testing.assert_array_equal(changed["image"], sample["image"])
