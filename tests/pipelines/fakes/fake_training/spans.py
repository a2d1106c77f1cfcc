"""Spans of a small COCO data set: a red or a green square in each image."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, SQUARE = 64, 24  # px
COLORS = {"red": (250, 20, 20), "rot": (250, 20, 20), "green": (20, 250, 20)}
RED_GREEN = {1: "red", 2: "green"}
NUM_IMAGES = {"train": 12, "eval": 4, "test": 6}
# The start of a run file for the spans in spans/.
RUN_FILE = """
name: squares
workspace: workspace
data:
  format: coco
  path: spans/{SPAN}
  images_dir: images
  splits: {train: annotations/train.json, eval: annotations/eval.json, test: annotations/test.json}
train: {batch_size: 4, num_steps: 8}
evaluator: {num_images: 0}
retrain: {new_span: true}
notifications: {events: [failed, refused, pushed, skipped], webhook: {url: "env:HOOK"}}
"""


def write_span(
    folder: Path, span: int, *, labels_below: int = 0, without_boxes: str = "", classes: Mapping[int, str] = RED_GREEN
) -> None:
    """Write the images and labels of a span.

    Args:
        folder: the folder of all spans.
        labels_below: offset of the training boxes below the squares, in pixels.
        without_boxes: a split without boxes.
        classes: names by category id; one without a colour has no boxes.
    """
    rng = np.random.default_rng(span)
    shown = [(class_id, COLORS[name]) for class_id, name in classes.items() if name in COLORS]
    root = folder / str(span)
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    for split, num_images in NUM_IMAGES.items():
        images, annotations = [], []
        extra = span if split == "train" else 0  # every span has a different size
        for index in range(num_images + extra):
            pixels = rng.integers(90, 150, (SIDE, SIDE, 3), dtype=np.uint8)
            below = labels_below if split == "train" else 0
            x, y = int(rng.integers(SIDE - SQUARE)), int(rng.integers(SIDE - SQUARE - below))
            class_id, color = shown[index % len(shown)]
            pixels[y : y + SQUARE, x : x + SQUARE] = color
            name = f"{split}_{index}.png"
            Image.fromarray(pixels).save(root / "images" / name)
            images.append({"id": index, "file_name": name, "width": SIDE, "height": SIDE})
            box = {"bbox": [x, y + below, SQUARE, SQUARE], "area": SQUARE**2, "iscrowd": 0}
            annotations.append({"id": index + 1, "image_id": index, "category_id": class_id, **box})
        labels = {
            "images": images,
            "annotations": [] if split == without_boxes else annotations,
            "categories": [{"id": class_id, "name": name} for class_id, name in classes.items()],
        }
        (root / "annotations" / f"{split}.json").write_text(json.dumps(labels))
