"""Export examples to COCO: `images/...` and one `annotations/<split>.json` per split, with bounded memory.

COCO has no field for `difficult`, `truncated` and `group_of`; the number of lost flags is counted and returned.
"""

import itertools
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from detloom.components.example_gen.exported_folder import (
    UNSOUND_BOX,
    ExportCounts,
    ExportedExample,
    ExportedObject,
    atomic_folder,
    find_splits,
    read_examples,
    safe_file_name,
    write_image,
)
from detloom.components.example_gen.mask_png import decode_mask_png
from detloom.components.examples_folder import ExamplesFolder
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap, read_label_map
from detloom.schemas.errors import InputError

IMAGES_DIR = "images"
ANNOTATIONS_DIR = "annotations"
_DECIMALS = 3  # of numbers in pixels: whole pixels, stored as a fraction in float32, are whole again
_MAX_ID_DIGITS = 15  # JSON numbers are exact up to 2^53 in every reader
_LOST_FLAGS = {"difficult": "is_difficult", "truncated": "is_truncated", "group_of": "is_group"}


def export_coco(examples: Path, output: Path) -> ExportCounts:
    """Write a COCO data set into the empty folder `output`; image bytes are copied unchanged.

    Image ids are the source ids if those of all splits are unique whole numbers, else 1, 2, ...; ids of images and
    annotations are unique across splits.

    Raises:
        InputError: if the examples are missing or damaged, or the output is not empty; nothing is written then.
    """
    splits, empty = find_splits(examples)
    label_map = read_label_map(ExamplesFolder(examples).label_map_file)
    counts = ExportCounts(empty_splits=empty)
    with atomic_folder(output) as folder:
        (folder / ANNOTATIONS_DIR).mkdir()
        (folder / IMAGES_DIR).mkdir()
        export = _Export(folder, label_map, counts)
        for split, shards in splits.items():
            export.read(split, shards)
        export.write(list(splits))
    return counts


def box_xywh_px(box_yxyx_rel: Sequence[float], image_hw: tuple[int, int]) -> list[float]:
    """Return the box in pixels, rounded to a thousandth."""
    height, width = image_hw
    ymin, xmin, ymax, xmax = box_yxyx_rel
    x, y = _pixel(xmin, width), _pixel(ymin, height)
    right, bottom = _pixel(xmax, width), _pixel(ymax, height)
    return [x, y, round(right - x, _DECIMALS), round(bottom - y, _DECIMALS)]


@dataclass
class _Export:
    """The export of all splits; entries are spooled to files until all ids are known, so memory stays bounded."""

    folder: Path
    label_map: LabelMap
    counts: ExportCounts
    source_ids: "array[int] | None" = field(default_factory=lambda: array("q"))
    num_keypoints: dict[int, int] = field(default_factory=dict)
    num_images: int = 0
    num_annotations: int = 0

    def __post_init__(self) -> None:
        self._known_ids = frozenset(self.label_map.class_ids)

    def read(self, split: str, shards: Sequence[Path]) -> None:
        with self._spool_path(split).open("w", encoding="utf-8") as spool:
            for shard in shards:
                for example in read_examples(shard):
                    spool.write(json.dumps(self._convert(split, example, str(shard)), ensure_ascii=False) + "\n")

    def write(self, splits: Sequence[str]) -> None:
        ids = self.source_ids
        if ids is not None and len(np.unique(np.frombuffer(ids, np.int64))) < len(ids):
            self.source_ids = None
        for split in splits:
            with (self.folder / ANNOTATIONS_DIR / f"{split}.json").open("w", encoding="utf-8") as file:
                self._write_json(file, self._spool_path(split))
            self._spool_path(split).unlink()

    def _spool_path(self, split: str) -> Path:
        return self.folder / f".{split}.spool"

    def _convert(self, split: str, example: ExportedExample, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        number = self.counts.add_image(split, example)
        name = safe_file_name(example, f"{split}-{number:08d}")
        name = write_image(self.folder / IMAGES_DIR, name, example.image)
        self._add_source_id(example.source_id)
        height, width = example.image_hw
        image = {"id": 0, "file_name": name, "height": height, "width": width, "source_id": example.source_id}
        annotations = []
        masks, keypoints = _masks(example, where), _keypoints(example, where)
        for item, mask, points in zip(example.objects, masks, keypoints, strict=True):
            if item.class_id not in self._known_ids:
                raise InputError(f"{where}, {example.source_id!r}: class id {item.class_id} is not in the label map.")
            if not item.is_sound:
                self.counts.lost[UNSOUND_BOX] += 1
                continue
            annotation = self._annotation(item, example.image_hw)
            if mask is not None:
                annotation["segmentation"] = mask
            if points:
                self.num_keypoints[item.class_id] = max(self.num_keypoints.get(item.class_id, 0), len(points) // 3)
                annotation |= {"keypoints": points, "num_keypoints": sum(v > 0 for v in points[2::3])}
            annotations.append(annotation)
            self.counts.lost.update(lost for lost, flag in _LOST_FLAGS.items() if getattr(item, flag))
        self.counts.num_objects[split] += len(annotations)
        return image, annotations

    def _annotation(self, item: ExportedObject, image_hw: tuple[int, int]) -> dict[str, Any]:
        box = box_xywh_px(item.box_yxyx_rel, image_hw)
        area = round(box[2] * box[3], _DECIMALS)
        if item.area_px is not None and math.isfinite(item.area_px):
            area = item.area_px
        elif item.area_px is not None:  # JSON cannot represent it
            self.counts.changed["area that is not finite (replaced by the box's area)"] += 1
        return {"category_id": item.class_id, "bbox": box, "area": area, "iscrowd": int(item.is_crowd)}

    def _add_source_id(self, source_id: str) -> None:
        is_number = source_id.isascii() and source_id.isdigit() and len(source_id) <= _MAX_ID_DIGITS
        if not is_number or str(int(source_id)) != source_id:
            self.source_ids = None
        if self.source_ids is not None:
            self.source_ids.append(int(source_id))

    def _image_id(self, number: int) -> int:
        return self.source_ids[number] if self.source_ids is not None else number + 1

    def _write_json(self, file: IO[str], spool_path: Path) -> None:
        file.write('{"info": {"description": "exported by detloom"},\n"categories": ')
        json.dump(list(self._categories()), file, ensure_ascii=False)
        file.write(',\n"images": [')
        first, num_images, separator = self.num_images, 0, "\n"
        for image, _ in _read_spool(spool_path):
            image["id"] = self._image_id(first + num_images)
            file.write(separator + json.dumps(image, ensure_ascii=False))
            num_images, separator = num_images + 1, ",\n"
        file.write('\n],\n"annotations": [')
        separator = "\n"
        for number, (_, annotations) in enumerate(_read_spool(spool_path), first):
            for annotation in annotations:
                self.num_annotations += 1
                entry = {"id": self.num_annotations, "image_id": self._image_id(number), **annotation}
                file.write(separator + json.dumps(entry))
                separator = ",\n"
        file.write("\n]}\n")
        self.num_images += num_images

    def _categories(self) -> Iterator[dict[str, Any]]:
        for class_id, name in self.label_map.names_by_id:
            category: dict[str, Any] = {"id": class_id, "name": name, "supercategory": ""}
            if class_id in self.num_keypoints:
                names = [f"keypoint_{index + 1}" for index in range(self.num_keypoints[class_id])]
                category |= {"keypoints": names, "skeleton": []}
            yield category


def _read_spool(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            image, annotations = json.loads(line)
            yield image, annotations


def _masks(example: ExportedExample, where: str) -> list[Mapping[str, Any] | None]:
    """Return COCO's compressed run lengths of each object; None for an object without a mask."""
    encoded = example.features.texts(keys.MASK)
    if not encoded:
        return [None] * len(example.objects)
    if len(encoded) != len(example.objects):
        raise InputError(f"{where}, {example.source_id!r}: {len(encoded)} masks for {len(example.objects)} objects.")
    return [_run_lengths(png, example.image_hw, f"{where}, {example.source_id!r}") if png else None for png in encoded]


def _run_lengths(png: bytes, image_hw: tuple[int, int], where: str) -> Mapping[str, Any]:
    mask = decode_mask_png(png, image_hw[0] * image_hw[1])
    if mask is None or mask["size"] != list(image_hw):
        raise InputError(f"{where}: a mask is not a PNG with one channel and the size of the image.")
    return mask


def _keypoints(example: ExportedExample, where: str) -> list[list[float]]:
    """Return x, y in pixels and visibility, flat, for each object; empty for an object without keypoints."""
    numbers = example.features.ints(keys.NUM_KEYPOINTS).tolist()
    if not any(numbers):
        return [[] for _ in example.objects]
    xs, ys = (example.features.floats(key).tolist() for key in (keys.KEYPOINT_X, keys.KEYPOINT_Y))
    visible = example.features.ints(keys.KEYPOINT_VISIBILITY).tolist() or [2] * len(xs)
    if len(numbers) != len(example.objects) or not sum(numbers) == len(xs) == len(ys) == len(visible):
        raise InputError(f"{where}, {example.source_id!r}: the numbers of keypoints, x, y and visibilities differ.")
    height, width = example.image_hw
    points = iter([(_pixel(x, width), _pixel(y, height), seen) for x, y, seen in zip(xs, ys, visible, strict=True)])
    return [list(itertools.chain.from_iterable(itertools.islice(points, count))) for count in numbers]


def _pixel(rel: float, size: int) -> float:
    return round(rel * size, _DECIMALS) if math.isfinite(rel) else 0.0
