"""The readers: what they return, what they quarantine, what they refuse as a whole."""

import json
from pathlib import Path

import pytest

from detloom.components.example_gen.sources.coco import read_coco_split
from detloom.components.example_gen.sources.source_record import join_inside
from detloom.components.example_gen.sources.voc import read_voc_split
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason


def reasons(split):
    return [(reject.reason, reject.scope, reject.record_key) for reject in split.rejects]


def test_voc_keeps_pixel_values_as_they_stand(make_voc):
    folder = make_voc({"train": ["a"]}, {"a": [("cat", 1, 2, 30.5, 40)]})
    (record,) = read_voc_split(folder, "train", "train", "").records
    (item,) = record.objects
    assert (record.record_key, record.image_path, record.declared_hw) == ("a", "JPEGImages/a.jpg", (40, 60))
    assert (item.class_name, item.box_xyxy_px, item.truncated, item.difficult) == ("cat", (1, 2, 30.5, 40), True, False)


def test_voc_list_of_one_class_drops_its_flags(make_voc):
    folder = make_voc({"train": ["a", "b"]})
    (folder / "ImageSets/Main/cat_train.txt").write_text("a  1\nb -1\n")
    assert [record.record_key for record in read_voc_split(folder, "train", "cat_train", "").records] == ["a", "b"]


def test_voc_image_is_found_by_stem_when_filename_is_stale(make_voc):
    folder = make_voc({"train": ["a"]})
    path = folder / "Annotations/a.xml"
    path.write_text(path.read_text().replace("<filename>a.jpg", "<filename>IMG_1234.jpg"))
    assert read_voc_split(folder, "train", "train", "").records[0].image_path == "JPEGImages/a.jpg"


def test_voc_missing_list_names_file_and_alternatives(make_voc):
    folder = make_voc({"train": ["a"]})
    with pytest.raises(InputError, match=r"ImageSets/Main/trian\.txt.*split 'train'.*lists there: \['train'\]"):
        read_voc_split(folder, "train", "trian", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<annotation><object>", Reason.UNREADABLE_ANNOTATION),
        ("<other/>", Reason.UNREADABLE_ANNOTATION),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', Reason.UNREADABLE_ANNOTATION),
        ("<annotation><filename>../../etc/passwd</filename></annotation>", Reason.PATH_OUTSIDE),
    ],
)
def test_voc_annotation_file_at_fault_quarantines_its_record_only(make_voc, text, reason):
    folder = make_voc({"train": ["a", "b"]})
    (folder / "Annotations/a.xml").write_text(text)
    split = read_voc_split(folder, "train", "train", "")
    assert reasons(split) == [(reason, "record", "a")]
    assert split.rejects[0].file == "Annotations/a.xml"
    assert [record.record_key for record in split.records] == ["b"]
    assert split.num_records_in == 2


def test_voc_missing_annotation_file_is_a_missing_file(make_voc):
    folder = make_voc({"train": ["a", "b"]})
    (folder / "Annotations/b.xml").unlink()
    assert reasons(read_voc_split(folder, "train", "train", "")) == [(Reason.MISSING_FILE, "record", "b")]


def test_voc_listed_name_that_leads_outside_is_refused(make_voc):
    folder = make_voc({"train": ["a"]})
    (folder / "ImageSets/Main/train.txt").write_text("../../secret\n")
    assert reasons(read_voc_split(folder, "train", "train", "")) == [(Reason.PATH_OUTSIDE, "record", "../../secret")]


def test_voc_box_that_is_no_number_is_refused_as_a_box(make_voc):
    folder = make_voc({"train": ["a"]}, {"a": [("cat", 1, 1, 9, 9), ("cat", "x", 1, 9, 9)]})
    split = read_voc_split(folder, "train", "train", "")
    assert reasons(split) == [(Reason.UNREADABLE_ANNOTATION, "box", "a")]
    assert "object 1" in split.rejects[0].detail
    assert len(split.records[0].objects) == 1


def test_coco_boxes_become_corners_and_keep_area_and_crowd(make_coco):
    annotation = {"image_id": 5, "category_id": 7, "bbox": [10, 4, 20, 8], "area": 99.5, "iscrowd": 1}
    folder = make_coco({"train.json": ([{"id": 5, "file_name": "a.jpg", "height": 40, "width": 60}], [annotation])})
    split = read_coco_split(folder, "train", "train.json", "")
    (record,) = split.records
    (item,) = record.objects
    assert (record.record_key, record.image_path, record.declared_hw) == ("5", "images/a.jpg", (40, 60))
    # 10 + 20 = 30, 4 + 8 = 12
    assert (item.class_name, item.box_xyxy_px, item.area_px, item.is_crowd) == ("dog", (10, 4, 30, 12), 99.5, True)
    assert split.class_ids == {"cat": 3, "dog": 7}


def test_coco_file_names_are_relative_to_the_data_folder_where_it_has_no_images_folder(tmp_path):
    data = {"images": [{"id": 1, "file_name": "train2017/a.jpg"}], "annotations": [], "categories": []}
    (tmp_path / "train.json").write_text(json.dumps(data))
    assert read_coco_split(tmp_path, "train", "train.json", "").records[0].image_path == "train2017/a.jpg"
    by_setting = read_coco_split(tmp_path, "train", "train.json", "pictures")
    assert by_setting.records[0].image_path == "pictures/train2017/a.jpg"


def test_coco_broken_json_names_file_and_line(tmp_path):
    (tmp_path / "train.json").write_text('{"images": [],\n "annotations": oops}')
    with pytest.raises(InputError, match=r"train\.json:2: not readable as JSON"):
        read_coco_split(tmp_path, "train", "train.json", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "top level must be an object, got a list"),
        ('{"images": {}}', "'images' must be a list, got an object"),
        ('{"images": [], "annotations": [], "categories": [{"id": "1", "name": "a"}]}', r"categories\[0\] needs"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}', "twice"),
        ("[" * 100_000, "cannot be read"),
        ("\xff", "cannot be read"),
    ],
)
def test_coco_file_of_the_wrong_shape_is_refused_with_its_name(tmp_path, text, message):
    (tmp_path / "train.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=rf"train\.json.*{message}"):
        read_coco_split(tmp_path, "train", "train.json", "")


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"id": 1, "file_name": 7}, Reason.UNREADABLE_ANNOTATION),
        ({"id": None, "file_name": "a.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "a.jpg", "height": "40"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "\ud800.jpg"}, Reason.UNREADABLE_ANNOTATION),
        ({"id": 1, "file_name": "../a.jpg"}, Reason.PATH_OUTSIDE),
        ({"id": 1, "file_name": "/a.jpg"}, Reason.PATH_OUTSIDE),
        ({"id": 1, "file_name": "a\0.jpg"}, Reason.PATH_OUTSIDE),
    ],
)
def test_coco_image_entry_at_fault_quarantines_its_record(tmp_path, image, reason):
    data = {"images": [image], "annotations": [], "categories": []}
    (tmp_path / "train.json").write_text(json.dumps(data))
    (reject,) = read_coco_split(tmp_path, "train", "train.json", "").rejects
    assert (reject.reason, reject.scope, reject.file) == (reason, "record", "train.json")


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ({"image_id": 1, "category_id": 99, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "category_id": "3", "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_CLASS),
        ({"image_id": 1, "category_id": 3, "bbox": [1, 2, 3]}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, "4"]}, Reason.UNREADABLE_ANNOTATION),
        ({"image_id": 2, "category_id": 3, "bbox": [1, 2, 3, 4]}, Reason.UNKNOWN_IMAGE),
        ("text", Reason.UNKNOWN_IMAGE),
    ],
)
def test_coco_annotation_at_fault_is_refused_as_a_box(tmp_path, annotation, reason):
    data = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [annotation],
        "categories": [{"id": 3, "name": "cat"}],
    }
    (tmp_path / "train.json").write_text(json.dumps(data))
    split = read_coco_split(tmp_path, "train", "train.json", "")
    assert [(reject.reason, reject.scope) for reject in split.rejects] == [(reason, "box")]
    assert "annotations[0]" in split.rejects[0].detail
    assert len(split.records) == 1


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        ("images", "a.jpg", "images/a.jpg"),
        ("images", "x/../a.jpg", "images/a.jpg"),
        ("", "a.jpg", "a.jpg"),
        ("images", "../a.jpg", None),
        ("images", "../images2/a.jpg", None),
        ("images", "/a.jpg", None),
        ("images", "", None),
        ("images", ".", None),
        ("", "..", None),
        ("", "a\0b", None),
    ],
)
def test_a_name_joins_its_folder_only_if_it_stays_inside(folder, name, expected):
    assert join_inside(folder, name) == expected


def test_readers_import_neither_tfx_nor_beam_nor_tensorflow():
    import subprocess
    import sys

    code = (
        "import sys, detloom.components.example_gen.sources.voc, detloom.components.example_gen.sources.coco;"
        "print({'tfx', 'apache_beam', 'tensorflow'} & set(sys.modules))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
