"""Export examples to YOLO: `images/<split>/`, `labels/<split>/` and `data.yaml`.

The format stores boxes and classes. Crowds and groups are left out, because a label file cannot mark them as several
objects. `difficult`, `truncated`, masks and keypoints are lost, counted and returned; areas are lost too.
"""

import posixpath
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import yaml

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
from detloom.components.example_gen.sources.yolo import IMAGES_DIRS
from detloom.components.examples_folder import ExamplesFolder
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import read_label_map
from detloom.schemas.errors import InputError

DATA_FILE = "data.yaml"
# YOLO trainers expect the evaluation split to be named `val`
_EVALUATION_SPLITS = ("val", "eval", "valid", "validation")
_FOLDERS_WITH_A_MEANING = {*IMAGES_DIRS, "labels"}  # readers search a path for the last of these
_FIRST_DECIMALS, _MAX_DECIMALS = 6, 17


def export_yolo(examples: Path, output: Path) -> ExportCounts:
    """Write a YOLO data set into the empty folder `output`; image bytes are copied unchanged.

    Class numbers are 0, 1, ... in the order of the label map's ids. The images of a split are in one folder; in the
    names of files in subfolders, a `_` replaces each slash.

    Raises:
        InputError: for a folder without examples, damaged examples, or an output that is not empty; nothing is written
            then.
    """
    splits, empty = find_splits(examples)
    label_map = read_label_map(ExamplesFolder(examples).label_map_file)
    class_numbers = {class_id: number for number, class_id in enumerate(label_map.class_ids)}
    counts = ExportCounts(empty_splits=empty)
    num_renumbered = sum(class_id != number + 1 for class_id, number in class_numbers.items())
    if num_renumbered:
        counts.lost["class id (renumbered)"] = num_renumbered
    _check_split_names(splits)
    with atomic_folder(output) as folder:
        for split, shards in splits.items():
            export = _SplitExport(folder, split, class_numbers, counts)
            for shard in shards:
                for example in read_examples(shard):
                    export.write(example, str(shard))
        # No `path`: trainers resolve a relative one from their working directory, and without one use the file's
        # folder.
        data = {**_split_keys(splits), "names": dict(enumerate(label_map.names))}
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        (folder / DATA_FILE).write_text(text, encoding="utf-8")
    return counts


def box_cxcywh_rel(box_yxyx_rel: Sequence[float]) -> list[float]:
    """Return centre x, centre y, width, height with few decimals, for which xmin = cx - w / 2 etc. restore the box."""
    ymin, xmin, ymax, xmax = box_yxyx_rel
    cx, width = _centre_interval(xmin, xmax)
    cy, height = _centre_interval(ymin, ymax)
    return [cx, cy, width, height]


def _centre_interval(start: float, end: float) -> tuple[float, float]:
    """Return centre and extent of an interval between two float32 values from 0 to 1."""
    for decimals in range(_FIRST_DECIMALS, _MAX_DECIMALS + 1):
        centre, extent = round((start + end) / 2, decimals), round(end - start, decimals)
        low, high = centre - extent / 2, centre + extent / 2
        if low >= 0 and high <= 1 and np.float32(low) == start and np.float32(high) == end:
            return centre, extent
    return (start + end) / 2, end - start


class _SplitExport:
    """A writer for the examples of one split."""

    def __init__(self, folder: Path, split: str, class_numbers: dict[int, int], counts: ExportCounts) -> None:
        self._split, self._class_numbers, self._counts = split, class_numbers, counts
        self._images, self._labels = folder / "images" / split, folder / "labels" / split
        self._images.mkdir(parents=True)
        self._labels.mkdir(parents=True)

    def write(self, example: ExportedExample, where: str) -> None:
        number = self._counts.add_image(self._split, example)
        lines = [line for item in example.objects if (line := self._format(item, f"{where}, {example.source_id!r}"))]
        self._counts.num_objects[self._split] += len(lines)
        self._count_lost(example)
        name = safe_file_name(example, f"{self._split}-{number:08d}").replace("/", "_")
        # Two images with one stem (a.jpg, a.png) would share a label file, so a name is free only if its label file is.
        name = write_image(
            self._images,
            name,
            example.image,
            is_free=lambda candidate: not (self._labels / _label_name(candidate)).exists(),
        )
        label_path = self._labels / _label_name(name)
        label_path.write_text("".join(lines), encoding="utf-8")

    def _format(self, item: ExportedObject, where: str) -> str:
        """Return the line of an object; "" if it is left out."""
        lost = self._counts.lost
        if item.class_id not in self._class_numbers:
            raise InputError(f"{where}: class id {item.class_id} is not in the label map.")
        if not item.is_sound:
            lost[UNSOUND_BOX] += 1
            return ""
        if item.is_crowd or item.is_group:
            lost["is_crowd (box left out)" if item.is_crowd else "group_of (box left out)"] += 1
            return ""
        lost.update(name for name, has in (("difficult", item.is_difficult), ("truncated", item.is_truncated)) if has)
        numbers = " ".join(repr(value) for value in box_cxcywh_rel(item.box_yxyx_rel))
        return f"{self._class_numbers[item.class_id]} {numbers}\n"

    def _count_lost(self, example: ExportedExample) -> None:
        """Count what is lost besides boxes and flags."""
        found = {
            "mask": sum(map(bool, example.features.texts(keys.MASK))),
            "keypoints": sum(number > 0 for number in example.features.ints(keys.NUM_KEYPOINTS).tolist()),
        }
        self._counts.lost.update({name: number for name, number in found.items() if number})


def _label_name(image_name: str) -> str:
    return posixpath.splitext(image_name)[0] + ".txt"


def _check_split_names(splits: Iterable[str]) -> None:
    for split in splits:
        if split.lower() in _FOLDERS_WITH_A_MEANING or split.endswith(".txt"):
            raise InputError(
                f"split {split!r}: readers of YOLO search labels by folders of this name; rename the split."
            )


def _split_keys(splits: Collection[str]) -> dict[str, str]:
    """Return the folder for each key of data.yaml: the evaluation split becomes `val`, unless another split has that
    name.
    """
    evaluation = next((name for name in _EVALUATION_SPLITS if name in splits), "val")
    return {("val" if split == evaluation else split): f"images/{split}" for split in splits}
