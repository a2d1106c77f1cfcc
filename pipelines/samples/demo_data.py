"""Write the embedded data set: scikit-learn's handwritten digits on its two sample photographs, in COCO format.

The digits are real handwriting (8x8 scans, Alpaydin and Kaynak 1998). No two splits share a digit, and the test images
use a part of the photographs that no other split uses. A few records are broken on purpose, to show the quarantine.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits, load_sample_images

from detloom.schemas.errors import InputError

ANNOTATION_FILES = {split: f"annotations/{split}.json" for split in ("train", "eval", "test")}
_MARKER_FILE = "demo_data.json"  # written last; describes the parameters and the source code that made the folder
_DIGIT_SHARES = {"train": 0.7, "eval": 0.1, "test": 0.2}
_TEST_PHOTO_SHARE = 0.3  # the part of each photograph's width, on the right
_DIGIT_PX = (30, 60)  # height of a digit's cell
_MAX_DIGITS = 6
_INK_VISIBLE = 0.3  # minimum opacity of ink inside the box
_HALO_PX = 3  # dark margin around the ink
_MAX_SHARED = 0.05  # maximum overlap, relative to the smaller box
_JPEG_QUALITY = 92
_NUM_EMPTY_IN = 40  # one image of this many has no digit
_Box = tuple[int, int, int, int]  # x, y, width and height in pixels
_LabelledBoxes = list[tuple[_Box, int]]  # with the value of the digit


def write_demo_data(
    folder: Path,
    *,
    num_train: int = 600,
    num_eval: int = 60,
    num_test: int = 100,
    seed: int = 0,
    image_hw: tuple[int, int] = (160, 160),
) -> None:
    """Write `images/<split>/*.jpg` and `annotations/<split>.json`; the counts are numbers of valid images.

    If the folder is complete for the same parameters and the same source code, no file is touched, so that caches over
    the folder stay valid. The folder appears only once it is complete.

    Raises:
        InputError: if the folder exists and was not made by this function.
    """
    counts = {"train": num_train, "eval": num_eval, "test": num_test}
    marker = {
        "parameters": {"counts": counts, "seed": seed, "image_hw": list(image_hw)},
        "source_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        found = _read_marker(folder)
        if found is None:
            raise InputError(
                f"{folder}: contains files that are not demo data; choose another folder or empty this one."
            )
        if found == marker:
            logging.info("%s: the demo data is complete and unchanged", folder)
            return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "new"
        _write_all(made, counts, seed, image_hw)
        (made / _MARKER_FILE).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)
    logging.info("%s: wrote %d images", folder, sum(counts.values()))


def write_embedded_digits(folder: Path) -> None:
    """Write the data that run files name `embedded:digits`."""
    write_demo_data(folder, num_train=800, num_eval=60, num_test=120, seed=0)


def _read_marker(folder: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads((folder / _MARKER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "source_sha256" in marker else None


@dataclass(frozen=True)
class _Source:
    """The photographs and digits of one split.

    Attributes:
        photos: uint8 [H, W, 3], cropped to the part that the split may use.
        digits: float [8, 8], ink from 0 to 1, with their values 0 to 9.
    """

    photos: list[np.ndarray]
    digits: list[tuple[np.ndarray, int]]


def _load_sources(rng: np.random.Generator) -> dict[str, _Source]:
    scans, values = load_digits(return_X_y=True)
    order = rng.permutation(len(scans))
    photos = load_sample_images().images
    sources = {}
    start = 0
    for split, share in _DIGIT_SHARES.items():
        chosen = order[start : start + round(share * len(scans))]
        start += len(chosen)
        parts = []
        for photo in photos:
            border = round(photo.shape[1] * (1 - _TEST_PHOTO_SHARE))
            parts.append(photo[:, border:] if split == "test" else photo[:, :border])
        digits = [(scans[index].reshape(8, 8) / 16.0, int(values[index])) for index in chosen]
        sources[split] = _Source(parts, digits)
    return sources


def _write_all(folder: Path, counts: dict[str, int], seed: int, image_hw: tuple[int, int]) -> None:
    sources = _load_sources(np.random.default_rng(seed))
    for split_number, (split, count) in enumerate(counts.items()):
        rng = np.random.default_rng([seed, split_number])
        coco: dict[str, Any] = {
            "info": {"description": f"detloom demo, {split}"},
            "images": [],
            "annotations": [],
            "categories": [{"id": value + 1, "name": str(value)} for value in range(10)],
        }
        (folder / "images" / split).mkdir(parents=True)
        for index in range(count):
            image, boxes = _make_image(rng, sources[split], image_hw, is_empty=index % _NUM_EMPTY_IN == 7)
            name = f"{split}/{split}_{index:05d}.jpg"
            image.save(folder / "images" / name, quality=_JPEG_QUALITY)
            _add(coco, name, image_hw, boxes)
        if split != "test":
            _add_bad_records(folder, coco, split, rng, sources[split], image_hw)
        path = folder / ANNOTATION_FILES[split]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(coco), encoding="utf-8")


def _add(coco: dict[str, Any], name: str, image_hw: tuple[int, int], boxes: _LabelledBoxes) -> None:
    """Add an image with its boxes."""
    image_id = len(coco["images"]) + 1
    coco["images"].append({"id": image_id, "file_name": name, "height": image_hw[0], "width": image_hw[1]})
    for box_xywh_px, value in boxes:
        coco["annotations"].append(
            {
                "id": len(coco["annotations"]) + 1,
                "image_id": image_id,
                "category_id": value + 1,
                "bbox": [int(number) for number in box_xywh_px],
                "area": int(box_xywh_px[2] * box_xywh_px[3]),
                "iscrowd": 0,
            }
        )


def _make_image(
    rng: np.random.Generator, source: _Source, image_hw: tuple[int, int], *, is_empty: bool
) -> tuple[Image.Image, _LabelledBoxes]:
    canvas_HWC = _make_background(rng, source, image_hw)
    boxes: _LabelledBoxes = []
    num_digits = 0 if is_empty else int(rng.integers(1, _MAX_DIGITS + 1))
    for opacity_HW, value in _make_digits(rng, source, num_digits, image_hw):
        is_ink_HW = opacity_HW >= _INK_VISIBLE
        rows = np.flatnonzero(np.any(is_ink_HW, axis=1))
        columns = np.flatnonzero(np.any(is_ink_HW, axis=0))
        ink_HW = opacity_HW[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        height, width = ink_HW.shape
        for _ in range(30):
            x = int(rng.integers(_HALO_PX, image_hw[1] - width + 1 - _HALO_PX))
            y = int(rng.integers(_HALO_PX, image_hw[0] - height + 1 - _HALO_PX))
            if all(_shared(other, (x, y, width, height)) <= _MAX_SHARED for other, _ in boxes):
                rows_px = slice(y - _HALO_PX, y + height + _HALO_PX)
                _paint(rng, canvas_HWC[rows_px, x - _HALO_PX : x + width + _HALO_PX], np.pad(ink_HW, _HALO_PX))
                boxes.append(((x, y, width, height), value))
                break
    return Image.fromarray(np.clip(np.rint(canvas_HWC), 0, 255).astype(np.uint8)), boxes


def _make_background(rng: np.random.Generator, source: _Source, image_hw: tuple[int, int]) -> np.ndarray:
    """Return a random crop of a photograph, randomly scaled and flipped; float32 [H, W, 3], 0 to 255."""
    photo = source.photos[int(rng.integers(len(source.photos)))]
    scale = rng.uniform(0.7, 1.6)
    fit = min(scale, photo.shape[0] / image_hw[0], photo.shape[1] / image_hw[1])
    height, width = max(1, int(image_hw[0] * fit)), max(1, int(image_hw[1] * fit))
    y = int(rng.integers(0, photo.shape[0] - height + 1))
    x = int(rng.integers(0, photo.shape[1] - width + 1))
    crop = Image.fromarray(photo[y : y + height, x : x + width])
    pixels_HWC = np.asarray(crop.resize((image_hw[1], image_hw[0]), Image.Resampling.BICUBIC), np.float32)
    return (pixels_HWC[:, ::-1] if rng.random() < 0.5 else pixels_HWC).copy()


def _make_digits(
    rng: np.random.Generator, source: _Source, num_digits: int, image_hw: tuple[int, int]
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield smoothly enlarged digits as opacities, float [h, w], 0 to 1."""
    largest_px = min(image_hw) - 2 * _HALO_PX
    for index in rng.integers(0, len(source.digits), num_digits):
        scan, value = source.digits[int(index)]
        height = min(int(rng.integers(_DIGIT_PX[0], _DIGIT_PX[1] + 1)), largest_px)
        width = min(int(height * rng.uniform(0.85, 1.1)), largest_px)
        enlarged = Image.fromarray((np.pad(scan, 1) * 255).astype(np.uint8))
        enlarged = enlarged.resize((width, height), Image.Resampling.BICUBIC)
        enlarged = enlarged.rotate(rng.uniform(-8, 8), Image.Resampling.BICUBIC)
        yield np.clip((np.asarray(enlarged, np.float32) / 255 - 0.25) / 0.35, 0, 1), value


def _paint(rng: np.random.Generator, under_HWC: np.ndarray, opacity_HW: np.ndarray) -> None:
    """Blend light ink with a dark halo into `under_HWC` in place, so that digits are legible on any photograph."""
    mask = Image.fromarray((opacity_HW * 255).astype(np.uint8))
    spread = mask.filter(ImageFilter.MaxFilter(2 * _HALO_PX - 1)).filter(ImageFilter.GaussianBlur(1))
    for layer, color in ((spread, rng.uniform(0, 50, 3)), (mask, rng.uniform(190, 255, 3))):
        strength_HW1 = np.asarray(layer, np.float32)[:, :, None] / 255 * rng.uniform(0.85, 1.0)
        under_HWC[:] = under_HWC * (1 - strength_HW1) + color * strength_HW1


def _shared(a_xywh: _Box, b_xywh: _Box) -> float:
    """Return the intersection area divided by the smaller area."""
    a_x, a_y, a_width, a_height = a_xywh
    b_x, b_y, b_width, b_height = b_xywh
    width = min(a_x + a_width, b_x + b_width) - max(a_x, b_x)
    height = min(a_y + a_height, b_y + b_height) - max(a_y, b_y)
    smaller = min(a_width * a_height, b_width * b_height)
    return max(0, width) * max(0, height) / smaller


def _add_bad_records(
    folder: Path,
    coco: dict[str, Any],
    split: str,
    rng: np.random.Generator,
    source: _Source,
    image_hw: tuple[int, int],
) -> None:
    """Add records that ingestion must refuse: four whole records, and two boxes on valid images."""
    for what in ("truncated", "missing", "wrong_size", "not_an_image", "flat_box", "negative_box"):
        name = f"{split}/bad_{what}.jpg"
        path = folder / "images" / name
        image, boxes = _make_image(rng, source, image_hw, is_empty=False)
        image.save(path, quality=_JPEG_QUALITY)
        match what:
            case "truncated":
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            case "missing":
                path.unlink()
            case "not_an_image":
                path.write_text("This is not an image.\n", encoding="utf-8")
            case "flat_box":
                boxes.append(((10, 10, 0, 12), 3))
            case "negative_box":
                boxes.append(((40, 40, -12, 9), 4))
        _add(coco, name, (image_hw[1] * 2, image_hw[0]) if what == "wrong_size" else image_hw, boxes)
