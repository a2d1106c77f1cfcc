"""Serialize a tf.train.Example without TensorFlow, in bytes that do not depend on the version of protocol buffers.

Format: https://protobuf.dev/programming-guides/encoding, and tensorflow/core/example/feature.proto: an Example is a map
from text to lists of bytes, float32 or int64.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_LENGTH_DELIMITED = 2  # wire type of bytes, messages and packed numbers
_FIELD_1, _FIELD_2, _FIELD_3 = (bytes([number << 3 | _LENGTH_DELIMITED]) for number in (1, 2, 3))
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = _FIELD_1, _FIELD_2, _FIELD_3  # kinds of a Feature


def bytes_feature(values: Iterable[bytes]) -> bytes:
    """Return a serialized Feature, as the next two functions do."""
    parts: list[bytes] = []
    for value in values:
        parts += (_FIELD_1, _varint(len(value)), value)
    return _field(_BYTES_LIST, parts)


def float_feature(values: npt.ArrayLike) -> bytes:
    return _packed_feature(_FLOAT_LIST, np.asarray(values, "<f4").tobytes())


def int_feature(values: Sequence[int]) -> bytes:
    try:
        numbers = bytes(values)  # each number takes one byte if all are below 128
    except ValueError:
        numbers = b"\xff"
    return _packed_feature(_INT64_LIST, numbers if numbers.isascii() else b"".join(map(_varint, values)))


def encode_example(features: Mapping[str, bytes]) -> bytes:
    """Return the Example with these serialized features, sorted by key."""
    parts: list[bytes] = []
    for key in sorted(features):
        feature = features[key]
        head = _key_field(key) + _varint(len(feature))
        parts += (_FIELD_1, _varint(len(head) + len(feature)), head, feature)
    return _field(_FIELD_1, parts)


def _packed_feature(kind: bytes, numbers: bytes) -> bytes:
    return _field(kind, (_FIELD_1, _varint(len(numbers)), numbers) if numbers else ())


def _field(kind: bytes, parts: Sequence[bytes]) -> bytes:
    """Return one field; its parts are joined only once, because images are large."""
    return b"".join((kind, _varint(sum(map(len, parts))), *parts))


@lru_cache(maxsize=1024)
def _key_field(key: str) -> bytes:
    data = key.encode()
    return _FIELD_1 + _varint(len(data)) + data + _FIELD_2


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF  # negative numbers are stored as two's complement
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL = [bytes([value]) for value in range(0x80)]
