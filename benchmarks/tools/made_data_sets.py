"""Data sets of any size that take little space on disk: images and label files are hard links to a few files."""

import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

_MAX_LINKS = 60_000  # to one file; ext4 allows 65,000
IMAGE_HW = (40, 60)
CLASS_NAMES = ("cat", "dog", "bird")


def make_coco(folder: Path, num_records: int, boxes_per_image: int = 7) -> None:
    """Create a COCO data set: one JSON file, its annotations in another order than its images, and small JPEGs."""
    height, width = IMAGE_HW
    _link_all(folder / "images", (f"{name}.jpg" for name in _list_names(num_records)), _encode_image())
    num_boxes = num_records * boxes_per_image
    stride = next(step for step in range(num_boxes * 5 // 8 + 1, num_boxes + 2) if math.gcd(step, num_boxes) == 1)
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASS_NAMES, 1)]
    with open(folder / "instances_train.json", "w", encoding="ascii") as file:
        file.write('{"images": [')
        for number in range(num_records):
            values = {"id": number, "file_name": f"{number:09d}.jpg", "height": height, "width": width}
            file.write(("," if number else "") + json.dumps(values))
        file.write(f'], "categories": {json.dumps(categories)}, "annotations": [')
        for place in range(num_boxes):
            turn, number = divmod(place * stride % num_boxes, num_records)
            values = {
                "id": place,
                "image_id": number,
                "category_id": turn % len(CLASS_NAMES) + 1,
                "bbox": [turn, 1.5, 20.25, 30],
                "area": 607.5,
                "iscrowd": 0,
            }
            file.write(("," if place else "") + json.dumps(values))
        file.write("]}")


def _list_names(num_records: int) -> Iterator[str]:
    return (f"{number:09d}" for number in range(num_records))


def _link_all(folder: Path, names: Iterator[str], content: bytes) -> None:
    """Create files with this content; a file system without hard links gets copies."""
    folder.mkdir(parents=True)
    first = ""
    for number, name in enumerate(names):
        path = f"{folder}/{name}"
        if number % _MAX_LINKS == 0:
            first = path
            with open(path, "wb") as file:
                file.write(content)
            continue
        try:
            os.link(first, path)
        except OSError:
            shutil.copyfile(first, path)


def _encode_image() -> bytes:
    height, width = IMAGE_HW
    out = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(out, format="JPEG")
    return out.getvalue()
