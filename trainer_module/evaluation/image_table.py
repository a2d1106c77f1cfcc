"""Ground truth or detections of many images in a few arrays: one image takes its rows and some ten bytes."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

from detloom.schemas.contracts.arrays import Array, BoolArray, Float64Array, Int32Array, Int64Array
from detloom.trainer_module.evaluation.coco_images import (
    ImageDetections,
    ImageGroundTruth,
    boxes_yxyx_rel_to_xywh_px,
)

_Image = TypeVar("_Image", ImageGroundTruth, ImageDetections)
_Arrays = Mapping[str, Array]
_OF_IMAGES = ("image_id", "image_hw", "verified_class_ids")  # the other fields have a row for each box
_CHUNK_IMAGES = 1024  # images whose arrays are joined at a time
_SMALL_IDS = np.iinfo(np.int32)


class ImageTable(Sequence[_Image], Generic[_Image]):
    """A sequence of images whose arrays are views of the table's.

    Attributes:
        offsets_I1: int64, first row of each image, and the number of all rows.
        columns: arrays [N, ...] by field of the images; additional columns have other names.
        image_ids_I: int64.
        image_hw_I2: int32; zeros for detections, which have no size.
        verified: verified class ids by position of the image, for images that have some.
    """

    def __init__(
        self,
        kind: type[_Image],
        offsets_I1: Int64Array,
        columns: dict[str, Array],
        is_present: Mapping[str, BoolArray],
        image_ids_I: Int64Array,
        image_hw_I2: Int32Array,
        verified: Mapping[int, tuple[int, ...]],
    ) -> None:
        """Args: is_present: bool [I], for columns that some images lack."""
        self._kind: type[_Image] = kind
        self._is_present, self.verified = is_present, verified
        self.offsets_I1, self.columns, self.image_ids_I, self.image_hw_I2 = (
            offsets_I1,
            columns,
            image_ids_I,
            image_hw_I2,
        )
        self._fields = {field.name for field in dataclasses.fields(kind)}

    @classmethod
    def of(cls, kind: type[_Image], images: Iterable[_Image]) -> "ImageTable[_Image]":
        """Return the images as a table; a table as it is."""
        if isinstance(images, ImageTable):
            return images
        builder = TableBuilder(kind)
        for image in images:
            builder.add(image)
        return builder.build()

    def __len__(self) -> int:
        return len(self.image_ids_I)

    @overload
    def __getitem__(self, index: int) -> _Image: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_Image]: ...

    def __getitem__(self, index: int | slice) -> _Image | Sequence[_Image]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        rows = slice(self.offsets_I1[index], self.offsets_I1[index + 1])
        fields: dict[str, Any] = {name: column[rows] for name, column in self.columns.items() if name in self._fields}
        for name, is_present in self._is_present.items():
            if not is_present[index]:
                fields[name] = None
        if self._kind is ImageGroundTruth:
            height, width = self.image_hw_I2[index].tolist()
            fields["image_hw"], fields["verified_class_ids"] = (height, width), self.verified.get(index, ())
        return self._kind(image_id=int(self.image_ids_I[index]), **fields)

    def __iter__(self) -> Iterator[_Image]:
        return (self[i] for i in range(len(self)))

    def rows(self, start: int, stop: int) -> slice:
        """Return the rows of the images from `start` to before `stop`."""
        return slice(int(self.offsets_I1[start]), int(self.offsets_I1[stop]))

    def image_index(self, start: int, stop: int) -> Int32Array:
        """Return the position of the image of each of these rows, relative to `start`."""
        return np.repeat(np.arange(stop - start, dtype=np.int32), np.diff(self.offsets_I1[start : stop + 1]))

    def has(self, name: str, start: int, stop: int) -> BoolArray:
        """Return for each row of these images whether the image has the column."""
        if name not in self.columns:
            return np.zeros(self.offsets_I1[stop] - self.offsets_I1[start], bool)
        is_present = self._is_present.get(name)
        whole = np.ones(stop - start, bool) if is_present is None else is_present[start:stop]
        return np.repeat(whole, np.diff(self.offsets_I1[start : stop + 1]))

    def is_missing(self, name: str) -> bool:
        """Return True if some image lacks the column."""
        return bool(len(self)) and (name not in self.columns or not self._is_present.get(name, np.ones(1, bool)).all())

    def xywh_px(self, start: int, stop: int, image_hw_I2: Int32Array) -> Float64Array:
        """Return COCO boxes of these images, float64 [N, 4]."""
        rows = np.arange(self.offsets_I1[start], self.offsets_I1[stop])
        return self._boxes_of_rows(rows, start + self.image_index(start, stop), image_hw_I2)

    def boxes_xywh_px(self, image_index: Int32Array, row: Int32Array, image_hw_I2: Int32Array) -> Float64Array:
        """Return COCO boxes of these rows of these images, float64 [n, 4]."""
        return self._boxes_of_rows(self.offsets_I1[image_index] + row, image_index, image_hw_I2)

    def _boxes_of_rows(self, rows: Int64Array, image_index: Int32Array, image_hw_I2: Int32Array) -> Float64Array:
        boxes = boxes_yxyx_rel_to_xywh_px(self.columns["boxes_yxyx_rel"][rows], image_hw_I2[image_index])
        if "given_xywh_px" in self.columns:
            is_present = self._is_present.get("given_xywh_px")
            is_given = np.ones(len(rows), bool) if is_present is None else is_present[image_index]
            boxes[is_given] = self.columns["given_xywh_px"][rows[is_given]]
        return boxes

    def take(self, order_I: Int64Array) -> "ImageTable[_Image]":
        """Return the table of these images; the columns of this table are released one by one and must not be used."""
        counts = np.diff(self.offsets_I1)[order_I]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows_N = np.repeat(self.offsets_I1[:-1][order_I] - offsets[:-1], counts) + np.arange(offsets[-1])
        columns = {name: self.columns.pop(name)[rows_N] for name in list(self.columns)}
        return ImageTable(
            self._kind,
            offsets,
            columns,
            {name: values[order_I] for name, values in self._is_present.items()},
            self.image_ids_I[order_I],
            self.image_hw_I2[order_I],
            {new: self.verified[old] for new, old in enumerate(order_I.tolist()) if old in self.verified},
        )

    def of_classes(self, new_ids: Mapping[int, int]) -> "ImageTable[_Image]":
        """Return a table of all images with the rows of some classes, and without additional columns.

        Args:
            new_ids: id in the result of each class that is kept, by its id here.
        """
        class_ids = self.columns["class_ids"]
        is_kept = np.isin(class_ids, list(new_ids))
        columns = {name: column[is_kept] for name, column in self.columns.items() if name in self._fields}
        columns["class_ids"] = np.array([new_ids[each] for each in class_ids[is_kept].tolist()], class_ids.dtype)
        offsets_I1 = np.concatenate([[0], np.cumsum(is_kept)])[self.offsets_I1]
        verified = {
            index: tuple(new_ids[each] for each in ids if each in new_ids) for index, ids in self.verified.items()
        }
        rest = (columns, self._is_present, self.image_ids_I, self.image_hw_I2, verified)
        return ImageTable(self._kind, offsets_I1, *rest)

    def with_ids(self, image_ids_I: Int64Array) -> "ImageTable[_Image]":
        """Return a table of the same columns with other image ids."""
        rest = (self.offsets_I1, self.columns, self._is_present, image_ids_I, self.image_hw_I2, self.verified)
        return ImageTable(self._kind, *rest)


class TableBuilder(Generic[_Image]):
    """Build a table from one image after another."""

    def __init__(self, kind: type[_Image]) -> None:
        self._kind: type[_Image] = kind
        self._names = [field.name for field in dataclasses.fields(kind) if field.name not in _OF_IMAGES]
        self._waiting: list[tuple[int, _Arrays]] = []  # number of rows and columns of an image
        self._chunks: list[tuple[list[int], dict[str, Array], dict[str, BoolArray]]] = []
        self._image_ids: list[int] = []
        self._hw: list[tuple[int, int]] = []
        self._verified: dict[int, tuple[int, ...]] = {}

    def add(self, image: _Image, more: _Arrays | None = None) -> None:
        """Args: more: additional columns of the image's rows."""
        columns = {name: value for name in self._names if (value := getattr(image, name)) is not None}
        if isinstance(image, ImageGroundTruth):
            self._hw.append(image.image_hw)
            if image.verified_class_ids:
                self._verified[len(self._image_ids)] = image.verified_class_ids
        self._image_ids.append(image.image_id)
        self._waiting.append((len(image.class_ids), {**columns, **(more or {})}))
        if len(self._waiting) == _CHUNK_IMAGES:
            self._join()

    def _join(self) -> None:
        counts = [count for count, _ in self._waiting]
        names = sorted({name for _, columns in self._waiting for name in columns})
        chunk, present = {}, {}
        for name in names:
            parts = [columns.get(name) for _, columns in self._waiting]
            present[name] = np.array([part is not None for part in parts])
            chunk[name] = _concatenate(
                [part if part is not None else count for part, count in zip(parts, counts, strict=True)]
            )
        self._chunks.append((counts, chunk, present))
        self._waiting = []

    def build(self) -> ImageTable[_Image]:
        if self._waiting or not self._chunks:
            self._join()
        counts = np.array([count for part in self._chunks for count in part[0]], np.int64)
        columns, is_present = {}, {}
        for name in sorted({name for _, chunk, _ in self._chunks for name in chunk}):
            columns[name] = _concatenate([chunk.pop(name, sum(of_images)) for of_images, chunk, _ in self._chunks])
            present = np.concatenate(
                [flags.get(name, np.zeros(len(of_images), bool)) for of_images, _, flags in self._chunks]
            )
            if not present.all():
                is_present[name] = present
        if not columns:  # no images
            columns = {"boxes_yxyx_rel": np.zeros((0, 4)), "class_ids": np.zeros(0, np.int32)}
            columns |= {"scores": np.zeros(0)} if self._kind is ImageDetections else {"is_crowd": np.zeros(0, bool)}
        hw = np.array(self._hw, np.int32).reshape(-1, 2) if self._hw else np.zeros((len(counts), 2), np.int32)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        ids = np.array(self._image_ids, np.int64)
        return ImageTable(self._kind, offsets, columns, is_present, ids, hw, self._verified)


def _concatenate(parts: Sequence[Array | int]) -> Array:
    """Join arrays; numbers are rows of zeros. Ids that fit take four bytes."""
    arrays = [np.asarray(part) for part in parts if not isinstance(part, int)]
    like = next((array for array in arrays if len(array)), arrays[0])
    whole = [
        np.zeros((part, *like.shape[1:]), like.dtype) if isinstance(part, int) else np.asarray(part) for part in parts
    ]
    joined = np.concatenate([part.reshape(len(part), *like.shape[1:]) for part in whole])
    if joined.dtype == np.int64 and _SMALL_IDS.min <= joined.min(initial=0) <= joined.max(initial=0) <= _SMALL_IDS.max:
        return joined.astype(np.int32)
    return joined
