"""Scan a folder of labelled images: format, splits, classes, sizes of images and objects. Writes nothing."""

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from detloom.components.example_gen.build_example import read_image
from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources.formats import (
    FORMATS,
    UNLABELLED,
    detect_format,
    list_chunks,
    read_chunk,
)
from detloom.components.example_gen.sources.source_record import (
    FormatEvidence,
    SourceClass,
    SourceRecord,
)
from detloom.components.image_header import ImageError, read_image_header
from detloom.schemas.contracts.arrays import Float64Array
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import Data, IngestSettings

MAX_RECORDS = 20_000  # records of a split that are read; more would not change a choice
MAX_IMAGES = 2_000  # images of a split that are opened for their size
_RelativeBox = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax from 0 to 1


@dataclass
class DataScan:
    """Content of a folder, as far as it was read.

    Attributes:
        splits: the data set's own splits, source by name; empty if it has none.
        num_images: by split, at most MAX_RECORDS; the split is "" without own splits.
        boxes_by_class: number of objects by class.
        image_sizes: height and width of images in pixels.
        boxes: [N, 4] ymin, xmin, ymax, xmax of objects as shares of their images.
        max_boxes: largest number of objects of one image.
        shared_images: two opened files with the same bytes in different splits, or the path that two splits name;
            empty if there are none. An image that a second split names is not counted again.
        is_complete: False if a split has more than MAX_RECORDS records.
    """

    root: str
    data_format: str
    evidence: str
    splits: Mapping[str, str]
    num_images: Counter[str] = field(default_factory=Counter)
    boxes_by_class: Counter[str] = field(default_factory=Counter)
    image_sizes: list[tuple[int, int]] = field(default_factory=list)
    boxes: Float64Array = field(default_factory=lambda: np.zeros((0, 4)))
    max_boxes: int = 0
    shared_images: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def total_images(self) -> int:
        return sum(self.num_images.values())

    @property
    def image_hw(self) -> tuple[int, int]:
        """Median height and width of the images, in pixels."""
        heights, widths = zip(*self.image_sizes, strict=True)
        return round(statistics.median(heights)), round(statistics.median(widths))

    def box_sizes_hw(self) -> Float64Array:
        """Return [N, 2] heights and widths of the objects, as shares of their images."""
        return self.boxes[:, 2:] - self.boxes[:, :2]


def scan_data(root: str, data_format: str = "") -> DataScan:
    """Read the annotations and the image headers of a folder.

    Args:
        data_format: one of `FORMATS`; empty detects it.

    Raises:
        InputError: if no format is recognized, or the folder has no labelled objects or no readable image.
    """
    folder = DataFolder(root)
    if data_format:
        evidence = FORMATS[data_format].detect(folder) or FormatEvidence("chosen by the user", {})
    else:
        data_format, evidence = detect_format(folder)
    if data_format == UNLABELLED:
        raise InputError(f"{root}: contains images without labels; give a folder of labelled images in a known format.")
    scan = DataScan(root, data_format, evidence.sentence, evidence.splits)
    boxes: list[_RelativeBox] = []
    split_of_image: dict[bytes, tuple[str, str]] = {}
    split_of_path: dict[str, str] = {}
    for split, source in (evidence.splits or {"": ""}).items():
        num_boxes = num_fractions = 0
        for record in _read_records(folder, scan, split, source):
            num_boxes += len(record.objects)
            num_fractions += record.num_fractions
            if record.image_path and split_of_path.setdefault(record.image_path, split) != split:
                scan.shared_images = scan.shared_images or (record.image_path,)
                continue
            image = _read_image(folder, record) if scan.num_images[split] < MAX_IMAGES else b""
            scan.num_images[split] += 1
            scan.boxes_by_class.update(each.class_name for each in record.objects)
            scan.max_boxes = max(scan.max_boxes, len(record.objects))
            if image and len(evidence.splits) > 1:
                first = split_of_image.setdefault(hashlib.sha256(image).digest(), (split, record.image_path))
                if first[0] != split:
                    scan.shared_images = scan.shared_images or (first[1], record.image_path)
            image_hw = _size_of(record, image)
            if image_hw is not None and min(image_hw) > 0:
                scan.image_sizes.append(image_hw)
                boxes += _relative_boxes(record, image_hw)
        if 0 < num_boxes == num_fractions:
            where = f"{root}/{source}".rstrip("/")
            raise InputError(f"{where}: all boxes are inside of 1x1 pixel; see data.fractional_boxes of a run file.")
    _check_found(scan, boxes)
    scan.boxes = np.array(boxes)
    return scan


def _read_records(folder: DataFolder, scan: DataScan, split: str, source: str) -> Iterator[SourceRecord]:
    """Yield the first MAX_RECORDS records of a split; note classes, and whether there are more records."""
    settings, number = IngestSettings(), 0
    for chunk in list_chunks(scan.data_format, folder, split, source, settings):
        for item in read_chunk(scan.data_format, folder, chunk, settings):
            if isinstance(item, SourceClass):
                scan.boxes_by_class[item.name] += 0
            elif isinstance(item, SourceRecord):
                if number == MAX_RECORDS:
                    scan.is_complete = False
                    return
                number += 1
                yield item


def _read_image(folder: DataFolder, record: SourceRecord) -> bytes:
    """Return the bytes of a record's image; none if it cannot be read, which the ingestion will report."""
    try:
        return read_image(record, folder, Data.max_image_bytes).encoded
    except SourceError:
        return b""


def _size_of(record: SourceRecord, image: bytes) -> tuple[int, int] | None:
    """Return height and width of an image, or those that its labels state if it was not read."""
    if image:
        try:
            return read_image_header(image).upright_hw
        except ImageError:
            return None
    return record.declared_hw


def _relative_boxes(record: SourceRecord, image_hw: tuple[int, int]) -> list[_RelativeBox]:
    """Return the boxes that have an area inside the image."""
    height, width = (1, 1) if record.is_relative else image_hw
    found = []
    for each in record.objects:
        xmin, ymin, xmax, ymax = each.box_xyxy
        box = (max(ymin / height, 0.0), max(xmin / width, 0.0), min(ymax / height, 1.0), min(xmax / width, 1.0))
        if box[0] < box[2] and box[1] < box[3] and not each.is_crowd:
            found.append(box)
    return found


def _check_found(scan: DataScan, boxes: list[_RelativeBox]) -> None:
    if not boxes:
        raise InputError(
            f"{scan.root}: read as {scan.data_format} ({scan.evidence}), has {scan.total_images} images but no object "
            "whose image can be read; check the folder with `detloom ingest`."
        )
