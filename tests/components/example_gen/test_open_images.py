"""Open Images: rows to records, classes by name, the hierarchy's ancestors."""

import json
import math

import pytest
from labelled_data import classes, detect, read_items, records, rejects

from detloom.components.example_gen.sources import image_entries
from detloom.components.example_gen.sources.source_record import SourceClass
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError

HEADER = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
NAMES = "/m/01,Cat\n/m/02,Animal\n/m/03,Dog\n/m/04,Husky\n"
# Entity: Animal (Cat, Dog (Husky)), with a part of an animal that is not a subcategory
HIERARCHY = {
    "LabelName": "/m/0bl9f",
    "Subcategory": [
        {
            "LabelName": "/m/02",
            "Part": [{"LabelName": "/m/09"}],
            "Subcategory": [
                {"LabelName": "/m/01"},
                {"LabelName": "/m/03", "Subcategory": [{"LabelName": "/m/04"}]},
            ],
        }
    ],
}


def read(folder, source="train-annotations-bbox.csv", **settings):
    return read_items("open_images", folder, source, **settings)


def row(image_id="a1", label="/m/01", box=(0.25, 0.75, 0.125, 0.5), flags="0,0,0,0,0"):
    return f"{image_id},xclick,{label},1,{','.join(map(str, box))},{flags}"


def write(folder, *rows, names=NAMES, header=HEADER, name="train-annotations-bbox.csv"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="latin-1")
    if names:
        (folder / "class-descriptions-boxable.csv").write_text(names)
    return folder


def test_corners_are_fractions_and_classes_have_names(tmp_path):
    items = read(write(tmp_path, row()))
    (record,) = records(items)
    (item,) = record.objects
    assert (record.record_key, record.image_path, record.is_relative) == ("a1", "images/a1.jpg", True)
    # columns are XMin, XMax, YMin, YMax
    assert (item.class_name, item.box_xyxy) == ("Cat", (0.25, 0.125, 0.75, 0.5))
    assert classes(items) == [SourceClass(name) for name in ("Cat", "Animal", "Dog", "Husky")]


def test_scattered_rows_of_one_image_are_one_record(tmp_path):
    found = records(read(write(tmp_path, row("b"), row("a"), row("b", "/m/03"))))
    assert [(record.record_key, [item.class_name for item in record.objects]) for record in found] == [
        ("a", ["Cat"]),
        ("b", ["Cat", "Dog"]),
    ]


def test_group_of_and_truncated_are_kept_and_minus_one_means_unknown(tmp_path):
    rows = [row(flags="0,1,1,0,0"), row(flags="-1,-1,-1,-1,-1")]
    (record,) = records(read(write(tmp_path, *rows)))
    assert [(item.truncated, item.group_of) for item in record.objects] == [(True, True), (False, False)]


def test_repeated_column_is_refused_by_name(tmp_path):
    folder = write(tmp_path, row() + ",0.5", header=HEADER + ",XMin")
    with pytest.raises(InputError, match=r"train-annotations-bbox\.csv:1: .* XMin "):
        read(folder)


def test_columns_are_found_by_their_names(tmp_path):
    header = "YMax,XMin,LabelName,XMax,ImageID,YMin,More"
    (record,) = records(read(write(tmp_path, '0.5,0.25,"/m/01",0.75,a1,0.125,x', header=header)))
    assert record.objects[0].box_xyxy == (0.25, 0.125, 0.75, 0.5)


def test_without_class_descriptions_labels_are_names(tmp_path):
    items = read(write(tmp_path, row(), names=""))
    assert records(items)[0].objects[0].class_name == "/m/01"
    assert classes(items) == []


def test_the_list_of_all_labels_declares_no_classes(tmp_path):
    write(tmp_path, row(), names="")
    (tmp_path / "oidv7-class-descriptions.csv").write_text('LabelName,DisplayName\n/m/01,"Cat, big"\n/m/77,Bell\n')
    items = read(tmp_path)
    assert records(items)[0].objects[0].class_name == "Cat, big"
    assert classes(items) == []


def test_numbers_that_are_not_finite_pass_through(tmp_path):
    (record,) = records(read(write(tmp_path, row(box=("nan", "inf", "-1e30", 2)))))
    assert math.isnan(record.objects[0].box_xyxy[0])
    assert record.objects[0].box_xyxy[1:] == (-1e30, math.inf, 2)


@pytest.mark.parametrize(
    ("line", "reason", "key", "words"),
    [
        (row(label="/m/99"), Reason.UNKNOWN_CLASS, "a1", "LabelName '/m/99'"),
        (row(label=""), Reason.UNREADABLE_ANNOTATION, "a1", "LabelName"),
        (row(box=("x", 1, 1, 1)), Reason.UNREADABLE_ANNOTATION, "a1", "XMin 'x'"),
        (row(box=("", 1, 1, 1)), Reason.UNREADABLE_ANNOTATION, "a1", "XMin ''"),
        (row(""), Reason.UNREADABLE_ANNOTATION, "", "image must be text"),
        (row("x" * 4097), Reason.UNREADABLE_ANNOTATION, "", "image must be text"),
        ("a1,xclick", Reason.UNREADABLE_ANNOTATION, "", "13 values, got 2"),
        (row('"a1'), Reason.UNREADABLE_ANNOTATION, "", "quotes"),
        (row("\xff"), Reason.UNREADABLE_ANNOTATION, "", "UTF-8"),
        (row("a" * 200_000), Reason.UNREADABLE_ANNOTATION, "", "131072 bytes"),
    ],
)
def test_an_invalid_row_is_rejected_with_its_line(tmp_path, line, reason, key, words):
    items = read(write(tmp_path, row("b"), line, row("c")))
    (reject,) = rejects(items)
    assert (reject.reason, reject.scope, reject.record_key, reject.num_boxes) == (reason, "box", key, 1)
    assert reject.detail.startswith("line 3: ")
    assert words in reject.detail
    assert [record.record_key for record in records(items)] == sorted({"b", "c", key} - {""})


def test_an_image_id_that_leads_outside_rejects_its_record(tmp_path):
    (reject,) = rejects(read(write(tmp_path, row("../../x"), row("../../x"))))
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.PATH_OUTSIDE, "record", 2)


def test_an_image_with_too_many_rows_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(image_entries, "MAX_OBJECTS_PER_IMAGE", 3)
    (reject,) = rejects(read(write(tmp_path, *[row()] * 5)))
    assert (reject.reason, reject.scope, reject.num_boxes) == (Reason.TOO_MANY_BOXES, "record", 5)


def test_a_box_is_repeated_for_all_ancestors_except_the_root(tmp_path):
    write(tmp_path, row(label="/m/04", flags="0,0,1,0,0"), row(label="/m/02"))
    (tmp_path / "tree.json").write_text(json.dumps(HIERARCHY))
    (record,) = records(read(tmp_path, hierarchy_file="tree.json"))
    assert [(item.class_name, item.group_of) for item in record.objects] == [
        ("Husky", True),
        ("Dog", True),
        ("Animal", True),
        ("Animal", False),
    ]
    assert len({item.box_xyxy for item in record.objects}) == 1


def test_a_class_at_two_positions_has_the_ancestors_of_both_once(tmp_path):
    tree = {
        "LabelName": "/m/0bl9f",
        "Subcategory": [
            {"LabelName": "/m/02", "Subcategory": [{"LabelName": "/m/01"}]},
            {"LabelName": "/m/03", "Subcategory": [{"LabelName": "/m/02", "Subcategory": [{"LabelName": "/m/01"}]}]},
        ],
    }
    write(tmp_path, row(label="/m/01"))
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    (record,) = records(read(tmp_path, hierarchy_file="tree.json"))
    assert [item.class_name for item in record.objects] == ["Cat", "Animal", "Dog"]


def nested(depth):
    node: dict = {"LabelName": "/m/01"}
    for _ in range(depth):
        node = {"LabelName": "/m/01", "Subcategory": [node]}
    return json.dumps(node)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "'LabelName'"),
        ('{"LabelName": 1}', "'LabelName'"),
        ('{"LabelName": "/m/01", "Subcategory": {}}', "'LabelName'"),
        ('{"LabelName": "/m/01", "Subcategory": ["x"]}', "'LabelName'"),
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        (nested(100), "32 levels"),
        (json.dumps(HIERARCHY).replace("/m/02", "/m/88"), "'/m/88'"),
    ],
)
def test_an_invalid_hierarchy_is_an_error_with_its_name(tmp_path, text, words):
    write(tmp_path, row())
    (tmp_path / "tree.json").write_text(text)
    with pytest.raises(InputError, match=rf"tree\.json: .*{words}"):
        read(tmp_path, hierarchy_file="tree.json")


@pytest.mark.parametrize(
    ("source", "image", "expected"),
    [
        ("train-annotations-bbox.csv", "train/a1.jpg", "train/a1.jpg"),
        ("annotations/oidv6-train-annotations-bbox.csv", "images/train/a1.jpg", "images/train/a1.jpg"),
        ("validation-annotations-bbox.csv", "validation/a1.jpg", "validation/a1.jpg"),
        ("annotations/train.csv", "data/a1.jpg", "data/a1.jpg"),
        ("boxes.csv", "a1.jpg", "a1.jpg"),
    ],
)
def test_images_are_found_in_the_usual_folders(tmp_path, source, image, expected):
    write(tmp_path, row(), name=source)
    (tmp_path / image).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / image).write_bytes(b"")
    assert records(read(tmp_path, source))[0].image_path == expected
    assert records(read(tmp_path, source, images_dir="x"))[0].image_path == "x/a1.jpg"


def test_missing_columns_are_an_error_with_their_names(tmp_path):
    write(tmp_path, header="ImageID,LabelName,Confidence")
    with pytest.raises(InputError, match=r"bbox\.csv:1: .*XMin, XMax, YMin, YMax"):
        read(tmp_path)


def test_fiftyones_layout_is_detected_and_read(tmp_path):
    for part in ("train", "validation"):
        write(tmp_path, row(), names="", name=f"{part}/labels/detections.csv")
        (tmp_path / part / "metadata").mkdir()
        (tmp_path / part / "metadata" / "classes.csv").write_text(NAMES)
        (tmp_path / part / "data").mkdir()
        (tmp_path / part / "data" / "a1.jpg").write_bytes(b"image")
    evidence = detect("open_images", tmp_path)
    assert evidence.splits == {"train": "train/labels/detections.csv", "val": "validation/labels/detections.csv"}
    items = read(tmp_path, "validation/labels/detections.csv")
    (record,) = records(items)
    assert (record.image_path, record.objects[0].class_name) == ("validation/data/a1.jpg", "Cat")
    assert classes(items)[0] == SourceClass("Cat")
