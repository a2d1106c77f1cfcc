"""Show a few images of examples with their boxes. No TFX; reads only the beginning of each split."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from detloom.components.dataset_validator.report.page_parts import DrawnImage, draw_record
from detloom.components.dataset_validator.statistics.image_sample import RecordPlace
from detloom.components.examples_folder import list_shards
from detloom.components.pages.load_template import ZOOM_SCRIPT, load_template, read_shared_script
from detloom.components.record_files import read_records
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, parse_label_map
from detloom.schemas.run_file.data import MAX_PIXELS
from detloom.trainer_module.data.records import ExampleFeatures

_HERE = Path(__file__).parent
MAX_IMAGES = 12
_MAX_LABEL_MAP_BYTES = 16 * 2**20
_ONLY_NUMBERS = LabelMap(((1, "#1"),))  # names each class by its id, as `name_of` does for an unknown one


def render_examples_page(folder: str, splits: Mapping[str, str]) -> str | None:
    """Return a self-contained page; None if no record at the beginning of a split has an image that can be decoded.

    Args:
        folder: folder or address of the examples; without a label map there, boxes show the ids of their classes.
        splits: folder or address of each split. The page has at most `MAX_IMAGES` images, as many of each split.
    """
    shown = list(splits.items())[:MAX_IMAGES]
    label_map = _read_label_map(folder)
    images: list[DrawnImage] = []
    for name, split_folder in shown:
        images += _draw_first(name, list_shards(split_folder), label_map, MAX_IMAGES // len(shown))
    if not images:
        return None
    return load_template(_HERE, "examples.html.j2").render(images=images, scripts=[read_shared_script(ZOOM_SCRIPT)])


def _read_label_map(folder: str) -> LabelMap:
    content = open_storage(folder).read(LABEL_MAP_FILE, _MAX_LABEL_MAP_BYTES)
    if content is None:
        return _ONLY_NUMBERS
    return parse_label_map(content.decode("utf-8", "replace"), f"{folder}/{LABEL_MAP_FILE}")


def _draw_first(split: str, shards: Sequence[str], label_map: LabelMap, num_images: int) -> list[DrawnImage]:
    """Draw the first records of a split that can be decoded; a damaged file ends with the record before the damage."""
    drawn: list[DrawnImage] = []
    for path in shards:
        records = itertools.islice(read_records(path), num_images)
        try:
            for number, (offset, serialized) in enumerate(records):
                place = RecordPlace(split, _record_key(serialized), path, number, offset)
                image = draw_record(place, serialized, label_map, MAX_PIXELS)
                drawn += [image] if image else []
        except tf.errors.OpError:
            pass  # a damaged file: the examples before the damage are shown
        if len(drawn) >= num_images:
            break
    return drawn[:num_images]


def _record_key(serialized: bytes) -> str:
    try:
        return ExampleFeatures(serialized).record_key
    except ValueError:
        return ""
