"""The best detector that ignores the image: the same boxes in every image, chosen with the split's own ground truth.

A model that is not better has learned nothing from the images. The boxes are fitted to the very split that they are
measured on: no other constant detector can be much better, and neither can an untrained network, whose outputs hardly
depend on the image.
"""

from collections.abc import Sequence

import numpy as np

from detloom.schemas.contracts.arrays import Float64Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.evaluation.matches import pairwise_iou

_MAX_BOXES = 10  # per class and image
_MAX_CHOICES = 300  # boxes of a class among which they are chosen
_MAX_TRUTH = 20_000  # boxes of a class with which they are chosen; a box that fits a sample fits the split
_MIN_IOU = 0.5


def constant_detections(ground_truth: Sequence[ImageGroundTruth], label_map: LabelMap) -> ImageDetections:
    """Return the same detections for each image of the split, with the image id 0.

    For each class, boxes are chosen greedily from the labelled ones: each matches the most objects (IoU 0.50 or more)
    that no chosen box matches yet. Its score is the number of these objects, relative to the number of images.
    """
    generator = np.random.default_rng(0)
    truth = ImageTable.of(ImageGroundTruth, ground_truth)
    boxes, scores, class_ids = [], [], []
    for class_id in label_map.class_ids:
        chosen_K4, counts_K = _choose(_boxes_of_class(truth, class_id), generator)
        boxes.append(chosen_K4)
        scores.append(np.minimum(counts_K / max(len(truth), 1), 1.0))
        class_ids.append(np.full(len(chosen_K4), class_id))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    columns = [np.concatenate(each)[order] for each in (boxes, scores, class_ids)]
    return ImageDetections(image_id=0, boxes_yxyx_rel=columns[0], scores=columns[1], class_ids=columns[2])


def _boxes_of_class(ground_truth: ImageTable[ImageGroundTruth], class_id: int) -> Float64Array:
    """Return the boxes of a class without crowds, relative to their images, as y, x, height, width [N, 4]."""
    is_of_class = (ground_truth.columns["class_ids"] == class_id) & ~ground_truth.columns["is_crowd"].astype(bool)
    boxes_N4 = ground_truth.columns["boxes_yxyx_rel"][is_of_class].astype(np.float64)
    return np.concatenate([boxes_N4[:, :2], boxes_N4[:, 2:] - boxes_N4[:, :2]], axis=1)


def _choose(boxes_N4: Float64Array, generator: np.random.Generator) -> tuple[Float64Array, Float64Array]:
    """Return the chosen boxes, yxyx [K, 4], and the number of objects [K] that each adds, for the whole class."""
    share = min(_MAX_TRUTH / max(len(boxes_N4), 1), 1.0)
    truth_M4 = generator.permutation(boxes_N4)[:_MAX_TRUTH]
    choices_C4 = truth_M4[:_MAX_CHOICES]
    # IoU does not change if both boxes are scaled along one axis: relative boxes have the IoU of those in pixels.
    fits_CM = pairwise_iou(choices_C4, truth_M4) >= _MIN_IOU
    chosen, counts = [], []
    for _ in range(min(_MAX_BOXES, len(choices_C4))):
        counts_C = fits_CM.sum(axis=1)
        best = int(counts_C.argmax())
        if not counts_C[best]:
            break
        chosen.append(np.concatenate([choices_C4[best, :2], choices_C4[best, :2] + choices_C4[best, 2:]]))
        counts.append(counts_C[best] / share)
        fits_CM &= ~fits_CM[best]
    return np.array(chosen).reshape(-1, 4), np.array(counts, np.float64)
