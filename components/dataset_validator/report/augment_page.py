"""Write a page that shows examples as stored next to augmented versions of them. No TFX, no training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detloom.components.dataset_validator.report.inspect_page import (
    choose_page,
    choose_places,
    find_splits,
    name_of_examples,
    write_page,
)
from detloom.components.dataset_validator.statistics.image_sample import RecordPlace, read_places
from detloom.components.pages.formats import jpeg_data_uri
from detloom.components.pages.load_template import ZOOM_SCRIPT, load_template, read_shared_script
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import to_dict
from detloom.trainer_module.data.augmentations.mixing import mixings_of
from detloom.trainer_module.detectors.supported import check_trainable
from detloom.trainer_module.drawing.augmented_versions import DrawnRecord, draw_records

AUGMENT_HTML = "augment.html"
MAX_IMAGES, MAX_VERSIONS = 48, 8
_MAX_PAGE_BYTES = 24_000_000  # bytes of images
_JPEG_QUALITY = 80


def write_augment_page(
    examples_dir: str | Path,
    output: str | Path,
    config: TrainEvalConfig,
    *,
    num_images: int = 8,
    num_versions: int = 3,
    split: str | None = None,
    class_name: str | None = None,
) -> Path:
    """Draw some examples of one split with the configuration's augmentations, and return the path of the page.

    Args:
        output: a file name that ends in .html (an existing file is replaced), or a folder for `augment.html`.
        split: None selects "train", or the first split if there is no "train".
        class_name: show only images that contain this class.

    Raises:
        InputError: if there are no examples, the split, class or number of images is invalid, the configuration cannot
            be trained, or the page cannot be written.
    """
    folder, page = Path(examples_dir), choose_page(Path(output), AUGMENT_HTML)
    for noun, number, maximum in (("images", num_images, MAX_IMAGES), ("versions", num_versions, MAX_VERSIONS)):
        if not 1 <= number <= maximum:
            raise InputError(f"number of {noun} with augmentation: got {number}, allowed: 1 to {maximum}.")
    check_trainable(config)
    chosen = find_splits(folder, split)[0]
    label_map = read_label_map(folder / LABEL_MAP_FILE)
    places, notes = choose_places(folder, chosen, label_map, class_name, num_images)
    records = dict(read_places(places))
    shown = [place for place in places if place in records]
    drawn = draw_records(config, label_map, [records[place] for place in shown], num_versions)
    rows, num_omitted = _view_rows(shown, drawn)
    if num_omitted:
        notes.append(f"{num_omitted} of the selected images do not fit into the page.")
    if mixings_of(config.train.augmentations):
        notes.append("Images are mixed with other images of this page; masks and keypoints are not drawn in them.")
    images = f"{len(rows)} {'image' if len(rows) == 1 else 'images'}"
    containing = f" with {class_name}" if class_name is not None else ""
    text = load_template(Path(__file__).parent, "augment.html.j2").render(
        name=name_of_examples(folder),
        sentence=f"{images} of split {chosen}{containing}, as stored and as augmented for training.",
        notes=notes,
        augmentations=_view_augmentations(config),
        rows=rows,
        scripts=[read_shared_script(ZOOM_SCRIPT)],
    )
    write_page(page, text)
    return page


def _view_rows(places: Sequence[RecordPlace], drawn: Sequence[DrawnRecord]) -> tuple[list[dict[str, Any]], int]:
    """Return one row per record that fits into the page, and the number of records that do not fit."""
    rows: list[dict[str, Any]] = []
    num_bytes = 0
    for place, record in zip(places, drawn, strict=True):
        images = [] if record.error else [record.stored, *record.versions]
        uris = [jpeg_data_uri(Image.fromarray(np.ascontiguousarray(image)), _JPEG_QUALITY) for image in images]
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
    """Return each augmentation with its settings in run file syntax."""
    views = []
    for augmentation in config.train.augmentations:
        plain = to_dict(augmentation)
        settings = plain if isinstance(plain, Mapping) else {}
        listed = ", ".join(f"{name} {value}" for name, value in settings.items() if value not in (None, [], ()))
        views.append({"name": type(augmentation).__name__, "settings": listed})
    return views
