import math

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.augmentations import AutoAugmentImage, RandAugment
from detloom.trainer_module.data.augmentations import geometry, uint8_colors
from detloom.trainer_module.data.augmentations.apply import apply_augmentation
from detloom.trainer_module.data.augmentations.box_content import box_corners_px, change_contents, cut_out_of_box
from detloom.trainer_module.data.augmentations.policies import (
    CONTENTS,
    MOVES,
    POLICIES,
    RAND_AUGMENT,
    Step,
    amount_of,
    apply_step,
)

SEED = tf.constant([1, 2], tf.int32)
BOX = (0.1, 0.2, 0.5, 0.8)
STEPS = sorted({name for policy in POLICIES.values() for steps in policy for name, _, _ in steps} | set(RAND_AUGMENT))
WARPS = {
    "left": geometry.translation(30.0, 0.0),
    "up": geometry.translation(0.0, 30.0),
    "shear_x": geometry.shear_x(0.3),
    "shear_y": geometry.shear_y(0.3),
    "turn": geometry.rotation(math.radians(30.0), tf.constant([100, 200])),
    "turn_back": geometry.rotation(math.radians(-30.0), tf.constant([100, 200])),
}


def stepped(name, level, sample, seed=SEED):
    step = Step(tf.constant(0), tf.constant(1.0), tf.constant(float(amount_of(name, level))))
    return apply_step([name], step, sample, seed)


def image_of(*rows):
    """An image whose three channels are alike."""
    return tf.repeat(tf.constant(rows, tf.uint8)[..., tf.newaxis], 3, axis=2)


def looked_up(table, *values):
    return uint8_colors.looked_up(image_of(list(values)), table)[0, :, 0].numpy().tolist()


# --- colours: the literals are those of the Object Detection API's autoaugment_utils on the same images


@pytest.mark.parametrize(
    ("table", "values", "expected"),
    [
        (uint8_colors.solarize(100), (99, 100, 255), [99, 155, 0]),
        (uint8_colors.solarize(384), (0, 255), [0, 255]),  # beyond white
        (uint8_colors.solarize_add(110), (0, 127, 128), [110, 237, 128]),
        (uint8_colors.solarize_add(200), (100,), [255]),
        (uint8_colors.posterize(2), (127, 128, 255), [64, 128, 192]),
        (uint8_colors.posterize(0), (127, 128, 255), [0, 128, 128]),  # keeps one bit
        (uint8_colors.brightness(1.5), (7, 200), [10, 255]),  # 10.5 is truncated
        (uint8_colors.contrast(image_of([50, 150, 100]), 0.5), (50, 150, 100), [75, 125, 100]),  # around their mean
    ],
)
def test_colors_are_looked_up(table, values, expected):
    assert looked_up(table, *values) == expected


def test_color_zero_is_gray_and_color_one_changes_nothing():
    image = tf.constant([[[100, 50, 10]]], tf.uint8)  # 29.89 + 29.35 + 1.14 = 60.38
    np.testing.assert_array_equal(uint8_colors.color(image, 0.0)[0, 0], [60, 60, 60])
    np.testing.assert_array_equal(uint8_colors.color(image, 1.0)[0, 0], [100, 50, 10])


def test_sharpness_leaves_the_outermost_pixels():
    image = image_of([9, 9, 9], [9, 23, 9], [9, 9, 9])
    smooth = uint8_colors.sharpness(image, 0.0)[..., 0]
    np.testing.assert_array_equal(smooth, [[9, 9, 9], [9, 14, 9], [9, 9, 9]])  # (8 * 9 + 5 * 23) / 13 = 14.4
    np.testing.assert_array_equal(uint8_colors.sharpness(image, 2.0)[1, 1, 0], 32)  # 14 + 2 * (23 - 14)


@pytest.mark.parametrize("hw", [(1, 1), (1, 5), (2, 9)], ids=str)
def test_sharpness_does_not_change_an_image_without_inner_pixels(hw, make_sample):
    image = make_sample([], hw=hw)["image"]
    np.testing.assert_array_equal(uint8_colors.sharpness(image, 0.0), image)


def test_autocontrast_stretches_each_channel_by_itself():
    image = tf.constant([[[50, 7, 0], [100, 7, 255], [75, 7, 100]]], tf.uint8)
    np.testing.assert_array_equal(
        uint8_colors.looked_up(image, uint8_colors.autocontrast(image))[0], [[0, 7, 0], [255, 7, 255], [127, 7, 100]]
    )  # (75 - 50) * 5.1 = 127.5; a channel of one value stays


def test_equalize_spreads_a_ramp_and_leaves_a_flat_image():
    ramp = image_of(*np.tile(np.arange(50, 150), (64, 1)))  # 64 pixels of each: (6400 - 64) // 255 = 24 a step
    equal = uint8_colors.looked_up(ramp, uint8_colors.equalize(ramp))[0, :, 0].numpy()
    assert equal[0] == 0
    assert equal[1] == 3  # (64 + 12) // 24
    assert equal[99] == 255  # (99 * 64 + 12) // 24 = 264
    flat = image_of([77, 77], [77, 77])
    np.testing.assert_array_equal(uint8_colors.looked_up(flat, uint8_colors.equalize(flat)), flat)


# --- what moves


@pytest.mark.parametrize(
    ("move", "expected"),
    [  # of the reference's _shift_bbox, _shear_bbox and _rotate_bbox at 100 x 200 pixels
        ("left", (0.1, 0.05, 0.5, 0.65)),
        ("up", (0.0, 0.2, 0.2, 0.8)),
        ("shear_x", (0.1, 0.125, 0.5, 0.785)),
        ("shear_y", (0.0, 0.2, 0.38, 0.8)),
        ("turn", (0.0, 0.145, 0.8, 0.755)),  # there in whole pixels
        ("turn_back", (0.0, 0.245, 0.8, 0.855)),
    ],
)
def test_boxes_move_as_in_the_reference(move, expected, make_sample):
    moved = geometry.warp(make_sample([BOX], hw=(100, 200)), WARPS[move], 128)
    np.testing.assert_allclose(moved["boxes_yxyx_rel"], [expected], atol=0.0051)


@pytest.mark.parametrize("move", WARPS)
def test_image_mask_and_keypoints_move_as_the_box_does(move, make_sample):
    sample = make_sample([(0.4, 0.3, 0.7, 0.6)], hw=(100, 200), extras=True)
    painted = {**sample, "image": tf.repeat(sample["masks_GHW"][0][..., tf.newaxis] * 200, 3, axis=2)}
    moved = geometry.warp(painted, WARPS[move], 0)
    np.testing.assert_array_equal(moved["image"][..., 0] == 200, moved["masks_GHW"][0] == 1)
    rows, columns = np.nonzero(moved["masks_GHW"][0])
    top, left, bottom, right = moved["boxes_yxyx_rel"][0].numpy() * [100, 200, 100, 200]
    seen = (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1)
    np.testing.assert_allclose(seen, (top, left, bottom, right), atol=1.5)
    y, x = moved["keypoints_yx_rel_GP2"][0, 0].numpy() * [100, 200]
    assert moved["masks_GHW"][0, int(y), int(x)] == 1
    assert np.isnan(moved["keypoints_yx_rel_GP2"][0, 2]).all()


def test_a_box_that_leaves_the_image_is_dropped_and_a_cut_one_loses_area(make_sample):
    sample = make_sample([(0.0, 0.0, 1.0, 0.2), (0.0, 0.2, 1.0, 0.4)], hw=(10, 100))
    moved = geometry.warp(sample, geometry.translation(30.0, 0.0), 128)
    np.testing.assert_allclose(moved["boxes_yxyx_rel"], [[0.0, 0.0, 1.0, 0.1]], atol=1e-6)
    np.testing.assert_array_equal(moved["class_indices"], [1])
    np.testing.assert_allclose(moved["area_px"], [100.0], rtol=1e-5)  # half of 10 x 20


# --- what changes in boxes


def test_the_pixels_of_a_box_are_at_least_one(make_sample):
    sample = make_sample([(0.1, 0.2, 0.5, 0.8), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)], hw=(10, 20))
    np.testing.assert_array_equal(box_corners_px(sample), [[1, 4, 6, 17], [9, 19, 10, 20], [0, 0, 10, 20]])


def test_contents_change_only_in_boxes_with_a_third_of_the_probability(make_sample):
    sample = make_sample([(0.0, 0.0, 0.24, 0.24), (0.5, 0.5, 0.74, 0.74)])
    black = change_contents(sample, lambda content, _: tf.zeros_like(content), probability=3.0, seed=SEED)
    expected = sample["image"].numpy()
    expected[0:10, 0:15] = expected[20:30, 30:45] = 0  # 0.24 * 40 = 9.6 is row 9
    np.testing.assert_array_equal(black["image"], expected)
    never = change_contents(sample, lambda content, _: tf.zeros_like(content), probability=0.0, seed=SEED)
    np.testing.assert_array_equal(never["image"], sample["image"])


def test_a_rectangle_around_a_point_of_a_box_is_filled(make_sample):
    sample = {**make_sample([(0.25, 0.25, 0.5, 0.5)]), "image": tf.zeros([40, 60, 3], tf.uint8)}
    image = cut_out_of_box(sample, 0.75, 128, SEED)["image"].numpy()
    rows, columns = np.nonzero(image[..., 0])
    # the box is 11 x 16 pixels; int(0.75 * 5.5) = 4 and int(0.75 * 8) = 6 to each side
    assert (rows.max() - rows.min() + 1, columns.max() - columns.min() + 1) == (8, 12)
    nothing = cut_out_of_box(make_sample([]), 0.75, 128, SEED)["image"]
    np.testing.assert_array_equal(nothing, make_sample([])["image"])


# --- policies


def test_all_steps_of_all_policies_are_known(make_sample):
    sample = make_sample([BOX])
    for name in STEPS:
        changed = stepped(name, 4.0, sample)
        assert changed["image"].shape == sample["image"].shape
        assert changed["image"].dtype == tf.uint8
        if name in CONTENTS:
            np.testing.assert_array_equal(changed["boxes_yxyx_rel"], sample["boxes_yxyx_rel"])
    assert len(STEPS) == 22
    assert [len(POLICIES[name]) for name in ("v0", "v1", "v2", "v3")] == [5, 20, 15, 15]


def test_a_level_of_ten_is_the_strongest_that_was_learned():
    assert amount_of("TranslateX_BBox", 10) == 250  # pixels
    assert amount_of("Rotate_BBox", 10) == pytest.approx(math.pi / 6)
    assert amount_of("ShearY_Only_BBoxes", 10) == pytest.approx(0.3)
    assert amount_of("Color", 10) == pytest.approx(1.9)
    assert amount_of("Solarize", 8) == 204  # 0.8 * 256 = 204.8
    assert amount_of("Posterize", 2) == 0
    assert amount_of("BBox_Cutout", 4) == pytest.approx(0.3)


def test_a_step_that_is_not_drawn_changes_nothing(make_sample):
    sample = make_sample([BOX])
    kept = apply_step(["Solarize"], Step(tf.constant(0), tf.constant(0.0), tf.constant(100.0)), sample, SEED)
    np.testing.assert_array_equal(kept["image"], sample["image"])


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_magnitude_zero_change_nothing(name, make_sample):
    sample = make_sample([BOX, (0.0, 0.0, 1.0, 1.0)], extras=True)
    changed = stepped(name, 0.0, sample)
    for column in sample:
        np.testing.assert_allclose(changed[column], sample[column], atol=1e-5)


def test_both_signs_are_drawn(make_sample):
    sample = make_sample([(0.4, 0.4, 0.6, 0.6)], hw=(400, 600))
    tops = {round(float(stepped("TranslateY_BBox", 4.0, sample, [i, 0])["boxes_yxyx_rel"][0, 0]), 3) for i in range(8)}
    assert tops == {0.15, 0.65}  # 4 / 10 * 250 = 100 of 400 pixels either way


@pytest.mark.parametrize(
    "augmentation",
    [
        pytest.param(AutoAugmentImage(policy_name="v1"), marks=pytest.mark.slow),
        pytest.param(AutoAugmentImage(policy_name="v3"), marks=pytest.mark.nightly),
        pytest.param(RandAugment(num_layers=2), marks=pytest.mark.slow),
    ],
    ids=["v1", "v3", "rand"],  # v0 is the beginning of v1; v2 has no step that neither has
)
def test_in_tf_data_boxes_stay_inside_and_the_seed_decides(augmentation, make_sample):
    crowd = [(0.1 * i, 0.05 * i, 0.1 * i + 0.1, 0.05 * i + 0.2) for i in range(9)]
    samples = [make_sample(boxes, extras=True) for boxes in ([], [BOX], crowd, crowd, crowd, [BOX])]
    shapes = {"image": [None, None, 3], "boxes_yxyx_rel": [None, 4], "masks_GHW": [None] * 3}
    shapes["keypoints_yx_rel_GP2"] = [None, 3, 2]
    signature = {name: tf.TensorSpec(shapes.get(name, [None]), value.dtype) for name, value in samples[0].items()}
    dataset = tf.data.Dataset.from_generator(lambda: iter(samples), output_signature=signature).enumerate()
    changed = dataset.map(lambda i, sample: apply_augmentation(augmentation, sample, tf.stack([i, 7])))
    num_changed = 0
    for i, (sample, result) in enumerate(zip(samples, changed, strict=True)):
        corners = result["boxes_yxyx_rel"].numpy()
        assert ((corners >= 0) & (corners <= 1)).all()
        assert (corners[:, 2:] > corners[:, :2]).all()
        assert result["image"].shape == sample["image"].shape
        assert {len(result[name]) for name in sample if name != "image"} == {len(corners)}
        eager = apply_augmentation(augmentation, sample, tf.constant([i, 7], tf.int64))
        np.testing.assert_array_equal(eager["image"], result["image"])
        np.testing.assert_allclose(eager["boxes_yxyx_rel"], corners, atol=1e-6)
        num_changed += bool((result["image"] != sample["image"]).numpy().any())
    assert num_changed >= 3
