"""COCO metrics of a detector in memory, on a split."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.coco_metrics import CocoMetrics, ImageDetections, ImageGroundTruth, compute_coco_metrics


def evaluate(
    detect: Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]], dataset: tf.data.Dataset, label_map: LabelMap
) -> CocoMetrics:
    """Run `detect` (see `Detector.detect`) over a dataset of `build_eval_dataset`.

    Memory: the boxes of the split, never its pictures.
    """
    class_ids = np.array(label_map.class_ids)
    truth: list[ImageGroundTruth] = []
    found: list[ImageDetections] = []
    for batch in dataset:
        outputs = {key: value.numpy() for key, value in detect(batch["image"], batch["true_hw"]).items()}
        numpy_batch = {key: value.numpy() for key, value in batch.items() if key != "image"}
        for i, class_indices in enumerate(numpy_batch["class_indices"]):
            image_id, is_box = len(truth) + 1, class_indices >= 0  # -1 pads
            height, width = (int(side) for side in numpy_batch["image_hw"][i])
            truth.append(
                ImageGroundTruth(
                    image_id=image_id,
                    image_hw=(height, width),
                    boxes_yxyx_rel=numpy_batch["boxes_yxyx_rel"][i][is_box],
                    class_ids=class_ids[class_indices[is_box]],
                    is_crowd=numpy_batch["is_crowd"][i][is_box],
                    area_px=numpy_batch["area_px"][i][is_box],
                )
            )
            count = int(outputs[names.NUM_DETECTIONS][i])
            found.append(
                ImageDetections(
                    image_id=image_id,
                    boxes_yxyx_rel=outputs[names.BOXES][i, :count],
                    scores=outputs[names.SCORES][i, :count],
                    class_ids=outputs[names.CLASSES][i, :count].astype(int),
                )
            )
    return compute_coco_metrics(truth, found, label_map)
