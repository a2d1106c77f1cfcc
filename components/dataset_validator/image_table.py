"""One row an image: fingerprints and where it is stored. About 70 bytes each, the one part that grows with the data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.sample_pictures import Place

_MAX_KEY_BYTES = 120  # of a record key, which is only shown; longer ones are cut


@dataclass(frozen=True)
class ShardRows:
    """The images of one TFRecord file, in its order.

    Attributes:
        numbers_N, offsets_N: index in the file, and byte offset in its uncompressed content.
        content_hashes_N: first 64 bits of the image's SHA-256; one false match is expected among six billion images.
        looks_N: perceptual hash, 0 where there is none.
        has_look_N: whether there is one.
    """

    split: str
    path: str
    keys_N: npt.NDArray[np.bytes_]
    numbers_N: npt.NDArray[np.uint32]
    offsets_N: npt.NDArray[np.uint64]
    content_hashes_N: npt.NDArray[np.uint64]
    looks_N: npt.NDArray[np.uint64]
    has_look_N: npt.NDArray[np.bool_]


class RowBuilder:
    """Collects the rows of one shard."""

    def __init__(self, split: str, path: str) -> None:
        self._split, self._path = split, path
        self._rows: list[tuple[bytes, int, int, int, int, bool]] = []

    def add(self, place: Place, content_hash: int, look: int | None) -> None:
        key = place.record_key.encode("utf-8", "replace")[:_MAX_KEY_BYTES]
        self._rows.append((key, place.number, place.offset, content_hash, look or 0, look is not None))

    def build(self) -> ShardRows:
        keys, numbers, offsets, content_hashes, looks, has_look = (
            zip(*self._rows, strict=True) if self._rows else [()] * 6
        )
        return ShardRows(
            split=self._split,
            path=self._path,
            keys_N=np.array(keys, np.bytes_),
            numbers_N=np.array(numbers, np.uint32),
            offsets_N=np.array(offsets, np.uint64),
            content_hashes_N=np.array(content_hashes, np.uint64),
            looks_N=np.array(looks, np.uint64),
            has_look_N=np.array(has_look, np.bool_),
        )


@dataclass
class ImageTable:
    """All images of all splits, as parts in any order."""

    parts: list[ShardRows] = field(default_factory=list)

    def merge(self, other: "ImageTable") -> None:
        self.parts.extend(other.parts)

    def sorted_rows(self, splits: Sequence[str]) -> "ImageRows":
        """The rows in an order that does not depend on who read them: by split, record key and place."""
        parts = sorted(self.parts, key=lambda part: (splits.index(part.split), part.path))
        sizes = [len(part.numbers_N) for part in parts]
        keys_N, numbers_N = _join([part.keys_N for part in parts]), _join([part.numbers_N for part in parts])
        parts_N = np.repeat(np.arange(len(parts)), sizes)
        splits_N = np.repeat(np.array([splits.index(part.split) for part in parts], np.int64), sizes)
        order = np.lexsort((numbers_N, parts_N, keys_N, splits_N)) if len(parts) else np.zeros(0, np.int64)
        columns = ("offsets_N", "content_hashes_N", "looks_N", "has_look_N")
        offsets_N, contents_N, looks_N, has_look_N = (
            _join([getattr(part, column) for part in parts])[order] for column in columns
        )
        return ImageRows(
            splits=tuple(splits),
            paths=tuple(part.path for part in parts),
            split_indices_N=splits_N[order],
            path_indices_N=parts_N[order],
            keys_N=keys_N[order],
            numbers_N=numbers_N[order],
            offsets_N=offsets_N,
            content_hashes_N=contents_N.astype(np.uint64),
            looks_N=looks_N.astype(np.uint64),
            has_look_N=has_look_N.astype(np.bool_),
        )


@dataclass(frozen=True)
class ImageRows:
    """The sorted table; rows are numbered from 0."""

    splits: tuple[str, ...]
    paths: tuple[str, ...]
    split_indices_N: npt.NDArray[np.int64]
    path_indices_N: npt.NDArray[np.int64]
    keys_N: npt.NDArray[np.bytes_]
    numbers_N: npt.NDArray[np.uint32]
    offsets_N: npt.NDArray[np.uint64]
    content_hashes_N: npt.NDArray[np.uint64]
    looks_N: npt.NDArray[np.uint64]
    has_look_N: npt.NDArray[np.bool_]

    def place(self, row: int) -> Place:
        return Place(
            split=self.splits[self.split_indices_N[row]],
            record_key=bytes(self.keys_N[row]).decode("utf-8", "replace"),
            path=self.paths[self.path_indices_N[row]],
            number=int(self.numbers_N[row]),
            offset=int(self.offsets_N[row]),
        )


def _join(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.zeros(0)
