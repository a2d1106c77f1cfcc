"""CVAT for images: records read, records quarantined, and errors that refuse the whole file."""

import math
import re

import numpy as np
import pytest
from labelled_data import classes, read_items, records

from detloom.components.example_gen.sources import cvat
from detloom.components.example_gen.sources.source_record import SourceClass
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError

BOX = '<box label="cat" occluded="1" xtl="1" ytl="2" xbr="30.5" ybr="4"/>'
META = """<version>1.1</version><meta><task><labels>
<label><name>dog</name><attributes/></label><label><name> cat </name><type>rectangle</type></label>
<label><name>pose</name><type>skeleton</type></label><label><name>nose</name><type>points</type></label>
</labels></task></meta>"""


def read(folder, source="", **settings):
    return read_items("cvat", folder, source, **settings)


def image(shapes="", name="a.jpg", subset="", size='width="60" height="40"'):
    return f'<image id="0" name="{name}" subset="{subset}" {size}>{shapes}</image>'


def write(folder, *parts, name="annotations.xml"):
    (folder / name).write_text(f"<?xml version='1.0' encoding='utf-8'?>\n<annotations>{''.join(parts)}</annotations>")
    return folder


def read_shape(tmp_path, shape, **settings):
    """Return the only object."""
    (record,) = read(write(tmp_path, image(shape)), **settings)
    (item,) = record.objects
    return item


def test_box_coordinates_are_unchanged_pixels(tmp_path):
    (record,) = read(write(tmp_path, image(BOX, "part/a.jpg")))
    assert (record.record_key, record.image_path, record.declared_hw) == ("part/a", "part/a.jpg", (40, 60))
    (item,) = record.objects
    assert (item.class_name, item.box_xyxy, item.difficult) == ("cat", (1, 2, 30.5, 4), False)


def test_declared_labels_with_boxes_are_classes(tmp_path):
    items = read(write(tmp_path, META, image(BOX)))
    assert classes(items) == [SourceClass("dog"), SourceClass("cat")]


def test_attributes_with_known_names_are_flags(tmp_path):
    flags = "".join(
        f'<attribute name="{name}">{value}</attribute>'
        for name, value in [("difficult", "false"), ("Truncated", "1"), ("is_crowd", "True"), ("colour", "red")]
    )
    item = read_shape(tmp_path, BOX.replace("/>", f">{flags}</box>"))
    assert (item.difficult, item.truncated, item.is_crowd) == (False, True, True)


def test_a_rotated_box_becomes_its_bounding_box(tmp_path):
    # 8 wide, 4 high, centre 6, 6; a quarter turn makes it 4 wide, 8 high
    item = read_shape(tmp_path, '<box label="cat" xtl="2" ytl="4" xbr="10" ybr="8" rotation="90"/>')
    assert item.box_xyxy == pytest.approx((4, 2, 8, 10))
    # rotated by 45 degrees, both sides of the bounding box are (8 + 4) / sqrt 2
    item = read_shape(tmp_path, '<box label="cat" xtl="2" ytl="4" xbr="10" ybr="8" rotation="45.0"/>')
    half = 6 / math.sqrt(2)
    assert item.box_xyxy == pytest.approx((6 - half, 6 - half, 6 + half, 6 + half))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ('<ellipse label="cat" cx="10" cy="20" rx="3" ry="5"/>', (7, 15, 13, 25)),
        ('<ellipse label="cat" cx="10" cy="20" rx="3" ry="5" rotation="90"/>', (5, 17, 15, 23)),
        ('<mask label="cat" rle="3, 5" left="4" top="5" width="4" height="2"/>', (4, 5, 8, 7)),
        ('<polygon label="cat" points="1.5,9;5,2;3,4"/>', (1.5, 2, 5, 9)),
        (
            '<cuboid label="cat" xtl1="1" ytl1="2" xbl1="1" ybl1="9" xtr1="5" ytr1="2" xbr1="5" ybr1="9" '
            'xtl2="3" ytl2="1" xbl2="3" ybl2="8" xtr2="7" ytr2="1" xbr2="7" ybr2="8"/>',
            (1, 1, 7, 9),
        ),
    ],
)
def test_other_shapes_become_their_bounding_box(tmp_path, shape, expected):
    assert read_shape(tmp_path, shape).box_xyxy == pytest.approx(expected)


def test_a_polygon_is_a_mask_if_masks_are_requested(tmp_path):
    polygon = '<polygon label="cat" points="1.5,9;5,2;3,4"/>'
    assert read_shape(tmp_path, polygon).mask is None
    assert read_shape(tmp_path, polygon, masks=True).mask == [[1.5, 9, 5, 2, 3, 4]]


def test_a_mask_runs_down_the_columns_of_the_image(tmp_path):
    # In an image of 3 rows and 4 columns, columns 1 and 2, all rows:  . x     down the columns: . x x, x . .
    #                                                                  x .
    #                                                                  x .
    mask = '<mask label="cat" rle="1, 2, 1, 1, 1" left="1" top="0" width="2" height="3"/>'
    folder = write(tmp_path, image(mask, size='width="4" height="3"'))
    (record,) = read(folder, masks=True)
    # column 0 is empty: 3 + 1 zeros, then 2 ones in column 1 and the adjacent 1 in column 2, then 2 + 3 zeros
    assert record.objects[0].mask == {"size": [3, 4], "counts": [4, 3, 5]}
    assert read(folder)[0].objects[0].mask is None


def test_a_converted_mask_has_the_same_pixels(tmp_path):
    from pycocotools import mask as coco_masks

    pixels = np.random.default_rng(0).random((5, 7)) < 0.5
    borders = np.flatnonzero(np.diff(np.concatenate([[False], pixels.ravel()]))).tolist()
    runs = np.diff([0, *borders, pixels.size]).tolist()
    mask = f'<mask label="cat" rle="{", ".join(map(str, runs))}" left="2" top="1" width="7" height="5"/>'
    (record,) = read(write(tmp_path, image(mask, size='width="12" height="6"')), masks=True)
    rle = record.objects[0].mask
    decoded = coco_masks.decode(coco_masks.frPyObjects(rle, *rle["size"]))
    expected = np.zeros((6, 12), np.uint8)
    expected[1:6, 2:9] = pixels
    assert decoded.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("mask", "size"),
    [
        ('rle="3, 4" left="4" top="5" width="4" height="2"', 'width="60" height="40"'),
        ('rle="-3, 11" left="4" top="5" width="4" height="2"', 'width="60" height="40"'),
        ('rle="x" left="4" top="5" width="4" height="2"', 'width="60" height="40"'),
        ('left="4" top="5" width="4" height="2"', 'width="60" height="40"'),
        ('rle="8" left="58" top="5" width="4" height="2"', 'width="60" height="40"'),
        ('rle="8" left="4" top="5" width="-4" height="-2"', 'width="60" height="40"'),
        ('rle="8" left="nan" top="5" width="4" height="inf"', 'width="60" height="40"'),
        ('rle="99999999999" left="0" top="0" width="99999999999" height="1"', 'width="99999999999" height="1"'),
        ('rle="8" left="4" top="5" width="4" height="2"', ""),
    ],
)
def test_an_invalid_mask_is_rejected_if_masks_are_requested(tmp_path, mask, size):
    reject, record = read(write(tmp_path, image(f'<mask label="cat" {mask}/>', size=size)), masks=True)
    assert (reject.reason, reject.scope) == (Reason.UNREADABLE_MASK, "box")
    assert record.objects == ()


@pytest.mark.parametrize(
    "shape",
    [
        '<polygon label="cat" points="1.5,nan;5,2;3,4"/>',
        '<box label="cat" xtl="1" ytl="2" xbr="3" ybr="4" rotation="inf"/>',
    ],
)
def test_a_shape_that_is_not_finite_is_passed_on(tmp_path, shape):
    assert all(math.isnan(side) for side in read_shape(tmp_path, shape).box_xyxy)


def test_marks_without_a_box_are_counted(tmp_path):
    marks = '<points label="nose" points="1,2"/><points label="nose" points="3,4"/><tag label="day"/>'
    (record,) = read(write(tmp_path, image(BOX + marks)))
    assert len(record.objects) == 1
    assert record.left_out == (("points", 2), ("tag", 1))


@pytest.mark.parametrize(
    ("shape", "detail"),
    [
        (BOX.replace('label="cat"', 'label=" "'), "<box>: .*label"),
        (BOX.replace('xtl="1"', ""), "'cat': <box> .*xtl.*None"),
        (BOX.replace('xtl="1"', 'xtl="left"'), "'cat': <box> .*xtl.*'left'"),
        ('<polygon label="cat" points="1,2;3,4"/>', "'1,2;3,4'"),
        ('<polygon label="cat" points="1,2;3,4;5"/>', "'1,2;3,4;5'"),
        ('<polygon label="cat"/>', "''"),
        ('<star label="cat"/>', "'cat': <star>, allowed: box, polygon"),
    ],
)
def test_an_invalid_shape_is_rejected_as_a_box(tmp_path, shape, detail):
    items = read(write(tmp_path, image(BOX + shape)))
    (reject,) = (item for item in items if isinstance(item, Reject))
    assert (reject.reason, reject.scope, reject.file) == (Reason.UNREADABLE_ANNOTATION, "box", "annotations.xml")
    assert (reject.record_key, reject.num_boxes) == ("a", 1)
    assert re.match(f"image 0, shape 1: .*{detail}", reject.detail)
    assert len(records(items)[0].objects) == 1


@pytest.mark.parametrize(
    ("name", "reason", "key"),
    [
        ("", Reason.UNREADABLE_ANNOTATION, "#1"),
        ("../a.jpg", Reason.PATH_OUTSIDE, "../a"),
        ("/etc/passwd", Reason.PATH_OUTSIDE, "/etc/passwd"),
    ],
)
def test_an_invalid_image_is_quarantined_with_its_boxes(tmp_path, name, reason, key):
    items = read(write(tmp_path, image(BOX), image(BOX + BOX + '<tag label="x"/>', name), image(BOX, "c.jpg")))
    (reject,) = (item for item in items if isinstance(item, Reject))
    assert (reject.reason, reject.scope, reject.record_key, reject.num_boxes) == (reason, "record", key, 2)
    assert [record.record_key for record in records(items)] == ["a", "c"]


@pytest.mark.parametrize("size", ["", 'width="0" height="0"', 'width="x" height="40"'])
def test_an_invalid_size_is_not_declared(tmp_path, size):
    (record,) = read(write(tmp_path, image(BOX, size=size)))
    assert record.declared_hw is None


def test_the_source_selects_a_subset(tmp_path):
    folder = write(
        tmp_path, image(name="a.jpg", subset="Train"), image(name="b.jpg", subset="Test"), image(name="c.jpg")
    )
    assert [record.record_key for record in read(folder, "annotations.xml#Train")] == ["a"]
    assert [record.record_key for record in read(folder, "annotations.xml#")] == ["c"]
    assert [record.record_key for record in read(folder, "annotations.xml")] == ["a", "b", "c"]


def test_a_file_with_a_hash_sign_in_its_name_is_a_file(tmp_path):
    folder = write(tmp_path, image(), name="job#3.xml")
    assert [record.record_key for record in read(folder, "job#3.xml")] == ["a"]
    assert [record.record_key for record in read(folder, "job#3.xml#")] == ["a"]


def test_images_are_found_in_images_or_in_a_folder_per_subset(tmp_path):
    folder = write(tmp_path, image(name="a.jpg", subset="Train"), image(name="b.jpg", subset="Train"))
    (tmp_path / "images/Train").mkdir(parents=True)
    (tmp_path / "images/Train/a.jpg").write_bytes(b"x")
    assert [record.image_path for record in read(folder)] == ["images/Train/a.jpg", "images/b.jpg"]
    assert [record.image_path for record in read(folder, images_dir="big")] == ["big/a.jpg", "big/b.jpg"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotations><image name='a'>", "XML"),
        ("<annotation/>", "<annotation>, not <annotations>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotations/>", "DTD"),
        ("<annotations><track id='0'/></annotations>", "tracks.*'CVAT for images 1.1'"),
        ("<annotations></annotations>", "split 'train'"),
        ("<annotations><image>" + "<box/>" * 400_000, "1000000 bytes"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_name(tmp_path, text, message, monkeypatch):
    monkeypatch.setattr(cvat, "MAX_ANNOTATION_BYTES", 1_000_000)
    (tmp_path / "annotations.xml").write_text(text)
    with pytest.raises(InputError, match=rf"annotations\.xml: .*{message}"):
        read(tmp_path, "annotations.xml")


def test_a_missing_subset_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"subset 'Tset' .*split 'train'"):
        read(write(tmp_path, image(subset="Test")), "annotations.xml#Tset")
