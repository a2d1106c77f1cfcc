"""LabelMe: shapes become boxes, and only unreadable files are rejected."""

import json
import math

import pytest
from labelled_data import detect, read_items

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import image_entries, labelme
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.run_file.data import IngestSettings


def read(folder, source="", **settings):
    return read_items("labelme", folder, source, **settings)


def write(folder, name="a.json", shapes=(), **values):
    data = {"version": "5.4.1", "flags": {}, "shapes": list(shapes), "imagePath": "a.jpg", "imageData": None}
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({**data, "imageHeight": 40, "imageWidth": 60, **values}), encoding="utf-8")
    return folder


def shape(shape_type="rectangle", points=((1, 2), (30.5, 20)), label="cat", **values):
    return {"label": label, "points": [list(p) for p in points], "shape_type": shape_type, "group_id": None, **values}


def read_shape(folder, found, **settings):
    (record,) = read(write(folder, shapes=[found]), **settings)
    (item,) = record.objects
    return item


def test_a_rectangle_is_a_box_and_the_record_key_is_the_file_name(tmp_path):
    (record,) = read(write(tmp_path, "x/a.json", [shape()]))
    assert (record.record_key, record.image_path, record.annotation_path) == ("x/a", "x/a.jpg", "x/a.json")
    assert (record.declared_hw, record.is_relative) == ((40, 60), False)
    assert (record.objects[0].class_name, record.objects[0].box_xyxy) == ("cat", (1, 2, 30.5, 20))


@pytest.mark.parametrize(
    ("found", "box", "mask"),
    [
        (shape(points=[(30, 2), (1, 20)]), (1, 2, 30, 20), None),  # drawn from another corner
        (shape("polygon", [(5, 1), (9, 7), (2, 3)]), (2, 1, 9, 7), [[5, 1, 9, 7, 2, 3]]),
        (shape(None, [(5, 1), (9, 7), (2, 3)]), (2, 1, 9, 7), [[5, 1, 9, 7, 2, 3]]),
        # centre (20, 10), a point on its edge 3 right and 4 down: radius 5
        (shape("circle", [(20, 10), (23, 14)]), (15, 5, 25, 15), None),
        (shape("mask", [(30, 20), (1, 2)], mask="iVBORw0KGgo="), (1, 2, 30, 20), None),
    ],
)
def test_a_shape_becomes_its_bounding_box_and_a_polygon_a_mask_on_request(tmp_path, found, box, mask):
    assert read_shape(tmp_path, found)[1] == box
    assert read_shape(tmp_path, found).mask is None
    assert read_shape(tmp_path, found, masks=True).mask == mask


def test_shapes_without_an_area_are_left_out(tmp_path):
    open_shapes = [
        shape("point", [(1, 2)]),
        shape("line"),
        shape("linestrip", [(1, 2), (2, 3), (3, 4)]),
        shape("line"),
        shape("points"),
    ]
    (record,) = read(write(tmp_path, shapes=[*open_shapes, shape()]))
    assert record.left_out == (("point", 1), ("line", 2), ("linestrip", 1), ("points", 1))
    assert len(record.objects) == 1


def test_too_many_shapes_reject_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr(image_entries, "MAX_OBJECTS_PER_IMAGE", 3)
    (reject,) = read(write(tmp_path, shapes=[[]] * 4))
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.TOO_MANY_BOXES, "record", 4)


def test_a_size_may_be_a_float_with_a_whole_value(tmp_path):
    (record,) = read(write(tmp_path, imageHeight=40.0, imageWidth=64.0))
    assert record.declared_hw == (40, 64)


def test_flags_are_read(tmp_path):
    item = read_shape(tmp_path, shape(flags={"difficult": True, "truncated": False, "other": True}))
    assert (item.difficult, item.truncated) == (True, False)


def test_a_nan_point_gives_a_nan_box(tmp_path):
    for points in ([(1, 2), (math.nan, 3), (3, 4)], [(math.nan, 2), (1, 3), (3, 4)]):
        assert all(map(math.isnan, read_shape(tmp_path, shape("polygon", points)).box_xyxy))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (shape("cuboid"), "shape_type 'cuboid'"),
        (shape("mask", [(1, 2), (2, 3), (3, 4)]), "shape_type 'mask' of 3 points"),
        (shape(["x"]), "shape_type"),
        (shape("polygon"), "of 2 points"),
        (shape(points=[]), "of 0 points"),
        (shape(points=[(1, "2"), (3, 4)]), "'points'"),
        (shape(points=[(1,), (3, 4)]), "'points'"),
        ({**shape(), "points": "text"}, "'points'"),
        (shape(label=" "), "'label'"),
        (shape(label=3), "'label'"),
        (shape(label="x" * 4097), "4096 bytes"),
        (shape(label="\ud800"), "'label'"),
        ("text", "object"),
    ],
)
def test_an_invalid_shape_is_rejected_as_a_box(tmp_path, found, words):
    reject, record = read(write(tmp_path, shapes=[found]))
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.UNREADABLE_ANNOTATION, "box", 1)
    assert reject.detail.startswith("shapes[0]: ")
    assert words in reject.detail
    assert record.objects == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.UNREADABLE_ANNOTATION),
        ("[1]", Reason.UNREADABLE_ANNOTATION),
        ('{"shapes": []}', Reason.UNREADABLE_ANNOTATION),
        ('{"shapes": {}, "imagePath": "a.jpg"}', Reason.UNREADABLE_ANNOTATION),
        ('{"shapes": ' + "[" * 100_000, Reason.UNREADABLE_ANNOTATION),
        ('{"shapes": [' + "1" * 5000 + "]}", Reason.UNREADABLE_ANNOTATION),
        ("\xff\xfe", Reason.UNREADABLE_ANNOTATION),
        ('{"shapes": [], "imagePath": "' + "a" * 200_000 + '"}', Reason.FILE_TOO_LARGE),
        ('{"shapes": [], "imagePath": "../a.jpg"}', Reason.PATH_OUTSIDE),
        ('{"shapes": [], "imagePath": "/etc/passwd"}', Reason.PATH_OUTSIDE),
        ('{"shapes": [], "imagePath": "C:\\\\data\\\\a.jpg"}', Reason.PATH_OUTSIDE),
    ],
)
def test_a_damaged_file_quarantines_only_its_record(tmp_path, text, reason, monkeypatch):
    monkeypatch.setattr(labelme, "MAX_ANNOTATION_BYTES", 150_000)
    write(tmp_path, "b.json", imagePath="b.jpg")
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    reject, record = read(tmp_path)
    assert isinstance(record, SourceRecord)
    assert (reject.reason, reject.scope, reject.record_key, reject.file) == (reason, "record", "a", "a.json")
    assert len(reject.detail) < 200


def test_a_deleted_file_is_a_missing_file(tmp_path):
    folder, settings = DataFolder(str(write(tmp_path))), IngestSettings()
    (chunk,) = labelme.list_chunks(folder, "train", "", settings)
    (tmp_path / "a.json").unlink()
    (reject,) = labelme.read_chunk(folder, chunk, settings)
    assert (reject.reason, reject.scope) == (Reason.MISSING_FILE, "record")


@pytest.mark.parametrize(
    ("image_path", "images_dir", "expected"),
    [
        ("..\\images\\a.jpg", "", "images/a.jpg"),
        ("../images/a.jpg", "", "images/a.jpg"),
        ("./a.jpg", "", "images/a.jpg"),
        ("..\\x\\a.jpg", "photos", "photos/a.jpg"),
        ("IMG_1234.jpg", "", "labels/a.png"),  # renamed with its JSON file
    ],
)
def test_the_image_may_be_in_another_folder_of_the_data(tmp_path, image_path, images_dir, expected):
    write(tmp_path, "labels/a.json", imagePath=image_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"")
    (tmp_path / "labels" / "a.png").write_bytes(b"")
    (record,) = read(tmp_path, images_dir=images_dir)
    assert record.image_path == expected


def test_folders_named_after_splits_are_splits_and_others_are_named(tmp_path):
    (tmp_path / "images").mkdir()
    for part in ("train", "val", "other"):
        write(tmp_path, f"{part}/a.json", [shape()])
    evidence = detect("labelme", tmp_path)
    assert evidence.splits == {"train": "train", "val": "val"}
    assert evidence.sentence.endswith("; not read, because not named after splits: other/ (1 JSON files)")
    (record,) = read(tmp_path, "val")
    assert (record.record_key, record.image_path) == ("a", "val/a.jpg")
