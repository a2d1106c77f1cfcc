"""Generate ground truth and detections of many images in memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from detloom.components.evaluator.measurements import Split
    from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
    from detloom.trainer_module.evaluation.image_table import ImageTable

IMAGE_HW = (480, 640)
OBJECTS_EACH, CROWD_SHARE = 7, 0.01  # as in COCO
NEAR_SHARE = 0.4  # share of the detections; of 100, about six are near each object
CAMERAS = ("north", "east", "south", "west")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a measurement."""

    images: int
    detections: int
    classes: int


def make_split(size: Size) -> "Split":
    """Return images with some objects each, a few frequent and many rare classes; each image has a camera."""
    from detloom.components.evaluator.measurements import Split
    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.trainer_module.evaluation.coco_images import ImageGroundTruth
    from detloom.trainer_module.evaluation.image_table import ImageTable

    random, shares = np.random.default_rng(0), class_shares(size.classes)

    def make(image_id: int) -> ImageGroundTruth:
        count = count_objects(random)
        class_ids = 1 + random.choice(size.classes, count, p=shares)
        is_crowd = random.random(count) < CROWD_SHARE
        return ImageGroundTruth(image_id, IMAGE_HW, make_boxes(random, count), class_ids, is_crowd)

    features = [{"image/camera": (camera,)} for camera in CAMERAS]
    return Split(
        ground_truth=ImageTable.of(ImageGroundTruth, map(make, range(1, size.images + 1))),
        features=[features[number % len(CAMERAS)] for number in range(size.images)],
        label_map=LabelMap.from_names(f"class {number}" for number in range(size.classes)),
    )


def make_detections(split: "Split", size: Size, model: int) -> "ImageTable[ImageDetections]":
    """Return detections of a generated model: near an object and mostly of its class, or anywhere; scores descend."""
    from detloom.trainer_module.evaluation.coco_images import ImageDetections
    from detloom.trainer_module.evaluation.image_table import ImageTable

    random, shares = np.random.default_rng((1, model)), class_shares(size.classes)
    return ImageTable.of(ImageDetections, (_detect(random, truth, size, shares) for truth in split.ground_truth))


def measure_detections(images: int, *, detections: int = 100, classes: int = 80) -> float:
    """Measure generated detections as DetectionEvaluator does, compare them with a constant detector, return AP."""
    from detloom.components.evaluator.evaluation_result import assess, measure_model
    from detloom.schemas.run_file.evaluator import EvaluatorSettings
    from detloom.schemas.run_file.gates import Gates

    size = Size(images=images, detections=detections, classes=classes)
    split = make_split(size)
    model = measure_model(split, make_detections(split, size, 0), EvaluatorSettings())
    names = [str(number) for number in range(images)]
    return assess(split, names, model, None, Gates()).candidate.coco.AP


def _detect(
    random: np.random.Generator, truth: "ImageGroundTruth", size: Size, shares: npt.NDArray[np.float64]
) -> "ImageDetections":
    from detloom.trainer_module.evaluation.coco_images import ImageDetections

    num_objects = len(truth.class_ids)
    num_near = round(NEAR_SHARE * size.detections) if num_objects else 0
    num_strange = size.detections - num_near
    objects = random.integers(0, num_objects, num_near) if num_near else np.zeros(0, int)
    boxes = truth.boxes_yxyx_rel[objects]
    spread = random.uniform(0.02, 0.3, (num_near, 1))  # relative to a side: from a good box to one that matches nothing
    near = boxes + random.normal(size=(num_near, 4)) * spread * np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    near = np.hstack([np.minimum(near[:, :2], near[:, 2:]), np.maximum(near[:, :2], near[:, 2:])]).clip(0, 1)
    drawn = 1 + random.choice(size.classes, size.detections, p=shares)
    of_image = random.choice(truth.class_ids, num_strange) if num_objects else drawn[num_near:]
    is_drawn = random.random(size.detections) < np.repeat([0.15, 0.5], [num_near, num_strange])
    class_ids = np.where(is_drawn, drawn, np.concatenate([truth.class_ids[objects], of_image]))
    scores = np.concatenate([random.beta(4, 3, num_near) * (1 - spread[:, 0]), random.beta(1, 6, num_strange)])
    order = np.argsort(-scores)
    all_boxes = np.concatenate([near, make_boxes(random, num_strange)])
    return ImageDetections(
        truth.image_id,
        all_boxes[order].astype(np.float32),  # as models return them
        scores[order].astype(np.float32),
        class_ids[order].astype(np.int64),
    )


def count_objects(random: np.random.Generator) -> int:
    """Return OBJECTS_EACH on average: few in most images, none in some, dozens in others."""
    return int(random.geometric(1 / (1 + OBJECTS_EACH))) - 1


def make_boxes(random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return [count, 4] as yxyx, relative to the image: small boxes are as frequent as large ones."""
    sides = np.exp(random.uniform(np.log(0.03), np.log(0.7), (count, 2)))
    begins = random.random((count, 2)) * (1 - sides)
    return np.hstack([begins, begins + sides])


def class_shares(num_classes: int) -> npt.NDArray[np.float64]:
    """Return class ids with photo-like frequencies: the second class about half as frequent as the first."""
    weights = 1 / np.arange(2, num_classes + 2)
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares
