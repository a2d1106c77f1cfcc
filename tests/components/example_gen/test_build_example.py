"""Convert one record to one tf.Example: every key and every check."""

import hashlib
import io
import math
import re
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from detloom.components.example_gen.build_example import (
    REPAIR_AREA,
    REPAIR_CLIPPED,
    REPAIR_EXIF_IGNORED,
    REPAIR_FORMAT,
    REPAIR_ROTATED,
    BuiltExample,
    SourceImage,
    build_example,
    check_box,
)
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord
from detloom.components.image_header import ImageHeader
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.rejects import Reason, Reject

CLASS_IDS = {"cat": 3, "dog": 7}


def encode_image(image_format="JPEG", image_hw=(40, 80), orientation=None):
    """Left half red, right half blue."""
    image = Image.new("RGB", image_hw[::-1], (220, 0, 0))
    image.paste((0, 0, 220), (image_hw[1] // 2, 0, image_hw[1], image_hw[0]))
    buffer = io.BytesIO()
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    image.save(buffer, format=image_format, exif=exif)
    return buffer.getvalue()


def make_record(*objects, declared_hw=(40, 80), **changes):
    return SourceRecord("train", "img_7", "images/img_7.jpg", "train.json", declared_hw, tuple(objects), **changes)


def build(
    record, image=None, *, file_name="images/img_7.jpg", features=None, num_objects=0, is_upright=False, **params
):
    source = SourceImage(encode_image() if image is None else image, file_name, features or {}, num_objects, is_upright)
    settings = ExampleGenParams(**{"format": "coco", "max_pixels": 10_000, **params})
    return build_example(record, source, class_ids=CLASS_IDS, params=settings)


def parse(built):
    assert isinstance(built, BuiltExample), built
    return tf.train.Example.FromString(built.example).features.feature


def decode(feature):
    return np.asarray(Image.open(io.BytesIO(feature[keys.IMAGE_ENCODED].bytes_list.value[0])))


def test_every_key_of_the_contract_is_written():
    image = encode_image()
    record = make_record(
        SourceObject("dog", (8, 10, 40, 30), difficult=True, is_crowd=True, area_px=123.0),
        SourceObject("cat", (0, 0, 80, 40), truncated=True, group_of=True),
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
    assert list(feature[keys.GROUP_OF].int64_list.value) == [0, 1]
    assert feature[keys.IMAGE_ENCODED].bytes_list.value[0] == image
    assert feature[keys.IMAGE_FORMAT].bytes_list.value[0] == b"jpeg"
    assert feature[keys.IMAGE_HEIGHT].int64_list.value[0] == 40
    assert feature[keys.IMAGE_WIDTH].int64_list.value[0] == 80
    assert feature[keys.IMAGE_FILENAME].bytes_list.value[0] == b"images/img_7.jpg"
    assert feature[keys.IMAGE_SOURCE_ID].bytes_list.value[0] == b"img_7"
    assert feature[keys.IMAGE_SHA256].bytes_list.value[0] == hashlib.sha256(image).hexdigest().encode()


def test_a_png_with_a_jpg_name_is_recognized_and_counted():
    built = build(make_record(), encode_image("PNG"))
    assert parse(built)[keys.IMAGE_FORMAT].bytes_list.value[0] == b"png"
    assert built.repairs == {REPAIR_FORMAT: 1}
    assert build(make_record(), encode_image("PNG"), file_name="a.PNG").repairs == {}


@pytest.mark.parametrize(
    ("record", "image", "params", "reason"),
    [
        (make_record(), b"", {}, Reason.EMPTY_IMAGE),
        (make_record(), b"text", {}, Reason.NOT_AN_IMAGE),
        (make_record(), encode_image("BMP"), {}, Reason.UNSUPPORTED_FORMAT),
        (make_record(), encode_image()[:-30], {}, Reason.TRUNCATED_IMAGE),
        (make_record(), encode_image(), {"max_pixels": 3_199}, Reason.TOO_MANY_PIXELS),
        (make_record(declared_hw=(80, 40)), encode_image(), {}, Reason.WRONG_DIMENSIONS),
        (make_record(), encode_image(orientation=3), {"exif_rotation": "reject"}, Reason.EXIF_ROTATED),
        (make_record(*[SourceObject("cat", (0, 0, 9, 9))] * 3), None, {"max_boxes": 2}, Reason.TOO_MANY_BOXES),
    ],
)
def test_an_invalid_image_rejects_the_record(record, image, params, reason):
    outcome = build(record, image, **params)
    assert isinstance(outcome, Reject)
    assert (outcome.reason, outcome.scope, outcome.file) == (reason, "record", "images/img_7.jpg")
    assert (outcome.split, outcome.record_key, outcome.num_boxes) == ("train", "img_7", len(record.objects))


def test_decode_images_finds_damaged_pixels():
    image = bytearray(encode_image("PNG"))
    at = image.index(b"IDAT") + 4
    image[at : at + 20] = bytes(20)
    end = at + int.from_bytes(image[at - 8 : at - 4], "big")
    image[end : end + 4] = zlib.crc32(image[at - 4 : end]).to_bytes(4, "big")  # makes the checksum valid again
    assert isinstance(build(make_record(), bytes(image)), BuiltExample)
    outcome = build(make_record(), bytes(image), decode_images=True)
    assert outcome.reason is Reason.UNREADABLE_IMAGE


def test_decode_images_finds_what_only_tensorflow_refuses(png_without_last_row):
    record = make_record(declared_hw=(64, 64))
    assert isinstance(build(record, png_without_last_row), BuiltExample)
    reject = build(record, png_without_last_row, decode_images=True)
    assert reject.reason is Reason.UNREADABLE_IMAGE
    assert re.fullmatch(r"does not decode in TensorFlow: [\w .,]+", reject.detail)  # no names of operations


@pytest.mark.parametrize("orientation", range(2, 9))
def test_all_orientations_are_turned_as_pillow_turns_them(orientation):
    image = encode_image("PNG", orientation=orientation)
    pixels = decode(parse(build(make_record(declared_hw=None), image)))
    np.testing.assert_array_equal(pixels, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(image)))))


def test_an_exif_tag_of_a_wrong_type_does_not_stop_the_rotation():
    orientation = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0)
    resolution = struct.pack(">HHI4s", 0x011A, 2, 3, b"72")  # a text instead of a ratio
    exif = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + orientation + resolution + bytes(4)
    buffer = io.BytesIO()
    Image.new("RGB", (80, 40)).save(buffer, format="JPEG", exif=exif)
    built = parse(build(make_record(declared_hw=None), buffer.getvalue()))
    assert built[keys.IMAGE_HEIGHT].int64_list.value[0] == 80


def test_reject_of_damaged_headers_is_reproducible():
    image = bytearray(encode_image())
    at = image.index(b"\xff\xc0")
    image[at + 9] = 2  # components of the frame: Pillow reads 1, 3 or 4
    details = {build(make_record(), bytes(image), decode_images=True).detail for _ in range(2)}
    assert details == {"does not decode: damaged headers"}


def test_an_exif_rotated_image_is_written_upright_and_its_boxes_match():
    # Orientation 6: displayed rotated clockwise by 90 degrees, 40 wide and 80 high; left (red) becomes top.
    record = make_record(SourceObject("cat", (0, 0, 20, 80)), declared_hw=(80, 40))
    built = build(record, encode_image(orientation=6))
    feature = parse(built)
    assert (feature[keys.IMAGE_HEIGHT].int64_list.value[0], feature[keys.IMAGE_WIDTH].int64_list.value[0]) == (80, 40)
    assert feature[keys.BOX_XMAX].float_list.value[0] == 0.5
    pixels = decode(feature)
    assert pixels.shape == (80, 40, 3)
    assert pixels[10, 20, 0] > 180
    assert pixels[70, 20, 2] > 180
    assert built.repairs == {REPAIR_ROTATED: 1}
    assert Image.open(io.BytesIO(feature[keys.IMAGE_ENCODED].bytes_list.value[0])).getexif().get(0x0112, 1) == 1


def test_an_image_labelled_as_stored_is_not_rotated():
    image = encode_image(orientation=6)
    for built in (
        build(make_record(declared_hw=(40, 80)), image),
        build(make_record(declared_hw=None), image, is_upright=True),
    ):
        assert parse(built)[keys.IMAGE_ENCODED].bytes_list.value[0] == image
        assert built.repairs == {REPAIR_EXIF_IGNORED: 1}


def test_relative_and_pixel_boxes_give_the_same_record():
    pixels = build(make_record(SourceObject("cat", (8, 10, 40, 30))))
    relative = build(make_record(SourceObject("cat", (0.1, 0.25, 0.5, 0.75)), is_relative=True))
    assert relative.example == pixels.example


def test_features_of_an_existing_example_are_copied():
    camera = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"north"]))
    feature = parse(build(make_record(), features={"camera": camera}))
    assert feature["camera"].bytes_list.value[0] == b"north"


def test_per_object_features_stay_aligned_when_an_object_is_rejected():
    boxes = [(1, 1, 9, 9), (5, 5, 5, 9), (2, 2, 8, 8)]  # the second has no area
    weights = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0, 3.0]))
    record = make_record(*(SourceObject("cat", box) for box in boxes))
    feature = parse(build(record, features={"image/object/weight": weights}, num_objects=3))
    assert list(feature["image/object/weight"].float_list.value) == [1.0, 3.0]


def test_per_object_features_that_cannot_be_aligned_are_dropped_and_counted():
    weights = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0, 3.0]))
    record = make_record(SourceObject("cat", (1, 1, 9, 9)))  # the reader rejected two
    built = build(record, features={"image/object/weight": weights}, num_objects=3)
    assert "image/object/weight" not in parse(built)
    assert built.repairs == {"object_feature_dropped": 1}


def test_too_many_mask_pixels_reject_the_record(monkeypatch):
    monkeypatch.setattr("detloom.components.example_gen.build_example.MAX_MASK_PIXELS", 6_399)  # 2 * 80 * 40 - 1
    record = make_record(*[SourceObject("cat", (8, 10, 40, 30), mask=[[8, 10, 40, 10, 40, 30]])] * 2)
    assert build(record, masks=True).reason is Reason.RECORD_TOO_LARGE


def test_masks_and_keypoints_are_written_on_request():
    square = [[8, 10, 40, 10, 40, 30, 8, 30]]
    item = SourceObject("cat", (8, 10, 40, 30), mask=square, keypoints=((8.0, 10.0, 2), (40.0, 20.0, 1)))
    feature = parse(build(make_record(item), masks=True, keypoints=True))
    mask = np.asarray(Image.open(io.BytesIO(feature[keys.MASK].bytes_list.value[0])))
    assert (mask.shape, int(mask.sum())) == ((40, 80), 640)  # 32 * 20
    assert list(feature[keys.KEYPOINT_X].float_list.value) == pytest.approx([0.1, 0.5])
    assert list(feature[keys.KEYPOINT_Y].float_list.value) == pytest.approx([0.25, 0.5])
    assert list(feature[keys.KEYPOINT_VISIBILITY].int64_list.value) == [2, 1]
    assert list(feature[keys.NUM_KEYPOINTS].int64_list.value) == [2]


def test_a_box_without_a_mask_is_rejected_if_masks_are_requested():
    built = build(make_record(SourceObject("cat", (8, 10, 40, 30))), masks=True)
    assert [reject.reason for reject in built.rejects] == [Reason.UNREADABLE_MASK]


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
def test_an_invalid_box_is_rejected_and_its_record_kept(box_xyxy_px, reason):
    built = build(make_record(SourceObject("cat", box_xyxy_px), SourceObject("dog", (1, 1, 9, 9))))
    assert list(parse(built)[keys.CLASS_TEXT].bytes_list.value) == [b"dog"]
    (reject,) = built.rejects
    assert (reject.reason, reject.scope, reject.file) == (reason, "box", "train.json")
    assert reject.detail.startswith("object 0 ('cat'): ")


def test_a_box_one_pixel_outside_is_clipped_and_counted():
    built = build(make_record(SourceObject("cat", (-1, 0, 81, 20))))
    feature = parse(built)
    assert feature[keys.BOX_XMIN].float_list.value[0] == 0.0
    assert feature[keys.BOX_XMAX].float_list.value[0] == 1.0
    assert built.repairs == {REPAIR_CLIPPED: 1}
    assert built.rejects == []


def test_the_clip_tolerance_grows_with_the_image():
    header = ImageHeader("jpeg", height=1000, width=2000)  # 1 %: 20 px across, 10 px down
    assert check_box((-20, -10, 500, 500), header, is_relative=False) == (0, 0, 0.5, 0.25, True)
    assert check_box((-20, -11, 500, 500), header, is_relative=False)[0] == Reason.BOX_OUTSIDE
    assert check_box((-21, -10, 500, 500), header, is_relative=False)[0] == Reason.BOX_OUTSIDE
    assert check_box((-0.01, 0, 0.5, 0.5), header, is_relative=True) == (0, 0, 0.5, 0.5, True)
    assert check_box((-0.02, 0, 0.5, 0.5), header, is_relative=True)[0] == Reason.BOX_OUTSIDE


def test_an_impossible_area_is_replaced_by_the_box_area():
    for area in (math.nan, -4.0, 0.0, 1e300):
        built = build(make_record(SourceObject("cat", (0, 0, 8, 10), area_px=area)))
        assert parse(built)[keys.AREA].float_list.value[0] == pytest.approx(80.0)  # 8 * 10
        assert built.repairs == {REPAIR_AREA: 1}


def test_an_object_of_an_unknown_class_is_rejected_or_left_out_and_counted():
    record = make_record(SourceObject("cow", (1, 1, 9, 9)), left_out=(("dont_care", 2),))
    built = build(record)
    assert [(reject.reason, reject.scope) for reject in built.rejects] == [(Reason.UNKNOWN_CLASS, "box")]
    assert [len(parse(built)[key].float_list.value) for key in keys.BOX_KEYS_YXYX] == [0, 0, 0, 0]
    built = build(record, unknown_class="leave_out")
    assert (built.rejects, built.left_out) == ([], {"other_class": 1, "dont_care": 2})


def test_written_boxes_are_ordered_and_inside_the_image_in_float32():
    generator = np.random.default_rng(0)
    header = ImageHeader("jpeg", 479, 641)
    for _ in range(500):
        x, y = np.sort(generator.uniform(-1, 642, 2)), np.sort(generator.uniform(-1, 480, 2))
        checked = check_box((float(x[0]), float(y[0]), float(x[1]), float(y[1])), header, is_relative=False)
        if len(checked) == 5:
            ymin, xmin, ymax, xmax = np.array(checked[:4], np.float32)
            assert 0 <= ymin < ymax <= 1
            assert 0 <= xmin < xmax <= 1
