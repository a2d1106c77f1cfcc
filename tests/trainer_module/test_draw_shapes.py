import numpy as np

from detloom.trainer_module.draw import color_of_class
from detloom.trainer_module.draw_shapes import blend_masks, draw_keypoints

GREY = np.full((50, 100, 3), 100, np.uint8)


def test_a_mask_takes_on_the_color_of_its_class_where_the_object_is():
    mask = np.zeros((1, 50, 100), np.uint8)
    mask[0, 10:20, 30:40] = 1
    blended = blend_masks(GREY, mask, [1])
    # Class 1 is (0, 114, 178): 100 + 0.45 * (color - 100) = 55, 106.3, 135.1
    assert blended[15, 35].tolist() == [55, 106, 135]
    assert (blended[np.asarray(mask[0]) == 0] == 100).all()


def test_where_masks_overlap_both_colors_are_seen():
    blended = blend_masks(GREY, np.ones((2, 50, 100), np.uint8), [1, 2])
    # 55, 106.3, 135.1 from class 1, then class 2 (230, 159, 0): + 0.45 * (230 - 55), (159 - 106.3), (0 - 135.1)
    assert blended[0, 0].tolist() == [134, 130, 74]


def test_no_mask_and_no_point_change_nothing():
    assert (blend_masks(GREY, np.zeros((0, 50, 100)), []) == 100).all()
    assert (draw_keypoints(GREY, np.zeros((0, 3, 2)), []) == 100).all()


def test_a_keypoint_is_a_dot_at_its_place():
    drawn = draw_keypoints(GREY, np.array([[[0.5, 0.25]]]), [2])
    changed = np.argwhere((drawn != 100).any(axis=-1))
    # Row 0.5 * 49 = 24.5 -> 24, column 0.25 * 99 = 24.75 -> 25; the radius is 2.
    assert (changed.min(axis=0).tolist(), changed.max(axis=0).tolist()) == ([22, 23], [26, 27])
    assert tuple(drawn[24, 25]) == color_of_class(2)


def test_points_without_a_label_or_outside_are_not_drawn():
    points = np.array([[[np.nan, np.nan], [-0.1, 0.5], [0.5, 1.2]]])
    assert (draw_keypoints(GREY, points, [1]) == 100).all()
