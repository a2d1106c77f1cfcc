"""The result of reading shards, and its form in the files between workers and the validator.

The files can lie in storage that others may write to, so they hold data only, which cannot run code when they are read:
a line of JSON, and the bytes of the arrays that it lists.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.statistics.anchor_fit import AnchorFit
from detloom.components.dataset_validator.statistics.duplicates import ImageHashTable, ShardRows
from detloom.components.dataset_validator.statistics.image_sample import ImageSample
from detloom.components.dataset_validator.statistics.split_statistics import Histogram, Offenders, SplitStatistics
from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import AnchorGenerator

_KINDS = "biufS"  # of arrays: booleans, numbers, record keys
_Array = npt.NDArray[Any]


@dataclass
class Collected:
    """Result of one pass; parts can be merged in any order.

    Attributes:
        anchors: None if not requested, or if the anchor generator is not supported.
    """

    splits: dict[str, SplitStatistics] = field(default_factory=dict)
    images: ImageHashTable = field(default_factory=ImageHashTable)
    sample: ImageSample = field(default_factory=ImageSample)
    anchors: AnchorFit | None = None

    def merge(self, other: "Collected") -> None:
        """Add another part, which must not be used afterwards."""
        for split, statistics in other.splits.items():
            self.splits.setdefault(split, SplitStatistics()).merge(statistics)
        self.images.merge(other.images)
        self.sample.merge(other.sample)
        if self.anchors is not None and other.anchors is not None:
            self.anchors.merge(other.anchors)
        elif other.anchors is not None:
            self.anchors = other.anchors


def encode_collected(collected: Collected) -> bytes:
    """Return the statistics as bytes for `decode_collected`."""
    arrays: list[_Array] = []
    parts = []
    for part in collected.images.parts:
        columns = {each.name: getattr(part, each.name) for each in fields(part)}
        arrays += [column for column in columns.values() if isinstance(column, np.ndarray)]
        parts.append([part.split, part.path])
    anchors = None
    if collected.anchors is not None:
        anchors, of_anchors = collected.anchors.to_plain()
        arrays += of_anchors
    head = {
        "splits": {name: _plain_statistics(statistics) for name, statistics in collected.splits.items()},
        "sample": collected.sample.to_plain(),
        "anchors": anchors,
        "images": parts,
        "arrays": [(array.dtype.str, array.shape) for array in arrays],
    }
    return b"\n".join([json.dumps(head).encode(), b"".join(array.tobytes() for array in arrays)])


def decode_collected(data: bytes, where: str, generator: AnchorGenerator | None) -> Collected:
    """Return the statistics of these bytes.

    Args:
        where: the file, for messages.
        generator: the anchors that boxes were compared with, if any.

    Raises:
        InputError: `encode_collected` did not write them.
    """
    line, _, content = data.partition(b"\n")
    try:
        head = json.loads(line)
        arrays = iter(list(_read_arrays(head["arrays"], content)))
        names = [each.name for each in fields(ShardRows)][2:]
        return Collected(
            splits={name: _statistics_of(plain) for name, plain in head["splits"].items()},
            images=ImageHashTable(
                [
                    ShardRows(str(split), str(path), **{name: next(arrays) for name in names})
                    for split, path in head["images"]
                ]
            ),
            sample=ImageSample.of_plain(head["sample"]),
            anchors=None if head["anchors"] is None else AnchorFit.of_plain(generator, head["anchors"], arrays),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, StopIteration) as error:
        raise InputError(f"{where}: cannot be read ({type(error).__name__}: {error}); validate again.") from None


def _read_arrays(kinds_and_shapes: list[Any], content: bytes) -> Iterator[_Array]:
    offset = 0
    for kind, shape in kinds_and_shapes:
        dtype, count = np.dtype(kind), math.prod(shape)
        if dtype.kind not in _KINDS:
            raise ValueError(f"an array of {dtype}")
        array = np.frombuffer(content, dtype, count, offset) if count else np.zeros(0, dtype)
        yield array.reshape(shape).copy()
        offset += count * dtype.itemsize


def _plain_statistics(statistics: SplitStatistics) -> dict[str, Any]:
    return {each.name: _plain(getattr(statistics, each.name)) for each in fields(statistics)}


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.counts_Q.tolist()
    if isinstance(value, Offenders):
        return [value.count, value.record_keys]
    if isinstance(value, Mapping):  # as pairs, because keys can be numbers
        return [[key, _plain(each)] for key, each in value.items()]
    return value


def _statistics_of(plain: Mapping[str, Any]) -> SplitStatistics:
    """Return the statistics; each field gets the type that it has in empty statistics."""
    statistics = SplitStatistics()
    for name in [each.name for each in fields(statistics)]:
        empty, value = getattr(statistics, name), plain[name]
        if isinstance(empty, Histogram):
            empty.counts_Q += np.array(value, np.int64)
        elif isinstance(empty, Offenders):
            setattr(statistics, name, _offenders(value))
        elif isinstance(empty, Counter):
            empty.update({int(key): int(count) for key, count in value})
        elif isinstance(empty, dict):
            empty.update({key: _offenders(found) for key, found in value})
        else:
            setattr(statistics, name, (int(value[0]), int(value[1])) if isinstance(empty, tuple) else int(value))
    return statistics


def _offenders(plain: Any) -> Offenders:
    count, record_keys = plain
    return Offenders(int(count), [str(key) for key in record_keys])
