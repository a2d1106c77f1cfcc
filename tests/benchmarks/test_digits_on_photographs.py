import json

import digits_on_photographs as made
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from detloom.components.evaluator.coco_files import read_coco_ground_truth


def box_of(mask):
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def test_corners_of_an_upright_digit_are_those_of_its_box():
    """Ink at the edge of the glyph may be faint, so the box of the mask can be a pixel smaller."""
    digit = made.draw_digit(8, 40, 0.0, (50.0, 50.0), 100)
    left, top, right, bottom = box_of(digit.mask_HW)
    upper_left, upper_right, lower_right, lower_left, center = digit.points_xy_px
    np.testing.assert_allclose(upper_left, [left, top], atol=1)
    np.testing.assert_allclose(upper_right, [right, top], atol=1)
    np.testing.assert_allclose(lower_right, [right, bottom], atol=1)
    np.testing.assert_allclose(lower_left, [left, bottom], atol=1)
    np.testing.assert_array_equal(center, [50, 50])


def test_a_quarter_turn_moves_the_corners_and_the_ink_clockwise():
    """The upper left corner of the upright digit is then the upper right one."""
    upright, turned = (made.draw_digit(7, 40, degrees, (50.0, 50.0), 100) for degrees in (0.0, 90.0))
    offset = upright.points_xy_px[0] - 50
    np.testing.assert_allclose(turned.points_xy_px[0] - 50, [-offset[1], offset[0]], atol=1e-9)
    np.testing.assert_allclose(np.rot90(upright.alpha_HW, -1), turned.alpha_HW, atol=2)


def test_a_later_digit_covers_pixels_and_keypoints_of_an_earlier_one():
    under, above = made.draw_digit(2, 60, 0.0, (50.0, 50.0), 100), made.draw_digit(8, 30, 0.0, (50.0, 50.0), 100)
    masks = made.visible_masks([under, above])
    assert not (masks[0] & masks[1]).any()
    np.testing.assert_array_equal(masks[1], above.mask_HW)
    of_under, of_above = made.annotate([under, above], image_id=3, first_id=5, one_class=False)
    assert of_under["keypoints"][2::3] == [2, 2, 2, 2, 1]  # where the 8 has ink
    assert of_above["keypoints"][2::3] == [2] * 5
    assert [(row["id"], row["image_id"], row["category_id"]) for row in (of_under, of_above)] == [(5, 3, 3), (6, 3, 9)]
    assert of_under["area"] == masks[0].sum() == coco_mask.area(of_under["segmentation"])


def test_data_are_valid_coco_files_with_separate_photographs(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for name in "abc":
        pixels = rng.integers(0, 256, (90, 120, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{name}.jpg")
    counts = ["--train", "2", "--eval", "1", "--test", "1", "--side", "96", "--one-class"]
    made.main([str(tmp_path / "out"), "--photos", str(tmp_path / "photos"), *counts])
    truth = read_coco_ground_truth(tmp_path / "out" / "annotations" / "train.json")
    assert truth.split.keypoints.names == made.KEYPOINTS
    assert truth.split.label_map.names == ("digit",)
    content = json.loads((tmp_path / "out" / "annotations" / "train.json").read_text())
    assert Image.open(tmp_path / "out" / content["images"][0]["file_name"]).size == (96, 96)
    for row in content["annotations"]:
        points = np.array(row["keypoints"]).reshape(5, 3)
        assert ((points[:, :2] >= 1) & (points[:, :2] <= 95)).all()
    again = tmp_path / "again"
    made.main([str(again), "--photos", str(tmp_path / "photos"), *counts])
    assert (again / "annotations" / "train.json").read_text() == json.dumps(content) + "\n"


def test_each_split_needs_a_photograph(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(SystemExit, match="got 0 photographs, required: at least one for each split"):
        made.main([str(tmp_path / "out"), "--photos", str(tmp_path / "photos")])
