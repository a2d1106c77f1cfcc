"""Generate a COCO data set of any size from a few small images, by hard links."""

import io
import json
import os
from pathlib import Path

import numpy as np
from PIL import Image

ANNOTATIONS, IMAGES = "annotations/instances.json", "images"
SIDE_PX, BOXES_EACH, NUM_CLASSES = 64, 3, 10
NUM_CONTENTS = 1000  # different images
_LINKS_EACH = 30_000  # ext4 allows 65,000 names of a file
_NAMES_EACH = 10_000  # files in a folder


def make_coco(folder: Path, num_images: int) -> None:
    """Write a data set with `num_images` images."""
    (folder / ANNOTATIONS).parent.mkdir(parents=True)
    contents = folder.parent / f"{folder.name}-contents"
    contents.mkdir()
    with open(folder / ANNOTATIONS, "w", encoding="utf-8") as file:
        file.write('{"images": [')
        for number in range(num_images):
            image = {"id": number, "file_name": image_name(number), "height": SIDE_PX, "width": SIDE_PX}
            file.write(("," if number else "") + json.dumps(image))
        file.write('], "annotations": [')
        for number in range(num_images * BOXES_EACH):
            side = 8 + number * 7 % 24
            annotation = {
                "id": number + 1,
                "image_id": number // BOXES_EACH,
                "category_id": 1 + number % NUM_CLASSES,
                "bbox": [number * 5 % 32, number * 3 % 32, side, side],
                "area": side * side,
                "iscrowd": 0,
            }
            file.write(("," if number else "") + json.dumps(annotation))
        categories = [{"id": 1 + number, "name": f"class {number}"} for number in range(NUM_CLASSES)]
        file.write(f'], "categories": {json.dumps(categories)}}}')
    for number in range(num_images):
        target = folder / IMAGES / image_name(number)
        if number % _NAMES_EACH == 0:
            target.parent.mkdir(parents=True)
        source = contents / f"{number % NUM_CONTENTS}-{number // (NUM_CONTENTS * _LINKS_EACH)}.jpg"
        if not source.exists():
            source.write_bytes(_jpeg(number))
        os.link(source, target)


def image_name(number: int) -> str:
    return f"{number // _NAMES_EACH:04d}/{number:08d}.jpg"


def _jpeg(seed: int) -> bytes:
    cells = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(cells).resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC).save(buffer, format="JPEG")
    return buffer.getvalue()
