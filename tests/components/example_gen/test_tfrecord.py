"""Existing TFRecords: labels are read, offsets are exact, and damage is rejected record by record."""

import gzip
import io
import math
import re
import struct

import numpy as np
import pytest
import tensorflow as tf
from labelled_data import classes, make_record, read_items, records, rejects
from PIL import Image

from detloom.components.example_gen.sources import tfrecord
from detloom.components.example_gen.sources.source_record import SourceClass
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.tfrecord import mask_checksum

HUGE_LENGTH = struct.pack("<QI", 2**62, mask_checksum(struct.pack("<Q", 2**62)))
LABEL_MAP = "item { id: 3 name: 'cat' }\nitem { id: 5 name: '/m/05' display_name: 'dog' }\n"


def read(folder, source="", **settings):
    return read_items("tfrecord", folder, source, **settings)


def example(boxes_yxyx=((0.25, 0.125, 0.5, 0.75),), **others):
    """Return an example with one cat by text; keywords are keys of the contract (CLASS_TEXT=[b"dog"]; None omits)."""
    features = {"image": b"image", "CLASS_TEXT": [b"cat"] * len(boxes_yxyx), **others}
    return make_record("a", boxes=boxes_yxyx, **{"IMAGE_FILENAME": None, "CLASS_ID": None, **features})


def write(folder, *records, name="train.tfrecord"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / name)) as writer:
        for record in records:
            writer.write(record)
    return folder


def test_labels_are_read_and_the_example_is_found_at_its_offset(tmp_path):
    written = [example(IMAGE_SOURCE_ID=[b"a"]), example((), IMAGE_SOURCE_ID=[b"bb"])]
    found = records(read(write(tmp_path, *written)))
    assert [(record.record_key, record.image_path, len(record.objects)) for record in found] == [
        ("a", "train.tfrecord", 1),
        ("bb", "train.tfrecord", 0),
    ]
    data = (tmp_path / "train.tfrecord").read_bytes()
    for record, expected in zip(found, written, strict=True):
        offset, length = record.example_at
        assert data[offset : offset + length] == expected
    (item,) = found[0].objects
    assert (found[0].declared_hw, found[0].is_relative) == ((40, 60), True)
    # xmin, ymin, xmax, ymax; all are exact in float32
    assert (item.class_name, item.box_xyxy) == ("cat", (0.125, 0.25, 0.75, 0.5))


def test_flags_and_areas_are_read(tmp_path):
    record = example(DIFFICULT=[1], TRUNCATED=[0], IS_CROWD=[1], GROUP_OF=[1], AREA=[12.5])
    (item,) = records(read(write(tmp_path, record)))[0].objects
    assert (item.difficult, item.truncated, item.is_crowd, item.group_of, item.area_px) == (
        True, False, True, True, 12.5,
    )  # fmt: skip


@pytest.mark.parametrize("place", ["label_map.pbtxt", "some.pbtxt", "train/label_map.pbtxt"])
@pytest.mark.parametrize(
    ("text", "class_id", "expected"),
    [
        (None, 5, "dog"),
        (b"/m/05", 5, "dog"),  # a code instead of the name
        (b"truck", 3, "truck"),  # reported later as an unknown class
        (b"cat", 0, "cat"),
    ],
)
def test_objects_are_named_by_the_label_map(tmp_path, place, text, class_id, expected):
    write(tmp_path, example(CLASS_TEXT=text and [text], CLASS_ID=[class_id]), name="train/a.record")
    (tmp_path / place).write_text(LABEL_MAP)
    items = read(tmp_path)
    assert classes(items) == [SourceClass("cat", 3), SourceClass("dog", 5)]
    assert records(items)[0].objects[0].class_name == expected


@pytest.mark.parametrize(
    ("text", "class_id", "detail"),
    [
        (b"cat", 5, "object 0: class 'cat' .*5.*label_map.pbtxt.*3.*'dog'"),
        (
            b"/m/05",
            3,
            "object 0: class '/m/05' .*3.*label_map.pbtxt.*5.*'cat'",
        ),
        (b"cat", 9, "object 0: class 'cat' .*9.*label_map.pbtxt.*3"),
    ],
)
def test_contradicting_text_and_id_reject_the_box(tmp_path, text, class_id, detail):
    (tmp_path / "label_map.pbtxt").write_text(LABEL_MAP)
    items = read(write(tmp_path, example(CLASS_TEXT=[text], CLASS_ID=[class_id])))
    (reject,) = rejects(items)
    assert (reject.reason, reject.scope) == (Reason.UNKNOWN_CLASS, "box")
    assert re.match(detail, reject.detail)


def test_one_name_with_two_ids_is_an_error_with_file_and_record(tmp_path):
    write(tmp_path, example(CLASS_ID=[3]), example(CLASS_ID=[5], IMAGE_SOURCE_ID=[b"b"]))
    with pytest.raises(InputError, match=r"train\.tfrecord: class 'cat' .*5 in record 'b'.*3"):
        read(tmp_path)
    (tmp_path / "label_map.pbtxt").write_text("item { id: 3 name: 'cat' }")
    assert [len(record.objects) for record in records(read(tmp_path))] == [1, 0]


def test_without_a_label_map_the_pairs_in_the_examples_are_the_classes(tmp_path):
    boxes = ((0.0, 0.0, 1.0, 1.0),) * 3
    items = read(write(tmp_path, example(boxes, CLASS_TEXT=[b"cat", b"dog", b"cat"], CLASS_ID=[3, 5, 3])))
    assert classes(items) == [SourceClass("cat", 3), SourceClass("dog", 5)]


@pytest.mark.parametrize(
    "values",
    [{"CLASS_TEXT": None, "CLASS_ID": [9]}, {"CLASS_TEXT": [b""]}, {"CLASS_TEXT": [b"\xff"]}, {"CLASS_TEXT": None}],
)
def test_a_box_without_a_class_is_rejected(tmp_path, values):
    (tmp_path / "label_map.pbtxt").write_text(LABEL_MAP)
    items = read(write(tmp_path, example(**values)))
    (reject,) = rejects(items)
    assert (reject.reason, reject.scope, reject.record_key) == (Reason.UNKNOWN_CLASS, "box", "a")
    assert records(items)[0].objects == ()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"IMAGE_FILENAME": [b"x/y.jpg"]}, "a"),
        ({"IMAGE_SOURCE_ID": None, "IMAGE_FILENAME": [b"x/y.jpg"]}, "x/y.jpg"),
        ({"IMAGE_SOURCE_ID": [b""], "IMAGE_FILENAME": [b"x/y.jpg"]}, "x/y.jpg"),
        ({"IMAGE_SOURCE_ID": [b"\xff"]}, "train.tfrecord#0"),
        ({"IMAGE_SOURCE_ID": None}, "train.tfrecord#0"),
        ({"IMAGE_SOURCE_ID": [7]}, "train.tfrecord#0"),
    ],
)
def test_the_key_is_the_source_id_else_the_file_name_else_the_number(tmp_path, values, key):
    (record,) = records(read(write(tmp_path, example(**values))))
    assert record.record_key == key


@pytest.mark.parametrize(
    ("record", "reason", "num_boxes"),
    [
        (b"no example", Reason.UNREADABLE_ANNOTATION, 0),
        (example(BOX_YMIN=[0.5, 0.5]), Reason.UNREADABLE_ANNOTATION, 2),
        (example(BOX_YMIN=None), Reason.UNREADABLE_ANNOTATION, 1),
        (example(BOX_YMIN=[1]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(CLASS_TEXT=[b"cat", b"dog"]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(DIFFICULT=[1, 0]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(AREA=[b"x"]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(WEIGHT=[1]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(WEIGHT=[1.0, 1.0]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(WEIGHT=[-1.0]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(WEIGHT=[math.nan]), Reason.UNREADABLE_ANNOTATION, 1),
        (example(((0.0, 0.0, 1.0, 1.0),) * 100_001), Reason.TOO_MANY_BOXES, 100_001),
    ],
)
def test_an_invalid_example_quarantines_only_its_record(tmp_path, record, reason, num_boxes):
    items = read(write(tmp_path, record, example(IMAGE_SOURCE_ID=[b"b"])))
    (reject,) = rejects(items)
    assert (reject.reason, reject.scope, reject.num_boxes) == (reason, "record", num_boxes)
    assert (reject.record_key, reject.file) == ("train.tfrecord#0", "train.tfrecord")
    assert [record.record_key for record in records(items)] == ["b"]


@pytest.mark.reliability("torn file", "ingest")
@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (lambda data, at: data[: at + 20] + b"\xff" + data[at + 21 :], "checksum"),
        (lambda data, at: data[:at] + b"\xff" + data[at + 1 :], "its length is damaged; the rest of the file, "),
        (lambda data, at: data[: at + 8], "the rest of the file, 8 bytes"),
        (lambda data, at: data[:-1], "the file ends within it; the rest"),
        (lambda data, at: data[:at] + HUGE_LENGTH + b"x" * 100, f"{2**62} bytes"),
    ],
)
def test_a_damaged_record_is_one_reject_with_the_rest_that_cannot_be_read(tmp_path, damage, detail):
    path = tmp_path / "train.tfrecord"
    write(tmp_path, example(), example(IMAGE_SOURCE_ID=[b"b"]))
    path.write_bytes(damage(path.read_bytes(), path.stat().st_size // 2))
    record, reject = read(tmp_path)
    assert (record.record_key, reject.record_key, reject.reason) == ("a", "train.tfrecord#1", Reason.UNREADABLE_FILE)
    assert detail in reject.detail


def test_only_an_oversized_record_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "_MAX_RECORD_BYTES", 1000)
    reject, record = read(write(tmp_path, example(IMAGE_ENCODED=[b"x" * 2000]), example(IMAGE_SOURCE_ID=[b"b"])))
    assert (reject.reason, reject.record_key) == (Reason.RECORD_TOO_LARGE, "train.tfrecord#0")
    assert record.record_key == "b"


def test_compressed_files_are_an_error_with_the_next_step(tmp_path):
    write(tmp_path, example(), name="Split-train/data_tfrecord-00000-of-00001.gz")
    path = tmp_path / "Split-train" / "data_tfrecord-00000-of-00001.gz"
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match=r"00001\.gz: .*GZIP.*gunzip"):
        read(tmp_path)


def test_a_length_that_looks_like_gzip_is_not_gzip(tmp_path):
    base = len(example(IMAGE_ENCODED=[b"x" * 35_000]))
    # 0x8b1f = 35615: its two low bytes are GZIP's magic number
    record = example(IMAGE_ENCODED=[b"x" * (35_000 + 35_615 - base)])
    assert len(record) == 35_615
    write(tmp_path, record)
    assert (tmp_path / "train.tfrecord").read_bytes()[:2] == b"\x1f\x8b"
    assert len(records(read(tmp_path))) == 1


def test_keypoints_are_read_on_request(tmp_path):
    boxes = ((0.0, 0.0, 1.0, 1.0),) * 2
    points = {"KEYPOINT_X": [0.5, 0.25, 1.0, 0.0], "KEYPOINT_Y": [0.0, 1.0, 0.5, 0.25]}
    write(tmp_path, example(boxes, **points, KEYPOINT_VISIBILITY=[0, 1, 2, 2]))
    first, second = records(read(tmp_path, keypoints=True))[0].objects
    assert first.keypoints == ((0.5, 0.0, 0), (0.25, 1.0, 1))
    assert second.keypoints == ((1.0, 0.5, 2), (0.0, 0.25, 2))
    write(tmp_path, example(boxes, **points, NUM_KEYPOINTS=[1, 3]))
    found = records(read(tmp_path, keypoints=True))[0].objects
    assert [len(item.keypoints) for item in found] == [1, 3]
    assert records(read(tmp_path))[0].objects[0].keypoints is None


def test_keypoints_with_wrong_lengths_reject_the_record(tmp_path):
    write(tmp_path, example(KEYPOINT_X=[0.5], KEYPOINT_Y=[0.5, 0.5]))
    (reject,) = read(tmp_path, keypoints=True)
    assert (reject.reason, reject.scope) == (Reason.UNREADABLE_KEYPOINTS, "record")


def test_masks_are_read_as_run_lengths_on_request(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.array([[0, 1], [0, 1]], np.uint8)).save(buffer, "PNG")
    write(tmp_path, example(MASK=[buffer.getvalue()]))
    (item,) = records(read(tmp_path, masks=True))[0].objects
    assert item.mask == {"size": [2, 2], "counts": "22"}  # two pixels off, two on
    assert records(read(tmp_path))[0].objects[0].mask is None


@pytest.mark.parametrize(
    ("source", "num"),
    [("", 3), ("a", 2), ("a/x.record-00000-of-00002", 1), ("a/x.record-?????-of-00002", 2), ("b.tfrecord", 1)],
)
def test_a_source_is_a_file_a_folder_or_a_pattern(tmp_path, source, num):
    for name in ("a/x.record-00000-of-00002", "a/x.record-00001-of-00002", "b.tfrecord"):
        write(tmp_path, example(), name=name)
    (tmp_path / "a" / "notes.txt").write_text("x")
    assert len(records(read(tmp_path, source))) == num


def test_an_empty_file_has_no_records(tmp_path):
    assert read(write(tmp_path)) == []
