"""The result of the pass over the shards, and its form in the files between workers and the validator.

Others may be able to write to the storage of these files. They are NPZ files without Python objects, so that reading
them runs no code.
"""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from detloom.components.dataset_validator.statistics.anchor_fit import AnchorFit
from detloom.components.dataset_validator.statistics.duplicates import ShardRows
from detloom.components.dataset_validator.statistics.image_sample import ImageSample
from detloom.components.dataset_validator.statistics.split_statistics import Histogram, Offenders, SplitStatistics
from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import AnchorGenerator

_DAMAGE = (EOFError, OSError, zipfile.BadZipFile)
_READ_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, *_DAMAGE)


@dataclass
class PassResult:
    """Result of one pass; parts can be merged in any order.

    Attributes:
        anchors: None if not requested, or if the anchor generator is not supported.
    """

    splits: dict[str, SplitStatistics] = field(default_factory=dict)
    images: list[ShardRows] = field(default_factory=list)
    sample: ImageSample = field(default_factory=ImageSample)
    anchors: AnchorFit | None = None

    def merge(self, other: "PassResult") -> None:
        """Add another part, which must not be used afterwards."""
        for split, statistics in other.splits.items():
            self.splits.setdefault(split, SplitStatistics()).merge(statistics)
        self.images += other.images
        self.sample.merge(other.sample)
        if self.anchors is not None and other.anchors is not None:
            self.anchors.merge(other.anchors)
        elif other.anchors is not None:
            self.anchors = other.anchors


def encode_result(result: PassResult) -> bytes:
    """Return the statistics as bytes for `decode_result`."""
    anchors, arrays = result.anchors.to_plain() if result.anchors is not None else (None, {})
    head = {
        "splits": {name: plain_statistics(statistics) for name, statistics in result.splits.items()},
        "sample": result.sample.to_plain(),
        "anchors": anchors,
        "images": [[shard.split, shard.path] for shard in result.images],
    }
    images = {f"images{number}": shard.rows_N for number, shard in enumerate(result.images)}
    file = io.BytesIO()
    np.savez(file, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays, **images)
    return file.getvalue()


def decode_result(data: bytes, where: str, generator: AnchorGenerator | None) -> PassResult:
    """Return the statistics of these bytes.

    Args:
        where: the file, for messages.
        generator: the anchors that boxes were compared with, if any.

    Raises:
        InputError: `encode_result` did not write them.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        head = json.loads(arrays["head"].tobytes())
        images = enumerate(head["images"])
        return PassResult(
            splits={name: _statistics_of(plain) for name, plain in head["splits"].items()},
            images=[ShardRows(str(split), str(path), arrays[f"images{number}"]) for number, (split, path) in images],
            sample=ImageSample.of_plain(head["sample"]),
            anchors=None if head["anchors"] is None else AnchorFit.of_plain(generator, head["anchors"], arrays),
        )
    except _READ_ERRORS as error:
        raise InputError(f"{where}: cannot be read ({type(error).__name__}: {error}); validate again.") from None


def plain_statistics(statistics: SplitStatistics) -> dict[str, Any]:
    """Return the statistics as JSON values."""
    return {each.name: _plain(getattr(statistics, each.name)) for each in fields(statistics)}


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.counts_Q.tolist()
    if isinstance(value, Offenders):
        return [value.count, value.record_keys]
    if isinstance(value, Mapping):  # as pairs, because keys can be numbers
        return [[key, _plain(each)] for key, each in sorted(value.items())]
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
