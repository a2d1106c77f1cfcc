"""Test the scan of a folder."""

import json

import numpy as np
import pytest
from PIL import Image

from detloom.pipelines.init.scan_data import scan_data
from detloom.schemas.errors import InputError


def test_scan_counts_images_objects_and_sizes(make_coco):
    scan = scan_data(str(make_coco({"train": [1, 2, 3], "val": [4], "test": [5, 6]})))
    assert scan.data_format == "coco"
    assert dict(scan.num_images) == {"train": 3, "val": 1, "test": 2}
    assert dict(scan.boxes_by_class) == {"cell": 6, "platelet": 6}
    assert scan.image_hw == (60, 80)
    assert scan.max_boxes == 2
    np.testing.assert_allclose(scan.box_sizes_hw(), np.tile([0.2, 0.2], (12, 1)))
    assert scan.is_complete
    assert not scan.shared_images


def test_equal_files_in_two_splits_are_found_and_those_in_one_split_not_reported(make_coco):
    folder = make_coco({"train": [1, 2, 3], "val": [4], "test": [3]})
    images = folder / "images"
    (images / "train_1.png").write_bytes((images / "train_2.png").read_bytes())
    assert sorted(scan_data(str(folder)).shared_images) == ["images/test_3.png", "images/train_3.png"]


def test_an_image_that_two_splits_name_is_counted_once(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "data.yaml").write_text("{train: images, val: images, names: [cell]}")
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"images/{number}.png")
        (tmp_path / f"images/{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    scan = scan_data(str(tmp_path))
    assert (scan.total_images, sum(scan.boxes_by_class.values()), len(scan.boxes)) == (3, 3, 3)
    assert scan.shared_images == ("images/0.png",)


def test_unreadable_images_keep_the_size_that_the_labels_state(make_coco):
    folder = make_coco({"train": [1, 2], "val": [4], "test": [5]})
    (folder / "images/train_1.png").unlink()
    (folder / "images/train_2.png").write_bytes(b"no image")
    scan = scan_data(str(folder))
    assert scan.total_images == 4
    assert scan.image_sizes == [(60, 80)] * 3  # the damaged file has no size


def test_large_splits_are_read_in_part(make_coco, monkeypatch):
    monkeypatch.setattr("detloom.pipelines.init.scan_data.MAX_RECORDS", 2)
    scan = scan_data(str(make_coco({"train": [1, 2, 3], "val": [4, 5], "test": [6]})))
    assert dict(scan.num_images) == {"train": 2, "val": 2, "test": 1}
    assert not scan.is_complete


def test_sizes_of_images_that_are_not_opened_come_from_the_labels(make_coco, monkeypatch):
    monkeypatch.setattr("detloom.pipelines.init.scan_data.MAX_IMAGES", 1)
    folder = make_coco({"train": [1, 2, 3]})
    for path in (folder / "images").glob("train_[23].png"):
        path.unlink()
    assert scan_data(str(folder)).image_sizes == [(60, 80)] * 3


def change_labels(folder, part, **values):
    """Change values of the first image or annotation of the training split."""
    path = folder / "annotations/train.json"
    content = json.loads(path.read_text())
    content[part][0].update(values)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("height", [0, -60])
def test_impossible_sizes_in_the_labels_are_left_out(make_coco, height):
    folder = make_coco({"train": [1, 2]})
    change_labels(folder, "images", height=height)
    (folder / "images/train_1.png").unlink()
    assert scan_data(str(folder)).image_sizes == [(60, 80)]


@pytest.mark.parametrize("box", [[float("nan"), 6, 16, 12], [8, 6, 0, 0], [500, 6, 16, 12]])
def test_boxes_without_an_area_in_the_image_are_left_out(make_coco, box):
    folder = make_coco({"train": [1, 2]})
    change_labels(folder, "annotations", bbox=box)
    scan = scan_data(str(folder))
    assert len(scan.boxes) == 3
    assert np.isfinite(scan.boxes).all()


def test_boxes_that_are_fractions_in_one_split_are_refused_as_by_a_run(make_coco):
    folder = make_coco({"train": [1], "val": [2]})
    path = folder / "annotations/train.json"
    content = json.loads(path.read_text())
    content["annotations"] = [{**annotation, "bbox": [0.1, 0.1, 0.5, 0.5]} for annotation in content["annotations"]]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="fractional_boxes"):
        scan_data(str(folder))


def test_images_without_labels_and_a_data_set_without_objects_are_refused(tmp_path, make_coco):
    with pytest.raises(InputError, match="no object whose image can be read"):
        scan_data(str(make_coco({"train": []})))
    (tmp_path / "unlabelled").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "unlabelled/a.png")
    with pytest.raises(InputError, match="images without labels"):
        scan_data(str(tmp_path / "unlabelled"))
