"""Pascal VOC: records read, records quarantined, and errors that refuse the whole source."""

import pytest
from labelled_data import detect, read_items, records, write_files

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import source_record, voc
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

BOX = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>"


def read(folder, source="train", **settings):
    return read_items("voc", folder, source, **settings)


def reasons(items):
    return [(item.reason, item.scope, item.record_key) for item in items if isinstance(item, Reject)]


def write_objects(folder, objects, stem="a"):
    text = f"<annotation><filename>{stem}.jpg</filename>{objects}</annotation>"
    (folder / f"Annotations/{stem}.xml").write_text(text)


def test_pixel_coordinates_are_unchanged(make_voc):
    (record,) = read(make_voc({"train": ["a"]}, {"a": [("cat", 1, 2, 30.5, 40)]}))
    (item,) = record.objects
    assert (record.split, record.record_key, record.image_path) == ("train", "a", "JPEGImages/a.jpg")
    assert (record.annotation_path, record.declared_hw) == ("Annotations/a.xml", (40, 60))
    assert (item.class_name, item.box_xyxy, item.truncated, item.difficult) == ("cat", (1, 2, 30.5, 40), True, False)


@pytest.mark.parametrize(
    "objects",
    [
        f"<object><name> cat </name><difficult>1</difficult>{BOX}</object>",
        f"<object>{BOX}<truncated>0</truncated><difficult> 1 </difficult><name>cat</name><pose>Left</pose></object>",
        f"<owner><name>me</name></owner><object><name>cat</name><difficult>1</difficult>{BOX}</object>",
        f"<object><name>cat</name><difficult>1</difficult>{BOX}<part><name>head</name>{BOX}</part></object>",
        f"<object><part><name>head</name>{BOX}</part><name>cat</name><difficult>1</difficult>{BOX}</object>",
    ],
)
def test_an_object_is_read_regardless_of_other_fields(make_voc, objects):
    folder = make_voc({"train": ["a"]})
    write_objects(folder, objects)
    (record,) = read(folder)
    (item,) = record.objects
    assert (item.class_name, item.box_xyxy, item.difficult, item.truncated) == ("cat", (1, 2, 3, 4), True, False)


def test_nan_and_huge_numbers_are_passed_on(make_voc):
    folder = make_voc({"train": ["a"]})
    box = "<bndbox><xmin>nan</xmin><ymin>-inf</ymin><xmax>1e400</xmax><ymax>1e9</ymax></bndbox>"
    write_objects(folder, f"<object><name>cat</name>{box}</object>")
    (record,) = read(folder)
    xmin, ymin, xmax, ymax = record.objects[0].box_xyxy
    assert xmin != xmin
    assert (ymin, xmax, ymax) == (float("-inf"), float("inf"), 1e9)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("<size><width>60</width><height>40.0</height></size>", (40, 60)),
        ("<size><width>0</width><height>0</height></size>", None),
        ("<size><width>x</width><height>inf</height></size>", None),
        ("", None),
    ],
)
def test_the_declared_size_is_used_if_valid(make_voc, size, expected):
    folder = make_voc({"train": ["a"]})
    (folder / "Annotations/a.xml").write_text(f"<annotation>{size}</annotation>")
    (record,) = read(folder)
    assert record.declared_hw == expected
    assert record.objects == ()


def test_the_flags_of_a_one_class_list_are_dropped(make_voc):
    folder = make_voc({"train": ["a", "b"]})
    (folder / "ImageSets/Main/cat_train.txt").write_text("a  1\nb -1\n")
    assert [record.record_key for record in read(folder, "cat_train")] == ["a", "b"]


def test_without_a_list_all_annotations_are_read(make_voc):
    folder = make_voc({"train": ["a", "b"], "val": ["c"]})
    (folder / "Annotations/part").mkdir()
    (folder / "Annotations/part/d.xml").write_text("<annotation><filename>d.png</filename></annotation>")
    (folder / "JPEGImages/part").mkdir()
    (folder / "JPEGImages/part/d.png").write_bytes(b"x")
    found = [(record.record_key, record.image_path) for record in read(folder, "")]
    assert [key for key, _ in found] == ["a", "b", "c", "part/d"]
    assert found[3] == ("part/d", "JPEGImages/part/d.png")


@pytest.mark.parametrize(("data", "message"), [(b" \n\n", "empty"), (b"\xff", "UTF-8")])
def test_an_empty_list_is_an_error(make_voc, data, message):
    folder = make_voc({"train": ["a"]})
    (folder / "ImageSets/Main/train.txt").write_bytes(data)
    with pytest.raises(InputError, match=rf"train\.txt: .*'train' .*{message}"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "reason", "num_boxes"),
    [
        ("<annotation><object>", Reason.UNREADABLE_ANNOTATION, 0),
        ("<other/>", Reason.UNREADABLE_ANNOTATION, 0),
        ("", Reason.UNREADABLE_ANNOTATION, 0),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', Reason.UNREADABLE_ANNOTATION, 0),
        (None, Reason.MISSING_FILE, 0),
        ("<annotation>" + " " * 2000 + "</annotation>", Reason.FILE_TOO_LARGE, 0),
    ],
)
def test_a_damaged_annotation_file_quarantines_only_its_record(make_voc, text, reason, num_boxes, monkeypatch):
    monkeypatch.setattr(voc, "MAX_ANNOTATION_BYTES", 1000)
    folder = make_voc({"train": ["a", "b"]})
    if text is None:
        (folder / "Annotations/a.xml").unlink()
    else:
        (folder / "Annotations/a.xml").write_text(text)
    items = read(folder)
    assert reasons(items) == [(reason, "record", "a")]
    assert (items[0].file, items[0].num_boxes) == ("Annotations/a.xml", num_boxes)
    assert [record.record_key for record in records(items)] == ["b"]


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a\0b", "x" * 5000])
def test_an_invalid_listed_name_quarantines_only_its_record(make_voc, name):
    folder = make_voc({"train": ["a"]})
    (folder / "ImageSets/Main/train.txt").write_text(f"{name}\na\n")
    items = read(folder)
    ((reason, scope, key),) = reasons(items)
    assert (scope, key) == ("record", name)
    assert reason is (Reason.UNREADABLE_FILE if name[0] == "x" else Reason.PATH_OUTSIDE)
    assert len(items[0].detail) < 200
    assert [record.record_key for record in records(items)] == ["a"]


@pytest.mark.parametrize(
    ("element", "detail"),
    [
        (f"<object>{BOX}</object>", "<name> is missing or empty"),
        (f"<object><name> </name>{BOX}</object>", "<name> is missing or empty"),
        ("<object><name>cat</name></object>", "class 'cat': <bndbox> needs a number xmin, got None"),
        (f"<object><name>cat</name>{BOX.replace('>1<', '>x<')}</object>", "needs a number xmin, got 'x'"),
        (f"<object><name>cat</name>{BOX.replace('>4<', '><')}</object>", "needs a number ymax, got"),
        ("<object><name>c</name><bndbox/><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></object>", "xmin"),
    ],
)
def test_only_an_invalid_box_is_rejected(make_voc, element, detail):
    folder = make_voc({"train": ["a"]})
    write_objects(folder, f"<object><name>cat</name>{BOX}</object>{element}")
    items = read(folder)
    assert reasons(items) == [(Reason.UNREADABLE_ANNOTATION, "box", "a")]
    assert items[0].detail.startswith("object 1: ")
    assert detail in items[0].detail
    assert len(records(items)[0].objects) == 1
    write_objects(folder, element)  # alone, so that all objects are equal
    assert reasons(read(folder)) == [(Reason.UNREADABLE_ANNOTATION, "box", "a")]


def test_names_are_cut_into_chunks_of_the_configured_size(make_voc, monkeypatch):
    monkeypatch.setattr(source_record, "RECORDS_PER_CHUNK", 2)
    folder = DataFolder(str(make_voc({"train": ["a", "b", "c"]})))
    chunks = list(voc.list_chunks(folder, "train", "train", IngestSettings()))
    assert [chunk.names for chunk in chunks] == [("a", "b"), ("c",)]
    assert {chunk.source for chunk in chunks} == {"ImageSets/Main/train.txt"}


def test_detection_names_a_file_and_the_lists_of_splits(make_voc):
    folder = make_voc({"train": ["a"], "val": ["b"], "cat_train": ["a"], "trainval": ["a", "b"]})
    evidence = detect("voc", folder)
    assert evidence.sentence == "Annotations/a.xml is a VOC annotation"
    assert evidence.splits == {"train": "train", "val": "val"}


def test_folders_below_annotations_are_detected_as_splits(tmp_path):
    for part in ("train", "val 2"):
        (tmp_path / "annotations" / part).mkdir(parents=True)
        (tmp_path / "annotations" / part / "a.xml").write_text("<annotation/>")
        (tmp_path / "images" / part).mkdir(parents=True)
        (tmp_path / "images" / part / "a.png").write_bytes(b"x")
    assert detect("voc", tmp_path).splits == {"train": "annotations/train", "val": "annotations/val 2"}
    assert read(tmp_path, "annotations/val 2")[0].image_path == "images/val 2/a.png"


def test_a_nested_voc_folder_with_its_own_splits_is_not_detected(make_voc):
    folder = make_voc({"train": ["a"], "test": ["b"]}, name="data/voc")
    assert detect("voc", folder.parent) is None
    assert set(detect("voc", folder).splits) == {"train", "test"}


NAMED = "<annotation><filename>{}</filename></annotation>"


@pytest.mark.parametrize(
    ("filename", "annotation", "images", "source", "expected"),
    [
        ("", "a.xml", ["a.JPEG"], "", "a.JPEG"),
        ("a.png", "a.Xml", ["a.png"], "", "a.png"),
        ("a.png", "valid/a.xml", ["valid/a.png", "train/a.png"], "valid", "valid/a.png"),
        ("a.jpg", "Annotations/a.xml", ["images/a.jpg"], "", "images/a.jpg"),
        ("a.jpg", "Annotations/a.XML", ["JPEGImages/a.jpg"], "train", "JPEGImages/a.jpg"),
        ("a.jpg", "annotations/a.xml", ["JPEGImages/a.jpg"], "train", "JPEGImages/a.jpg"),
        ("IMG_1234.jpg", "Annotations/a.xml", ["JPEGImages/a.jpg"], "", "JPEGImages/a.jpg"),  # renamed
        ("gone.jpg", "Annotations/a.xml", ["JPEGImages/b.jpg"], "", "JPEGImages/gone.jpg"),
        ("part\\b.jpg", "Annotations/a.xml", ["JPEGImages/part/b.jpg"], "", "JPEGImages/part/b.jpg"),
        ("images\\part\\b.jpg", "Annotations/a.xml", ["JPEGImages/a.jpg"], "", "JPEGImages/a.jpg"),
        ("C:\\data\\a.jpg", "Annotations/a.xml", ["JPEGImages/a.jpg"], "", "JPEGImages/a.jpg"),
    ],
)
def test_the_image_of_an_annotation_is_found(tmp_path, filename, annotation, images, source, expected):
    files = {annotation: NAMED.format(filename), "ImageSets/Main/train.txt": "a"}
    (record,) = records(read(write_files(tmp_path, {**files, **dict.fromkeys(images, b"x")}), source))
    assert (record.record_key, record.image_path, record.annotation_path) == ("a", expected, annotation)
    (record,) = records(read(tmp_path, source, images_dir="photos"))
    assert record.image_path.startswith("photos/")
