"""KITTI: records read, records quarantined, and errors that refuse the whole source."""

import pytest
from labelled_data import detect, read_items, records, rejects, write_files

from detloom.schemas.contracts.rejects import Reason

CAR = "Car 0.00 2 -1.58 587.01 173.33 614.12 200.5 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59"
DONT_CARE = "DontCare -1 -1 -10 503.89 169.71 590.61 190.13 -1 -1 -1 -1000 -1000 -1000 -10"


def read(folder, source="", **settings):
    return read_items("kitti", folder, source, **settings)


def test_boxes_are_pixels_and_dont_care_regions_are_counted(tmp_path):
    text = f"{CAR}\n{DONT_CARE}\n{CAR.replace('Car 0.00', 'Van 0.01')} 0.9\n"
    (record,) = read(write_files(tmp_path, {"label_2/000001.txt": text, "image_2/000001.png": b"x"}))
    assert (record.record_key, record.image_path) == ("000001", "image_2/000001.png")
    assert (record.annotation_path, record.declared_hw) == ("label_2/000001.txt", None)
    assert [(item.class_name, item.truncated) for item in record.objects] == [("Car", False), ("Van", True)]
    assert record.objects[0].box_xyxy == (587.01, 173.33, 614.12, 200.5)
    assert record.left_out == (("DontCare", 1),)
    assert not record.is_relative


def test_an_empty_label_file_is_an_image_without_boxes(tmp_path):
    (record,) = read(write_files(tmp_path, {"labels/part/a.txt": "\n", "images/part/a.jpg": b"x"}))
    assert (record.record_key, record.image_path, record.objects) == ("part/a", "images/part/a.jpg", ())


def test_a_missing_image_gets_kittis_default_name(tmp_path):
    (record,) = read(write_files(tmp_path, {"training/label_2/a.txt": CAR}), "training")
    assert record.image_path == "training/image_2/a.png"


def test_images_are_read_from_the_configured_folder(tmp_path):
    (record,) = read(write_files(tmp_path, {"label_2/a.txt": CAR, "left/a.jpg": b"x"}), images_dir="left")
    assert record.image_path == "left/a.jpg"


def test_a_list_names_the_records_of_a_split(tmp_path):
    folder = write_files(
        tmp_path,
        {"ImageSets/train.txt": "b\na\n", "training/label_2/a.txt": CAR, "training/label_2/b.txt": CAR},
    )
    assert [record.record_key for record in read(folder, "train")] == ["b", "a"]
    assert [record.record_key for record in read(folder, "ImageSets/train.txt")] == ["b", "a"]


def test_with_several_label_folders_keys_are_relative_to_the_data_folder(tmp_path):
    folder = write_files(tmp_path, {"train/labels/1.txt": CAR, "val/labels/1.txt": CAR})
    assert [record.record_key for record in read(folder)] == ["train/labels/1", "val/labels/1"]
    assert [record.record_key for record in read(folder, "val")] == ["1"]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (CAR.rsplit(" ", 1)[0], "got 14 columns, allowed: 15, or 16 with a score"),
        (CAR + " 1 2", "got 17 columns"),
        (CAR.replace("587.01", "x"), "columns 2 to 8"),
        (CAR.replace("0.00", "no"), "columns 2 to 8"),
        (CAR.replace("Car", "C\0r"), "type"),
        ("x" * 70_000, "got 1 columns"),
    ],
)
def test_an_invalid_line_is_rejected_as_a_box(tmp_path, line, detail):
    items = read(write_files(tmp_path, {"label_2/a.txt": f"{CAR}\n{line}\n"}))
    (reject,) = rejects(items)
    assert (reject.reason, reject.scope, reject.record_key) == (Reason.UNREADABLE_ANNOTATION, "box", "a")
    assert reject.detail.startswith("line 2: ")
    assert detail in reject.detail
    assert len(records(items)[0].objects) == 1


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a\0b"])
def test_a_listed_name_that_leads_outside_is_rejected(tmp_path, name):
    folder = write_files(tmp_path, {"ImageSets/train.txt": f"{name}\na", "label_2/a.txt": CAR, "etc/passwd.txt": CAR})
    items = read(folder, "train")
    assert [(item.reason, item.record_key) for item in rejects(items)] == [(Reason.PATH_OUTSIDE, name)]
    assert len(records(items)) == 1


def test_a_listed_record_without_a_label_file_is_a_missing_file(tmp_path):
    (reject,) = read(write_files(tmp_path, {"ImageSets/train.txt": "a", "label_2/b.txt": CAR}), "train")
    assert (reject.reason, reject.file) == (Reason.MISSING_FILE, "label_2/a.txt")


def test_label_files_with_upper_case_suffixes_are_read(tmp_path):
    folder = write_files(tmp_path, {"label_2/a.TXT": CAR, "image_2/a.png": b"x", "ImageSets/train.txt": "a\n"})
    for source in ("", "train"):
        (record,) = read(folder, source)
        assert (record.record_key, record.annotation_path, len(record.objects)) == ("a", "label_2/a.TXT", 1)
    assert detect("kitti", folder) is not None


def test_boxes_of_a_label_file_with_too_many_lines_are_counted(tmp_path):
    (reject,) = read(write_files(tmp_path, {"label_2/a.txt": "x\n" * 100_001}))
    assert (reject.reason, reject.num_boxes) == (Reason.TOO_MANY_BOXES, 100_001)
