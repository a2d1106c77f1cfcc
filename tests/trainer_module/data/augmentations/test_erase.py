import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.color_augmentations import GridMask, RandomBlackPatches, RandomCutout
from detloom.trainer_module.data.augmentations.apply import apply_augmentation
from detloom.trainer_module.data.augmentations.erase import grid_squares
from detloom.trainer_module.data.augmentations.patches import paste, rectangles

SEED = tf.constant([1, 2], tf.int32)


@pytest.fixture
def bright(make_sample):
    return {**make_sample([(0.1, 0.2, 0.5, 0.6)]), "image": tf.fill([40, 60, 3], 200.0)}


def test_rectangles_are_clipped_and_empty_ones_contain_nothing():
    hw = tf.constant([3, 4])
    begin, end = tf.constant([[-1, 2], [2, 0], [0, 0]]), tf.constant([[1, 9], [3, 1], [0, 3]])
    expected = [[0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_array_equal(rectangles(hw, begin, end), np.array(expected, bool))


def test_pasting_changes_only_the_rectangle():
    pasted = paste(tf.zeros([3, 4, 3]), tf.ones([1, 2, 3]), tf.constant([1, 2]))
    np.testing.assert_array_equal(pasted[..., 0], [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])


def test_one_black_patch_is_a_square_of_a_share_of_the_shorter_side(bright):
    config = RandomBlackPatches(max_black_patches=1, probability=1.0, size_to_image_ratio=0.25)
    for i in range(5):
        image = apply_augmentation(config, bright, tf.constant([i, i]))["image"].numpy()
        rows, columns = np.nonzero(image[..., 0] == 0)
        assert len(rows) == 100  # 0.25 * 40 = 10 pixels a side
        assert rows.max() - rows.min() == columns.max() - columns.min() == 9


def test_no_patch_changes_nothing(bright):
    for config in (RandomBlackPatches(max_black_patches=0), RandomBlackPatches(probability=0.0)):
        np.testing.assert_array_equal(apply_augmentation(config, bright, SEED)["image"], bright["image"])


def test_a_hole_may_reach_beyond_the_image(bright):
    config = RandomCutout(probability=1.0, size_to_image_ratio=0.5, fill=7.0)  # 20 pixels a side
    sizes = [
        int((apply_augmentation(config, bright, tf.constant([i, 0]))["image"] == 7.0).numpy().sum() / 3)
        for i in range(20)
    ]
    assert max(sizes) == 400
    assert 100 <= min(sizes) < 400


def test_grid_squares_without_rotation():
    squares = grid_squares(
        tf.constant([8, 8]),
        period=tf.constant(4.0),
        kept_share=0.5,
        angle_radians=tf.constant(0.0),
        offset_yx_share=(tf.constant(0.0), tf.constant(0.0)),
    )
    line = np.array([0, 0, 1, 1, 0, 0, 1, 1])  # from the centre outwards: 2 pixels are kept, 2 not
    np.testing.assert_array_equal(squares, np.outer(line, line).astype(bool))


def test_a_grid_erases_about_the_square_of_its_share(bright):
    config = GridMask(probability=1.0, ratio=0.5)
    shares = [
        float(
            tf.reduce_mean(tf.cast(apply_augmentation(config, bright, tf.constant([i, 3]))["image"] == 0, tf.float32))
        )
        for i in range(20)
    ]
    assert abs(np.mean(shares) - 0.25) < 0.05
