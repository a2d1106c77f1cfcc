"""AP of COCO results on the records of a split."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics


@dataclass(frozen=True, kw_only=True)
class Score:
    """The scores of one checkpoint; `seconds` since the start of training."""

    step: int
    seconds: float
    AP: float
    AP50: float


def score_files(folder: Path, seconds: Sequence[float], records: str, classes: Sequence[str]) -> Iterator[Score]:
    """Return the scores of `folder`/STEP.json for each checkpoint, in order of the steps, with the given seconds."""
    truth, label_map = read_truth(records), LabelMap.from_names(classes)
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    for path, its_seconds in zip(files, seconds, strict=True):
        results = json.loads(path.read_text())
        found = [_detections(image, results) for image in truth]
        metrics = compute_coco_metrics(truth, found, label_map)
        yield Score(step=int(path.stem), seconds=its_seconds, AP=metrics.AP, AP50=metrics.AP50)


def read_truth(pattern: str) -> list[ImageGroundTruth]:
    """Read the ground truth; image ids are the numbers of the images, from 1."""
    truth = []
    for number, record in enumerate(tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(pattern))), start=1):
        features = ExampleFeatures(record.numpy())
        sides = [features.floats(key).astype(np.float64) for key in keys.BOX_KEYS_YXYX]
        height, width = (int(features.ints(key)[0]) for key in (keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH))
        class_ids = features.ints(keys.CLASS_ID)
        truth.append(
            ImageGroundTruth(
                image_id=number,
                image_hw=(height, width),
                boxes_yxyx_rel=np.stack(sides, axis=-1),
                class_ids=class_ids,
                is_crowd=np.zeros(len(class_ids), bool),
            )
        )
    return truth


def _detections(image: ImageGroundTruth, results: Sequence[dict[str, Any]]) -> ImageDetections:
    mine = [each for each in results if each["image_id"] == image.image_id]
    height, width = image.image_hw
    boxes = [
        (y / height, x / width, (y + box_height) / height, (x + box_width) / width)
        for x, y, box_width, box_height in (each["bbox"] for each in mine)
    ]
    return ImageDetections(
        image_id=image.image_id,
        boxes_yxyx_rel=np.array(boxes).reshape(-1, 4),
        scores=np.array([each["score"] for each in mine]),
        class_ids=np.array([each["category_id"] for each in mine], int),
    )
