"""Write the inspect page of a data set: annotated samples, classes and distributions. No TFX, no Beam pipeline.

It shows records as stored; `augment_page.py` shows them after augmentation.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detloom.components.dataset_validator.checks import RULES
from detloom.components.dataset_validator.report import page_parts
from detloom.components.dataset_validator.report.build_report import describe_split
from detloom.components.dataset_validator.report.image_grid import FILTER_SCRIPT, Listed, grid_view
from detloom.components.dataset_validator.report.page_parts import DrawnImage, draw_images
from detloom.components.dataset_validator.statistics.collect_statistics import DAMAGED_FILE, PassSettings, read_shard
from detloom.components.dataset_validator.statistics.image_sample import ImageSample, RecordPlace
from detloom.components.dataset_validator.statistics.pass_result import PassResult
from detloom.components.dataset_validator.statistics.split_statistics import BoxLimits, SplitStatistics
from detloom.components.examples_folder import ExamplesFolder
from detloom.components.pages.formats import format_count
from detloom.components.pages.load_template import ZOOM_SCRIPT, load_template, read_script, read_shared_script
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import MAX_PIXELS

_HERE = Path(__file__).parent
INSPECT_HTML = "inspect.html"
MAX_IMAGES = 200
_MAX_PAGE_BYTES = 12_000_000  # bytes of images: 200 of usual size


def write_inspect_page(
    examples_dir: str | Path,
    output: str | Path,
    *,
    num_images: int = 24,
    split: str | None = None,
    class_name: str | None = None,
) -> Path:
    """Read the examples once, write one self-contained page and return its path.

    Args:
        output: a file name that ends in .html (an existing file is replaced), or a folder for `inspect.html`.
        num_images: number of images, distributed over the splits.
        split: read only this split.
        class_name: show only images that contain this class; the counts still cover all images.

    Raises:
        InputError: if there are no examples, the split, class or number of images is invalid, or the page cannot be
            written.
    """
    folder, page = Path(examples_dir), choose_page(Path(output), INSPECT_HTML)
    if not 1 <= num_images <= MAX_IMAGES:
        raise InputError(f"number of images: got {num_images}, allowed: 1 to {MAX_IMAGES}.")
    splits = find_splits(folder, split)
    label_map = read_label_map(folder / LABEL_MAP_FILE)
    wanted_id = _find_class(label_map, class_name)
    seen = _read(folder, splits, label_map, wanted_id, -(-num_images // len(splits)))
    chosen = _choose(seen.sample, splits, num_images)
    places = list(dict.fromkeys(place for _, place in chosen))
    images = draw_images(places, label_map, max_pixels=MAX_PIXELS, max_bytes=_MAX_PAGE_BYTES)
    write_page(page, _render(name_of_examples(folder), seen, label_map, chosen, images, class_name))
    return page


def _choose(sample: ImageSample, splits: Sequence[str], num_images: int) -> list[tuple[str, RecordPlace]]:
    """Return topics and places of at most `num_images` images: up to half of them with problems, then random ones."""
    topics = [f"problem:{check}" for check in sample.topics("problem")]
    chosen = [(topic, place) for topic in topics for place in sample.places(topic)]
    shown = set(list(dict.fromkeys(place for _, place in chosen))[: num_images // 2])
    chosen = [(topic, place) for topic, place in chosen if place in shown]
    by_turn = itertools.zip_longest(*(sample.places(f"sample:{name}") for name in splits))
    for place in (each for turn in by_turn for each in turn if each is not None):
        if place not in shown and len(shown) < num_images:
            shown.add(place)
            chosen.append(("sample", place))
    return chosen


def name_of_examples(folder: Path) -> str:
    """Return a title for a folder of examples; an artifact of TFX, whose name is a number, is named with its node."""
    parts = folder.absolute().parts
    return "/".join(parts[-3:]) if folder.name.isdecimal() else folder.name


def choose_page(output: Path, default_name: str) -> Path:
    """Return the file to write, or raise InputError; called first because reading the data takes long."""
    page = output if output.suffix.lower() == ".html" else output / default_name
    if page is not output and output.exists() and not output.is_dir():
        raise InputError(f"{output}: exists and is not an HTML file; give a name that ends in .html, or a folder.")
    if page.is_dir():
        raise InputError(f"{page}: is a folder; give another name for the page, or its parent folder.")
    return page


def write_page(page: Path, text: str) -> None:
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{page}: the page cannot be written ({error}).") from None


def find_splits(folder: Path, split: str | None) -> list[str]:
    """Return the requested split, or all splits with "train" first."""
    if split is not None:
        ExamplesFolder(folder).check_splits(split)
        return [split]
    return sorted(ExamplesFolder(folder).check_splits(), key=lambda name: (name != "train", name))


def _find_class(label_map: LabelMap, class_name: str | None) -> int | None:
    if class_name is None:
        return None
    for class_id, name in label_map.names_by_id:
        if name == class_name:
            return class_id
    known = ", ".join(label_map.names[:20]) + (", ..." if label_map.num_classes > 20 else "")
    raise InputError(f"class: got {class_name!r}, allowed: {known}.")


def choose_places(
    folder: Path, split: str, label_map: LabelMap, class_name: str | None, num_images: int
) -> tuple[list[RecordPlace], list[str]]:
    """Return places of records of a split, with the given class if there is one, and notes about damaged files."""
    seen = _read(folder, [split], label_map, _find_class(label_map, class_name), num_images)
    return seen.sample.places(f"sample:{split}"), _notes(seen)


def _read(
    folder: Path, splits: Sequence[str], label_map: LabelMap, wanted_id: int | None, max_per_split: int
) -> PassResult:
    settings = PassSettings(
        limits=BoxLimits(min_iou=None), content_hashes=False, sampled_class_id=wanted_id, max_per_split=max_per_split
    )
    seen = PassResult(splits={name: SplitStatistics() for name in splits}, sample=ImageSample(max_per_split))
    known_ids = frozenset(label_map.class_ids)
    for name in splits:
        for path in ExamplesFolder(folder).list_shards(name):
            seen.merge(read_shard(name, path, known_ids, settings))
    return seen


def _notes(seen: PassResult) -> list[str]:
    """Return a sentence for each damaged file."""
    keys = [key for statistics in seen.splits.values() for key in statistics.unreadable.record_keys]
    damaged = [key[1:-1] for key in keys if key.startswith(DAMAGED_FILE)]
    return [f"{each}: records after the damage are not shown." for each in damaged]


def _render(
    name: str,
    seen: PassResult,
    label_map: LabelMap,
    chosen: Sequence[tuple[str, RecordPlace]],
    images: dict[tuple[str, str], DrawnImage],
    class_name: str | None,
) -> str:
    splits: dict[str, Any] = {
        split: describe_split(part, label_map, has_model=False, decodes_images=False)
        for split, part in seen.splits.items()
    }
    num_examples = sum(part.num_examples for part in seen.splits.values())
    num_boxes = sum(part.num_boxes for part in seen.splits.values())
    notes = _notes(seen)
    missing = len({(place.split, place.record_key) for _, place in chosen}) - len(images)
    if missing:
        notes.append(f"{missing} of the selected images cannot be decoded or do not fit into the page.")
    containing = f" with {class_name}" if class_name is not None else ""
    titles = {name: rule.title for name, rule in RULES.items()}
    return load_template(_HERE, "inspect.html.j2").render(
        name=name,
        sentence=(
            f"{format_count(num_examples)} images with {format_count(num_boxes)} boxes of "
            f"{label_map.num_classes} classes; splits: {', '.join(splits)}."
        ),
        notes=notes,
        grid=grid_view([Listed(topic, place.split, place.record_key) for topic, place in chosen], titles, images),
        grid_text=f"A random sample of each split{containing}, and the first images of each problem.",
        splits=list(splits),
        count_rows=page_parts.count_rows(splits),
        class_rows=page_parts.class_rows(splits),
        histograms=page_parts.split_histograms(splits),
        maps=page_parts.position_maps(splits),
        scripts=[read_script(_HERE / FILTER_SCRIPT), read_shared_script(ZOOM_SCRIPT)],
    )
