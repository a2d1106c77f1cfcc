"""A page to look at a data set with: annotated samples, classes and distributions. No TFX, and no pipeline is run.

It shows records as they are stored; `augment_page.py` shows what training makes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from detloom.components.dataset_validator import report_views as views
from detloom.components.dataset_validator.build_report import describe_split
from detloom.components.dataset_validator.collect_statistics import UnreadableExample, parse_example
from detloom.components.dataset_validator.sample_pictures import Picture, PictureSample, Place, draw_pictures
from detloom.components.dataset_validator.split_statistics import BoxLimits, SplitStatistics
from detloom.components.pages.formats import format_count
from detloom.components.pages.load_template import load_template
from detloom.components.record_files import list_shards, read_records
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, read_label_map

INSPECT_HTML = "inspect.html"
MAX_PICTURES = 200
_MAX_PAGE_BYTES = 12_000_000  # of pictures: 200 usual ones
_MAX_PIXELS = 100_000_000
_SPLIT_PREFIX = "Split-"  # of TFX's split folders


@dataclass
class _Seen:
    """What one reading of the files finds."""

    splits: dict[str, SplitStatistics]
    sample: PictureSample
    notes: list[str] = field(default_factory=list)


def write_inspect_page(
    examples_dir: str | Path,
    output: str | Path,
    *,
    num_pictures: int = 24,
    split: str | None = None,
    class_name: str | None = None,
) -> Path:
    """Read the examples once and write one self-contained page; returns its path.

    Args:
        output: a file that ends in .html, which may be there already, or a folder for `inspect.html`.
        num_pictures: shared out among the splits.
        split: look at this one only.
        class_name: show pictures that hold this class; the numbers are those of all pictures.

    Raises:
        InputError: no examples, no such split, class or number of pictures, or a page that cannot be written.
    """
    folder, page = Path(examples_dir), choose_page(Path(output), INSPECT_HTML)
    if not 1 <= num_pictures <= MAX_PICTURES:
        raise InputError(f"number of pictures: got {num_pictures}, allowed: 1 to {MAX_PICTURES}.")
    splits = find_splits(folder, split)
    label_map = read_label_map(folder / LABEL_MAP_FILE)
    wanted_id = _find_class(label_map, class_name)
    seen = _read(folder, splits, label_map, wanted_id, -(-num_pictures // len(splits)))
    places = [place for name in splits for place in seen.sample.places(f"sample:{name}")][:num_pictures]
    pictures = draw_pictures(places, label_map, max_pixels=_MAX_PIXELS, max_bytes=_MAX_PAGE_BYTES)
    write_page(page, _render(folder.name, seen, label_map, places, pictures, class_name))
    return page


def choose_page(output: Path, default_name: str) -> Path:
    """The file to write: before anything is read, since that takes a while."""
    page = output if output.suffix.lower() == ".html" else output / default_name
    if page is not output and output.exists() and not output.is_dir():
        raise InputError(f"{output}: a file that is no page is there; give a name that ends in .html, or a folder.")
    if page.is_dir():
        raise InputError(f"{page}: a folder is there; give a name for the page, or the folder around it.")
    return page


def write_page(page: Path, text: str) -> None:
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{page}: the page cannot be written ({error}).") from None


def find_splits(folder: Path, split: str | None) -> list[str]:
    """The one asked for, or all, "train" first."""
    found = [path.name.removeprefix(_SPLIT_PREFIX) for path in sorted(folder.glob(f"{_SPLIT_PREFIX}*"))]
    if not found:
        raise InputError(f"{folder}: no {_SPLIT_PREFIX}* folder, needed: examples as `detloom ingest` writes them.")
    if split is not None and split not in found:
        raise InputError(f"{folder}: no split {split!r}, it has: {', '.join(found)}.")
    return [split] if split is not None else sorted(found, key=lambda name: (name != "train", name))


def _find_class(label_map: LabelMap, class_name: str | None) -> int | None:
    if class_name is None:
        return None
    for class_id, name in label_map.names_by_id:
        if name == class_name:
            return class_id
    known = ", ".join(label_map.names[:20]) + (", ..." if label_map.num_classes > 20 else "")
    raise InputError(f"class: got {class_name!r}, allowed: {known}.")


def choose_places(
    folder: Path, split: str, label_map: LabelMap, class_name: str | None, num_pictures: int
) -> tuple[list[Place], list[str]]:
    """Records of a split that hold the class, if one is given, and what is to be said about reading it."""
    seen = _read(folder, [split], label_map, _find_class(label_map, class_name), num_pictures)
    return seen.sample.places(f"sample:{split}"), seen.notes


def _read(folder: Path, splits: Sequence[str], label_map: LabelMap, wanted_id: int | None, max_per_split: int) -> _Seen:
    seen = _Seen({name: SplitStatistics() for name in splits}, PictureSample(max_per_split=max_per_split))
    known_ids, limits = frozenset(label_map.class_ids), BoxLimits(min_iou=None)
    for name, statistics in seen.splits.items():
        for path in list_shards(folder / f"{_SPLIT_PREFIX}{name}"):
            try:
                for number, (offset, serialized) in enumerate(read_records(path)):
                    try:
                        labels, _, _ = parse_example(serialized)
                    except UnreadableExample as error:
                        statistics.add_unreadable(str(error))
                        continue
                    statistics.update(labels, known_ids, limits)
                    if wanted_id is None or wanted_id in labels.class_ids_N:
                        seen.sample.add(Place(name, labels.record_key, path, number, offset), ())
            except tf.errors.OpError:
                seen.notes.append(f"{name}/{Path(path).name} is damaged; what follows the damage is not shown.")
    return seen


def _render(
    name: str,
    seen: _Seen,
    label_map: LabelMap,
    places: Sequence[Place],
    pictures: dict[tuple[str, str], Picture],
    class_name: str | None,
) -> str:
    splits: dict[str, Any] = {
        split: describe_split(part, label_map, has_model=False, has_looks=False) for split, part in seen.splits.items()
    }
    num_examples = sum(part.num_examples for part in seen.splits.values())
    num_boxes = sum(part.num_boxes for part in seen.splits.values())
    notes = list(seen.notes)
    missing = len({(place.split, place.record_key) for place in places}) - len(pictures)
    if missing:
        notes.append(f"{missing} of the chosen pictures cannot be decoded, or do not fit into the page.")
    holding = f" that hold {class_name}" if class_name is not None else ""
    parts = [
        {
            "title": f"{split}: samples{holding}",
            "text": "Drawn by a hash of the record's key, not chosen for how they look.",
            "entries": views.picture_entries([(p.split, p.record_key) for p in places if p.split == split], pictures),
        }
        for split in splits
    ]
    return load_template(Path(__file__).parent, "inspect.html.j2").render(
        name=name,
        sentence=(
            f"{format_count(num_examples)} pictures with {format_count(num_boxes)} boxes in "
            f"{label_map.num_classes} classes; splits: {', '.join(splits)}."
        ),
        notes=notes,
        samples=[part for part in parts if part["entries"]],
        splits=list(splits),
        count_rows=views.count_rows(splits),
        class_rows=views.class_rows(splits),
        histograms=views.split_histograms(splits),
        maps=views.position_maps(splits),
    )
