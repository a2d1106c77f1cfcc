"""Examples back to YOLO: `images/<split>/`, `labels/<split>/` and `data.yaml`.

The format knows boxes and classes. Crowds and groups are left out, since a label file cannot say that they are no
single objects; `difficult` and `truncated` are lost. Each is counted and returned.
"""

import posixpath
from collections.abc import Sequence
from pathlib import Path

import yaml

from detloom.components.example_gen.export_coco import ExportCounts
from detloom.components.example_gen.exported_folder import (
    ExportedExample,
    as_float32,
    atomic_folder,
    find_splits,
    read_examples,
    read_examples_label_map,
    safe_file_name,
    write_image,
)
from detloom.schemas.errors import InputError

DATA_FILE = "data.yaml"
_EVALUATION_SPLITS = ("val", "eval", "valid", "validation")  # trainers of this family look for `val`
_FIRST_DECIMALS, _MAX_DECIMALS = 6, 17


def export_yolo(examples: Path, output: Path) -> ExportCounts:
    """Write a YOLO data set into `output`, which must not hold anything yet; the bytes of the images stay as they are.

    Class numbers are 0, 1, ... in the order of the label map's ids.

    Raises:
        InputError: for a folder without examples, a damaged one, or an output that is taken; nothing is left then.
    """
    splits, label_map = find_splits(examples), read_examples_label_map(examples)
    class_numbers = {class_id: number for number, class_id in enumerate(label_map.class_ids)}
    counts = ExportCounts()
    with atomic_folder(output) as folder:
        for split, shards in splits.items():
            (folder / "images" / split).mkdir(parents=True)
            (folder / "labels" / split).mkdir(parents=True)
            for shard in shards:
                for example in read_examples(shard):
                    _write_example(folder, split, example, class_numbers, counts, str(shard))
        data = {"path": ".", **_split_keys(list(splits)), "names": dict(enumerate(label_map.names))}
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        (folder / DATA_FILE).write_text(text, encoding="utf-8")
    return counts


def box_cxcywh_rel(box_yxyx_rel: Sequence[float]) -> list[float]:
    """Centre x, centre y, width, height, of few decimals, from which xmin = cx - w / 2 and so on give the box again."""
    ymin, xmin, ymax, xmax = box_yxyx_rel
    cx, width = _centre_interval(xmin, xmax)
    cy, height = _centre_interval(ymin, ymax)
    return [cx, cy, width, height]


def _centre_interval(start: float, end: float) -> tuple[float, float]:
    """Centre and extent of an interval between two float32 values from 0 to 1.

    Why the exact ones do: in float64 the centre is off by at most 2^-54 and half the extent by 2^-55 (both are at most
    1), so their difference meets `start` to within 2^-53, and rounds to it in float32 where half a unit in its last
    place, 2^-25 of `start` or more, is larger: from 2^-27 up. A start of 0 is met exactly;
    one between moves by less than 2^-53.
    """
    for decimals in range(_FIRST_DECIMALS, _MAX_DECIMALS + 1):
        centre, extent = round((start + end) / 2, decimals), round(end - start, decimals)
        low, high = centre - extent / 2, centre + extent / 2
        if low >= 0 and high <= 1 and as_float32(low) == start and as_float32(high) == end:
            return centre, extent
    return (start + end) / 2, end - start


def _write_example(
    folder: Path,
    split: str,
    example: ExportedExample,
    class_numbers: dict[int, int],
    counts: ExportCounts,
    where: str,
) -> None:
    counts.num_images[split] += 1
    lines = []
    for item in example.objects:
        if item.is_crowd or item.is_group:
            counts.lost["is_crowd (box left out)" if item.is_crowd else "group_of (box left out)"] += 1
            continue
        if item.class_id not in class_numbers:
            raise InputError(f"{where}, {example.source_id!r}: class id {item.class_id} is not in the label map.")
        counts.lost.update(
            name for name, has in (("difficult", item.is_difficult), ("truncated", item.is_truncated)) if has
        )
        numbers = " ".join(repr(value) for value in box_cxcywh_rel(item.box_yxyx_rel))
        lines.append(f"{class_numbers[item.class_id]} {numbers}\n")
    counts.num_objects[split] += len(lines)
    labels = folder / "labels" / split
    name = safe_file_name(example, f"{split}-{counts.num_images[split]:08d}")
    # Two images of one stem (a.jpg, a.png) would share a label file: the label file says whether a name is free.
    name = write_image(
        folder / "images" / split,
        name,
        example.image,
        is_free=lambda candidate: not (labels / _label_name(candidate)).exists(),
    )
    label_path = labels / _label_name(name)
    label_path.parent.mkdir(parents=True, exist_ok=True)
    label_path.write_text("".join(lines), encoding="utf-8")


def _label_name(image_name: str) -> str:
    return posixpath.splitext(image_name)[0] + ".txt"


def _split_keys(splits: Sequence[str]) -> dict[str, str]:
    """Folder by key of data.yaml: the evaluation split is `val` there, unless another split has that name."""
    evaluation = next((name for name in _EVALUATION_SPLITS if name in splits), "val")
    return {("val" if split == evaluation else split): f"images/{split}" for split in splits}
