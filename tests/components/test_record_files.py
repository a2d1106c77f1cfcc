"""Files of records: missing ones are counted, and damage raises an error instead of ending the process."""

import gzip
import struct

import pytest
import tensorflow as tf

from detloom.components.record_files import count_missing, read_records
from detloom.trainer_module.files.tfrecord import mask_checksum


def frame(data, length=None):
    head = struct.pack("<Q", len(data) if length is None else length)
    return head + struct.pack("<I", mask_checksum(head)) + data + struct.pack("<I", mask_checksum(data))


def read_until_damage(path):
    found = []

    def read():
        found.extend(record for _, record in read_records(str(path)))

    with pytest.raises(tf.errors.DataLossError):
        read()
    return found


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_records_and_offsets_equal_tensorflows(tmp_path, suffix):
    path, records = str(tmp_path / f"data{suffix}"), [b"a", b"", b"c" * 100_000]
    with tf.io.TFRecordWriter(path, "GZIP" if suffix else None) as writer:
        for record in records:
            writer.write(record)
    assert list(read_records(path)) == [(0, b"a"), (17, b""), (33, b"c" * 100_000)]


@pytest.mark.parametrize(
    "damaged",
    [
        frame(b"abc", length=2**62),
        frame(b"abc", length=2**31 - 1),
        frame(b"abc")[:-1],
        frame(b"abc")[:5],
        frame(b"abc")[:-1] + b"?",
        b"this is no TFRecord file",
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_records_before_the_damage_are_read(tmp_path, damaged, suffix):
    path = tmp_path / f"data{suffix}"
    content = frame(b"sound") + damaged
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert read_until_damage(path) == [b"sound"]


def test_a_truncated_or_invalid_compressed_file_is_damaged(tmp_path):
    path = tmp_path / "data.gz"
    ends_too_soon, damaged = gzip.compress(frame(b"sound"))[:-6], gzip.compress(frame(b"x"))[:12] + b"\xff" * 20
    for content, sound in ((ends_too_soon, [b"sound"]), (b"no gzip", []), (damaged, [])):
        path.write_bytes(content)
        assert read_until_damage(path) == sound


def test_missing_shards_are_counted_by_their_numbers():
    paths = ["x/data-00000-of-00003", "x/data-00002-of-00003", "x/other-00000-of-00002.gz", "x/without"]
    assert count_missing(paths) == (2, 5)
    assert count_missing([]) == (0, 0)
