"""A page of examples as they are stored beside what training makes of them. No TFX, and no training is run."""

import base64
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from detloom.components.dataset_validator.inspect_page import choose_page, choose_places, find_splits, write_page
from detloom.components.dataset_validator.sample_pictures import Place, read_places
from detloom.components.pages.load_template import load_template
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, read_label_map
from detloom.schemas.typed_dict import to_dict
from detloom.trainer_module.augmentations.mixing import mixings_of
from detloom.trainer_module.augmented_versions import DrawnRecord, draw_records
from detloom.trainer_module.supported import check_trainable

AUGMENT_HTML = "augment.html"
MAX_PICTURES, MAX_VERSIONS = 48, 8
_MAX_PAGE_BYTES = 24_000_000  # of pictures
_JPEG_QUALITY = 80


def write_augment_page(
    examples_dir: str | Path,
    output: str | Path,
    config: TrainEvalConfig,
    *,
    num_pictures: int = 8,
    num_versions: int = 3,
    split: str | None = None,
    class_name: str | None = None,
) -> Path:
    """Draw some examples of one split with the configuration's augmentations; returns the page's path.

    Args:
        output: a file that ends in .html, which may be there already, or a folder for `augment.html`.
        split: None takes "train", or if there is none the first.
        class_name: show pictures that hold this class.

    Raises:
        InputError: no examples, no such split or class, too many pictures, a configuration that is not trained, or a
            page that cannot be written.
    """
    folder, page = Path(examples_dir), choose_page(Path(output), AUGMENT_HTML)
    for what, got, most in (("pictures", num_pictures, MAX_PICTURES), ("versions", num_versions, MAX_VERSIONS)):
        if not 1 <= got <= most:
            raise InputError(f"number of {what} with augmentation: got {got}, allowed: 1 to {most}.")
    check_trainable(config)
    chosen = find_splits(folder, split)[0]
    label_map = read_label_map(folder / LABEL_MAP_FILE)
    places, notes = choose_places(folder, chosen, label_map, class_name, num_pictures)
    records = _read(places)
    shown = [place for place in places if place in records]
    drawn = draw_records(config, label_map, [records[place] for place in shown], num_versions)
    rows, num_left_out = _view_rows(shown, drawn)
    if num_left_out:
        notes.append(f"{num_left_out} of the chosen pictures do not fit into the page.")
    if mixings_of(config.train.augmentations):
        notes.append("Pictures are mixed with the others on this page; masks and keypoints are not drawn in them.")
    pictures = f"{len(rows)} {'picture' if len(rows) == 1 else 'pictures'}"
    holding = f" that hold {class_name}" if class_name is not None else ""
    text = load_template(Path(__file__).parent, "augment.html.j2").render(
        name=folder.name,
        sentence=f"{pictures} of split {chosen}{holding}, as stored and as training would take them.",
        notes=notes,
        augmentations=_view_augmentations(config),
        rows=rows,
    )
    write_page(page, text)
    return page


def _read(places: Sequence[Place]) -> dict[Place, bytes]:
    by_path: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        by_path[place.path].append(place)
    return {place: record for path, in_file in by_path.items() for place, record in read_places(path, in_file)}


def _view_rows(places: Sequence[Place], drawn: Sequence[DrawnRecord]) -> tuple[list[dict[str, Any]], int]:
    """A row a record, as many as fit into the page, and how many do not."""
    rows: list[dict[str, Any]] = []
    num_bytes = 0
    for place, record in zip(places, drawn, strict=True):
        images = [] if record.error else [record.stored, *record.versions]
        uris = [_data_uri(image) for image in images]
        num_bytes += sum(map(len, uris))
        if num_bytes > _MAX_PAGE_BYTES:
            return rows, len(places) - len(rows)
        height, width = record.image_hw
        boxes = f"{record.num_boxes} {'box' if record.num_boxes == 1 else 'boxes'}"
        captions = [f"stored: {width} × {height} px, {boxes}"]
        captions += [f"version {number}" for number in range(1, len(record.versions) + 1)]
        rows.append(
            {
                "name": f"{place.split}/{place.record_key}",
                "error": record.error,
                "figures": [{"uri": uri, "caption": text} for uri, text in zip(uris, captions, strict=False)],
            }
        )
    return rows, 0


def _view_augmentations(config: TrainEvalConfig) -> list[dict[str, str]]:
    """Each with its settings as a run file says them."""
    views = []
    for augmentation in config.train.augmentations:
        plain = to_dict(augmentation)
        settings = plain if isinstance(plain, Mapping) else {}
        told = ", ".join(f"{name} {value}" for name, value in settings.items() if value not in (None, [], ()))
        views.append({"name": type(augmentation).__name__, "settings": told})
    return views


def _data_uri(image_rgb: npt.NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image_rgb)).save(file, "JPEG", quality=_JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
