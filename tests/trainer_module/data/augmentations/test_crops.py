import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.crop_augmentations import (
    RandomCropImage,
    RandomCropToAspectRatio,
    SsdRandomCrop,
    SsdRandomCropOperation,
)
from detloom.trainer_module.data.augmentations.crops import SSD_OPERATIONS, Window, crop_boxes, cut, draw_window

NAN = np.nan
HW = tf.constant([40, 60])
HALF_BOX = (0.25, 0.5, 0.75, 1.0)
LOWER_RIGHT = ([20, 30], [20, 30])  # begin and size of a quarter of 40 x 60


def window_of(begin_and_size, *, min_visible=0.0, clip_boxes=True):
    begin_yx, size_hw = begin_and_size
    return Window(tf.constant(begin_yx), tf.constant(size_hw), tf.constant(min_visible), tf.constant(clip_boxes))


def crops(config, sample, count=40):
    windows = (
        draw_window(config, sample["boxes_yxyx_rel"], tf.shape(sample["image"])[:2], tf.constant([i, 0]))
        for i in range(count)
    )
    return [cut(sample, window) for window in windows]


# --- cutting ----------------------------------------------------------------------------------------------------------


def test_a_crop_equals_values_computed_by_hand(make_sample):
    # the lower right quarter: y (0.5..1 -> 0..1), the box (0.25, 0.5, 0.75, 1) keeps its lower half, now y 0 to 0.5
    cropped = cut(make_sample([HALF_BOX]), window_of(LOWER_RIGHT, min_visible=0.5))
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[0.0, 0.0, 0.5, 1.0]], atol=1e-6)
    np.testing.assert_array_equal(cropped["image"], make_sample([])["image"][20:, 30:])
    # area 0.5 * 0.5 * 40 * 60 = 600 px, of which half is visible
    np.testing.assert_allclose(cropped["area_px"], [300.0], rtol=1e-5)


def test_a_box_that_is_mostly_cut_off_is_dropped_with_its_columns(make_sample):
    cropped = cut(make_sample([HALF_BOX], extras=True), window_of(LOWER_RIGHT, min_visible=0.6))
    lengths = {name: len(value) for name, value in cropped.items() if name != "image"}
    assert lengths == dict.fromkeys(lengths, 0)


def test_a_box_that_fills_the_window_is_all_visible(make_sample):
    cropped = cut(make_sample([(0.5, 0.5, 1.0, 1.0)]), window_of(LOWER_RIGHT, min_visible=1.0))
    np.testing.assert_array_equal(cropped["boxes_yxyx_rel"], [[0.0, 0.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("clip_boxes", "second_box", "second_point"),
    [(True, [0.0, 0.0, 0.5, 1 / 3], [NAN, NAN]), (False, [-0.5, -1 / 3, 0.5, 1 / 3], [-0.3, -0.2])],
)
def test_a_crop_equals_the_object_detection_api(clip_boxes, second_box, second_point, numbered_sample):
    """Literals from its `_strict_random_crop_image`, given the same window."""
    boxes = tf.constant([[0.25, 0.25, 0.75, 1.0], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.3, 1.0], [0.8, 0.0, 1.0, 1.0]])
    points = tf.constant(
        [
            [[0.5, 0.5], [0.25, 1.0]],
            [[0.1, 0.1], [0.4, 0.4]],
            [[0.25, 0.25], [NAN, NAN]],
            [[0.9, 0.9], [0.5, 0.5]],
        ]
    )
    four = {name: tf.zeros([4, *value.shape[1:]], value.dtype) for name, value in numbered_sample.items()}
    sample = {
        **four,
        "image": numbered_sample["image"],
        "boxes_yxyx_rel": boxes,
        "keypoints_yx_rel_GP2": points,
        "class_indices": tf.range(4),
    }
    cropped = cut(sample, window_of(([2, 1], [4, 3]), min_visible=0.2, clip_boxes=clip_boxes))
    np.testing.assert_array_equal(cropped["image"][..., 0], [[28, 31, 34], [40, 43, 46], [52, 55, 58], [64, 67, 70]])
    # of the third a sixth of the height is left, and three quarters of the width; the fourth lies below
    np.testing.assert_array_equal(cropped["class_indices"], [0, 1])
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[0.0, 0.0, 1.0, 1.0], second_box], atol=1e-6)
    expected = [[[0.5, 1 / 3], [0.0, 1.0]], [second_point, [0.3, 0.2]]]
    np.testing.assert_allclose(cropped["keypoints_yx_rel_GP2"], expected, atol=1e-6)


def test_boxes_are_cropped_without_the_image(make_sample):
    sample, window = make_sample([HALF_BOX, (0.0, 0.0, 0.7, 0.7)], extras=True), window_of(LOWER_RIGHT)
    whole, without = cut(sample, window), crop_boxes({**sample, "image": tf.zeros([1, 1, 3])}, window, HW)
    assert without["image"].shape == (1, 1, 3)
    for name in set(whole) - {"image"}:
        np.testing.assert_array_equal(whole[name], without[name])


# --- windows ----------------------------------------------------------------------------------------------------------


def test_windows_have_the_configured_areas_and_shapes(make_sample):
    config = RandomCropImage(
        min_object_covered=0.0, min_aspect_ratio=0.5, max_aspect_ratio=2.0, min_area=0.2, max_area=0.5
    )
    shapes = np.array([cropped["image"].shape[:2] for cropped in crops(config, make_sample([HALF_BOX], hw=(200, 300)))])
    areas, ratios = shapes.prod(axis=1) / 60000, shapes[:, 1] / shapes[:, 0]
    assert 0.19 < areas.min() < 0.3 < 0.4 < areas.max() < 0.51
    assert 0.49 < ratios.min() < 0.8 < 1.3 < ratios.max() < 2.02


def test_windows_cover_the_configured_share_of_a_box(make_sample):
    config = RandomCropImage(min_object_covered=0.9, min_area=0.1, max_area=0.5, overlap_thresh=0.0)
    sample = make_sample([(0.4, 0.4, 0.6, 0.6)])
    visible = [float(cropped["area_px"][0] / sample["area_px"][0]) for cropped in crops(config, sample)]
    assert min(visible) >= 0.9


def test_the_whole_image_is_taken_if_no_window_fits(make_sample):
    config = RandomCropImage(min_object_covered=1.0, max_area=0.2)  # no such window covers a box of half the image
    sample = make_sample([(0.0, 0.0, 1.0, 0.5)])
    for cropped in crops(config, sample, count=3):
        np.testing.assert_array_equal(cropped["image"], sample["image"])
        np.testing.assert_array_equal(cropped["boxes_yxyx_rel"], sample["boxes_yxyx_rel"])


def test_boxes_of_an_image_that_is_not_cropped_are_unchanged(make_sample):
    config = RandomCropImage(random_coef=1.0, overlap_thresh=1.0)
    sample = make_sample([(-0.2, 0.1, 0.5, 1.3), (1.1, 0.0, 1.2, 1.0), (0.5, 0.5, 0.5, 0.5)], extras=True)
    (cropped,) = crops(config, sample, count=1)
    for name in sample:
        np.testing.assert_array_equal(cropped[name], sample[name])


def test_the_ssd_crop_draws_from_seven_kinds(make_sample):
    assert [kind.overlap_thresh for kind in SSD_OPERATIONS] == [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert all(kind.min_object_covered == kind.overlap_thresh for kind in SSD_OPERATIONS)
    assert {(kind.min_aspect_ratio, kind.max_aspect_ratio) for kind in SSD_OPERATIONS} == {(0.5, 2.0)}
    assert {(kind.min_area, kind.max_area, kind.random_coef) for kind in SSD_OPERATIONS} == {(0.1, 1.0, 0.15)}
    boxes = make_sample([HALF_BOX])["boxes_yxyx_rel"]
    windows = [draw_window(SsdRandomCrop(), boxes, HW, tf.constant([i, 0])) for i in range(70)]
    drawn = [round(float(window.min_visible), 1) for window in windows]
    counts = {share: drawn.count(share) for share in sorted(set(drawn))}
    # 15 % are left alone: 10 or 11 of 70; each of the seven kinds has 8 or 9 of the rest
    assert list(counts) == [-1.0, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert 4 <= counts.pop(-1.0) <= 18
    assert all(2 <= count <= 17 for count in counts.values())


def test_each_kind_of_an_ssd_crop_keeps_to_its_own_limits(make_sample):
    small = SsdRandomCropOperation(min_aspect_ratio=1.0, max_aspect_ratio=1.0, min_area=0.09, max_area=0.11)
    wide = SsdRandomCropOperation(
        min_aspect_ratio=2.0, max_aspect_ratio=2.0, min_area=0.5, max_area=0.5, overlap_thresh=0.25, clip_boxes=False
    )
    crop, boxes = SsdRandomCrop(operations=(small, wide)), make_sample([HALF_BOX])["boxes_yxyx_rel"]
    windows = [draw_window(crop, boxes, tf.constant([200, 200]), tf.constant([i, 0])) for i in range(30)]
    found = {(round(int(each.size_hw[0]), -1), float(each.min_visible), bool(each.clip_boxes)) for each in windows}
    # a tenth of 200 x 200 is 63 x 63, which is 60 in tens (and up to 66, 70); half of it is 100 x 200
    assert found <= {(60, 0.0, True), (70, 0.0, True), (100, 0.25, False)}
    assert len(found) > 1


def test_a_crop_to_an_aspect_ratio_takes_all_of_one_side(numbered_sample, draws):
    """Literals from the Object Detection API's `random_crop_to_aspect_ratio`, given the same draw."""
    draws(0.75)
    window = draw_window(RandomCropToAspectRatio(aspect_ratio=0.8), tf.zeros([0, 4]), tf.constant([8, 4]), [0, 0])
    # 4 / 0.8 = 5 rows, from the 0.75 * 4 = 3rd on
    cropped = cut(numbered_sample, window)
    np.testing.assert_array_equal(cropped["image"][:, 0, 0], [37, 49, 61, 73, 85])
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[0.0, 0.25, 0.6, 1.0]], atol=1e-6)
    np.testing.assert_allclose(cropped["keypoints_yx_rel_GP2"], [[[0.2, 0.5], [NAN, NAN]]], atol=1e-6)
    narrow = RandomCropToAspectRatio(aspect_ratio=0.25, overlap_thresh=0.0, clip_boxes=False)
    cropped = cut(numbered_sample, draw_window(narrow, tf.zeros([0, 4]), tf.constant([8, 4]), [0, 0]))
    np.testing.assert_array_equal(cropped["image"][0, :, 0], [7, 10])
    # the reference keeps the second box too, which lies outside
    np.testing.assert_allclose(cropped["boxes_yxyx_rel"], [[0.25, -0.5, 0.75, 1.0]], atol=1e-6)
