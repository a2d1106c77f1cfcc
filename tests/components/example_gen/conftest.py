"""Tiny data sets in VOC and COCO form, made in the test's folder."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

VocObject = tuple[str, float, float, float, float]  # class, xmin, ymin, xmax, ymax in pixels


def encode_image(image_hw: tuple[int, int] = (40, 60), image_format: str = "JPEG", seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*image_hw, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=image_format)
    return buffer.getvalue()


def format_voc(filename: str, image_hw: tuple[int, int], objects: Sequence[VocObject]) -> str:
    items = "".join(
        f"<object><name>{name}</name><difficult>0</difficult><truncated>1</truncated><bndbox><xmin>{xmin}</xmin>"
        f"<ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
        for name, xmin, ymin, xmax, ymax in objects
    )
    size = f"<size><width>{image_hw[1]}</width><height>{image_hw[0]}</height></size>"
    return f"<annotation><filename>{filename}</filename>{size}{items}</annotation>"


@pytest.fixture
def make_voc(tmp_path: Path) -> Callable[..., Path]:
    """A VOC folder: image stems by list name, each image 60x40 px with one 'cat'; `objects` overrides by stem."""

    def make(
        lists: dict[str, Sequence[str]],
        objects: dict[str, Sequence[VocObject]] | None = None,
        name: str = "voc",
    ) -> Path:
        folder = tmp_path / name
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for list_name, stems in lists.items():
            (folder / f"ImageSets/Main/{list_name}.txt").write_text("\n".join(stems) + "\n", encoding="utf-8")
            for stem in stems:
                (folder / f"JPEGImages/{stem}.jpg").write_bytes(encode_image(seed=sum(map(ord, stem))))
                found = (objects or {}).get(stem, [("cat", 6, 4, 30, 24)])
                text = format_voc(f"{stem}.jpg", (40, 60), found)
                (folder / f"Annotations/{stem}.xml").write_text(text, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def make_coco(tmp_path: Path) -> Callable[..., Path]:
    """A COCO folder: annotation file name to (images, annotations); images get written as 60x40 px JPEG."""

    def make(
        files: dict[str, tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]],
        categories: Sequence[dict[str, Any]] = ({"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}),
    ) -> Path:
        folder = tmp_path / "coco"
        for file_name, (images, annotations) in files.items():
            path = folder / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = {"images": list(images), "annotations": list(annotations), "categories": list(categories)}
            path.write_text(json.dumps(data), encoding="utf-8")
            for image in images:
                target = folder / "images" / str(image["file_name"])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(encode_image())
        return folder

    return make
