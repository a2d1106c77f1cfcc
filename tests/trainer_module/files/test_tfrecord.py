import io
import struct

import pytest
import tensorflow as tf

from detloom.trainer_module.files.tfrecord import Damage, frame_record, mask_checksum, read_frames, scan_frames


def frame(data, length=None):
    head = struct.pack("<Q", len(data) if length is None else length)
    return head + struct.pack("<I", mask_checksum(head)) + data + struct.pack("<I", mask_checksum(data))


def read(content, max_bytes=100, *, knows_size=True):
    frames = read_frames(io.BytesIO(content), len(content) if knows_size else None, max_bytes)
    return [(each.offset, each.damage or each.data) for each in frames]


def test_records_of_tensorflow_are_read(tmp_path):
    path = tmp_path / "data"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in (b"a", b"", b"c" * 90):
            writer.write(record)
    content = path.read_bytes()
    assert read(content) == read(content, knows_size=False) == [(0, b"a"), (17, b""), (33, b"c" * 90)]
    assert scan_frames(io.BytesIO(content), len(content))[:2] == (3, True)
    assert b"".join(part for record in (b"a", b"", b"c" * 90) for part in frame_record(record)) == content


@pytest.mark.parametrize(
    ("damaged", "damage"),
    [
        (frame(b"abc")[:-1] + b"?", Damage.BAD_CHECKSUM),
        (frame(b"a" * 101), Damage.TOO_LARGE),
    ],
)
def test_records_after_a_damaged_one_are_read(damaged, damage):
    content = frame(b"one") + damaged + frame(b"two")
    assert read(content) == [(0, b"one"), (19, damage), (19 + len(damaged), b"two")]


@pytest.mark.parametrize(
    ("damaged", "damage"),
    [
        (frame(b"abc")[:5], Damage.BAD_LENGTH),
        (b"not a TFRecord", Damage.BAD_LENGTH),
        (frame(b"abc")[:-1], Damage.TRUNCATED),
        (frame(b"abc", length=2**62), Damage.TRUNCATED),
    ],
)
def test_a_file_ends_at_a_record_whose_end_is_unknown(damaged, damage):
    assert read(frame(b"one") + damaged) == [(0, b"one"), (19, damage)]


def test_a_huge_length_in_a_file_of_unknown_size_ends_it():
    assert read(frame(b"abc", length=2**62), knows_size=False) == [(0, Damage.TOO_LARGE)]


def test_a_truncated_last_record_is_noticed_by_its_header():
    content = frame(b"one") + frame(b"two")[:-1]
    assert scan_frames(io.BytesIO(content), len(content))[:2] == (2, False)
