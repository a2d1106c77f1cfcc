"""One record to one tf.Example: every key, every check."""

import hashlib
import io
import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detloom.components.example_gen.build_example import (
    REPAIR_AREA,
    REPAIR_CLIPPED,
    BuiltExample,
    CheckedBox,
    build_example,
    check_box,
)
from detloom.components.example_gen.image_header import ImageHeader
from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord
from detloom.schemas import example_keys as keys
from detloom.schemas.rejects import Reason, Reject

CLASS_IDS = {"cat": 3, "dog": 7}


def encode_image(image_format="JPEG", image_hw=(40, 80)):
    buffer = io.BytesIO()
    Image.new("RGB", image_hw[::-1], (9, 80, 200)).save(buffer, format=image_format)
    return buffer.getvalue()


def make_record(*objects, declared_hw=(40, 80)):
    return SourceRecord("train", "img_7", "images/img_7.jpg", "train.json", declared_hw, tuple(objects))


def build(record, image=None, max_pixels=10_000):
    return build_example(record, image or encode_image(), class_ids=CLASS_IDS, max_pixels=max_pixels)


def parse(built):
    assert isinstance(built, BuiltExample), built
    return tf.train.Example.FromString(built.example).features.feature


def test_every_key_of_the_contract_is_written():
    image = encode_image()
    record = make_record(
        SourceObject("dog", (8, 10, 40, 30), difficult=True, is_crowd=True, area_px=123.0),
        SourceObject("cat", (0, 0, 80, 40), truncated=True),
    )
    feature = parse(build(record, image))
    assert set(feature) == {keys.IMAGE_ENCODED, *keys.STATISTICS_KEYS}
    # Relative to 80x40: xmin 8/80, ymin 10/40, xmax 40/80, ymax 30/40.
    assert list(feature[keys.BOX_XMIN].float_list.value) == pytest.approx([0.1, 0.0])
    assert list(feature[keys.BOX_YMIN].float_list.value) == pytest.approx([0.25, 0.0])
    assert list(feature[keys.BOX_XMAX].float_list.value) == pytest.approx([0.5, 1.0])
    assert list(feature[keys.BOX_YMAX].float_list.value) == pytest.approx([0.75, 1.0])
    assert list(feature[keys.CLASS_ID].int64_list.value) == [7, 3]
    assert list(feature[keys.CLASS_TEXT].bytes_list.value) == [b"dog", b"cat"]
    assert list(feature[keys.AREA].float_list.value) == pytest.approx([123.0, 3200.0])  # 80 * 40
    assert list(feature[keys.IS_CROWD].int64_list.value) == [1, 0]
    assert list(feature[keys.DIFFICULT].int64_list.value) == [1, 0]
    assert list(feature[keys.TRUNCATED].int64_list.value) == [0, 1]
    assert feature[keys.IMAGE_ENCODED].bytes_list.value[0] == image
    assert feature[keys.IMAGE_FORMAT].bytes_list.value[0] == b"jpeg"
    assert feature[keys.IMAGE_HEIGHT].int64_list.value[0] == 40
    assert feature[keys.IMAGE_WIDTH].int64_list.value[0] == 80
    assert feature[keys.IMAGE_FILENAME].bytes_list.value[0] == b"images/img_7.jpg"
    assert feature[keys.IMAGE_SOURCE_ID].bytes_list.value[0] == b"img_7"
    assert feature[keys.IMAGE_SHA256].bytes_list.value[0] == hashlib.sha256(image).hexdigest().encode()


def test_an_image_without_boxes_is_written_with_empty_lists():
    feature = parse(build(make_record()))
    assert [len(feature[key].float_list.value) for key in keys.BOX_KEYS_YXYX] == [0, 0, 0, 0]


def test_a_png_is_told_by_its_bytes_whatever_its_name():
    assert parse(build(make_record(), encode_image("PNG")))[keys.IMAGE_FORMAT].bytes_list.value[0] == b"png"


@pytest.mark.parametrize(
    ("record", "image", "max_pixels", "reason"),
    [
        (make_record(), b"text", 10_000, Reason.UNSUPPORTED_FORMAT),
        (make_record(), encode_image()[:100], 10_000, Reason.UNREADABLE_IMAGE),
        (make_record(), encode_image(), 3_199, Reason.TOO_MANY_PIXELS),
        (make_record(declared_hw=(80, 40)), encode_image(), 10_000, Reason.WRONG_DIMENSIONS),
    ],
)
def test_an_image_at_fault_refuses_the_record(record, image, max_pixels, reason):
    outcome = build(record, image, max_pixels)
    assert isinstance(outcome, Reject)
    assert (outcome.reason, outcome.scope, outcome.file) == (reason, "record", "images/img_7.jpg")
    assert (outcome.split, outcome.record_key) == ("train", "img_7")


def test_undeclared_dimensions_are_taken_from_the_image():
    assert parse(build(make_record(declared_hw=None)))[keys.IMAGE_WIDTH].int64_list.value[0] == 80


@pytest.mark.parametrize(
    ("box_xyxy_px", "reason"),
    [
        ((math.nan, 0, 9, 9), Reason.BOX_NOT_FINITE),
        ((0, 0, math.inf, 9), Reason.BOX_NOT_FINITE),
        ((5, 5, 5, 9), Reason.BOX_WITHOUT_AREA),
        ((5, 5, 9, 5), Reason.BOX_WITHOUT_AREA),
        ((5, 5, 5 + 1e-9, 9), Reason.BOX_WITHOUT_AREA),
        ((9, 5, 5, 9), Reason.BOX_INVERTED),
        ((5, 9, 9, 5), Reason.BOX_INVERTED),
        ((80, 5, 90, 9), Reason.BOX_OUTSIDE),
        ((-9, 5, 0, 9), Reason.BOX_OUTSIDE),
        ((70, 5, 82, 9), Reason.BOX_OUTSIDE),
        ((5, -1.5, 9, 9), Reason.BOX_OUTSIDE),
    ],
)
def test_a_box_at_fault_is_dropped_and_its_record_kept(box_xyxy_px, reason):
    built = build(make_record(SourceObject("cat", box_xyxy_px), SourceObject("dog", (1, 1, 9, 9))))
    assert list(parse(built)[keys.CLASS_TEXT].bytes_list.value) == [b"dog"]
    (reject,) = built.rejects
    assert (reject.reason, reject.scope, reject.file) == (reason, "box", "train.json")
    assert reject.detail.startswith("object 0 ('cat'): ")


def test_a_box_that_sticks_out_by_a_pixel_is_clipped_and_counted():
    built = build(make_record(SourceObject("cat", (-1, 0, 81, 20))))
    feature = parse(built)
    assert feature[keys.BOX_XMIN].float_list.value[0] == 0.0
    assert feature[keys.BOX_XMAX].float_list.value[0] == 1.0
    assert built.repairs == {REPAIR_CLIPPED: 1}
    assert built.rejects == []


def test_the_tolerance_grows_with_the_image():
    header = ImageHeader("jpeg", height=1000, width=2000)  # 1 %: 20 px across, 10 px down
    assert isinstance(check_box((-20, -10, 500, 500), header), CheckedBox)
    assert check_box((-20, -11, 500, 500), header)[0] == Reason.BOX_OUTSIDE
    assert check_box((-21, -10, 500, 500), header)[0] == Reason.BOX_OUTSIDE


def test_an_area_that_cannot_be_becomes_that_of_the_box():
    for area in (math.nan, -4.0, 0.0, 1e300):
        built = build(make_record(SourceObject("cat", (0, 0, 8, 10), area_px=area)))
        assert parse(built)[keys.AREA].float_list.value[0] == pytest.approx(80.0)  # 8 * 10
        assert built.repairs == {REPAIR_AREA: 1}


def test_an_unknown_class_is_refused_as_a_box():
    built = build(make_record(SourceObject("cow", (1, 1, 9, 9))))
    assert [(reject.reason, reject.scope) for reject in built.rejects] == [(Reason.UNKNOWN_CLASS, "box")]


def test_boxes_in_the_record_are_ordered_and_inside_in_float32():
    generator = np.random.default_rng(0)
    header = ImageHeader("jpeg", 479, 641)
    for _ in range(500):
        x, y = np.sort(generator.uniform(-1, 642, 2)), np.sort(generator.uniform(-1, 480, 2))
        checked = check_box((float(x[0]), float(y[0]), float(x[1]), float(y[1])), header)
        if isinstance(checked, CheckedBox):
            ymin, xmin, ymax, xmax = checked.box_yxyx_rel
            assert 0 <= ymin < ymax <= 1
            assert 0 <= xmin < xmax <= 1


def test_the_same_record_gives_the_same_bytes():
    record = make_record(SourceObject("cat", (1, 1, 9, 9)), SourceObject("dog", (2, 2, 8, 8)))
    assert build(record).example == build(record).example
