"""Decode the maps of CenterNet to detections (arXiv:1904.07850, section 4)."""

import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.model.center_net import CenterNet
from detloom.trainer_module.detectors.centernet.keypoint_decode import build_keypoints
from detloom.trainer_module.detectors.centernet.losses import cells_of_image
from detloom.trainer_module.detectors.centernet.peaks import Centers, at_cells, find_peaks


def build_centernet_detections(
    config: CenterNet,
    class_ids_K: tf.Tensor,
    outputs: dict[str, tf.Tensor],
    true_cells_hw_B2: tf.Tensor,
    keypoint_class_index: int | None = None,
) -> dict[str, tf.Tensor]:
    """Decode the best `max_box_predictions` peaks; see `schemas/contracts/detections.py`.

    Args:
        class_ids_K: int, label-map id of each class index.
        true_cells_hw_B2: float, rows and columns of the map that are image; boxes are relative to this part.
        keypoint_class_index: of the class with keypoints, if the detector has any.
    """
    params = config.object_center_params
    batch_size = tf.shape(outputs["class_logits_BHWK"])[0]
    height, width, num_classes = outputs["class_logits_BHWK"].shape[1:]
    # As in training, a row or column counts if it shows any image.
    shown_hw_B2 = tf.cast(tf.math.ceil(true_cells_hw_B2), tf.int32)
    scores_BHWK = tf.sigmoid(outputs["class_logits_BHWK"]) * cells_of_image(shown_hw_B2, (height, width))
    peaks_BN = tf.reshape(find_peaks(scores_BHWK, params.peak_max_pool_kernel_size), [batch_size, -1])
    num_found = min(params.max_box_predictions, height * width * num_classes)
    scores_BM, place_BM = tf.math.top_k(peaks_BN, num_found)
    cell_BM, class_index_BM = place_BM // num_classes, place_BM % num_classes
    corner_BM2 = tf.cast(tf.stack([cell_BM // width, cell_BM % width], axis=-1), tf.float32)
    size_BM2 = tf.maximum(at_cells(outputs["sizes_BHW2"], cell_BM), 0.0)
    center_BM2 = corner_BM2 + at_cells(outputs["offsets_BHW2"], cell_BM)
    boxes_yxyx_BM4 = tf.concat([center_BM2 - size_BM2 / 2, center_BM2 + size_BM2 / 2], axis=-1)
    boxes_yxyx_rel_BM4 = boxes_yxyx_BM4 / tf.tile(true_cells_hw_B2, [1, 2])[:, tf.newaxis]
    is_detection_BM = scores_BM > 0
    missing = [[0, 0], [0, params.max_box_predictions - num_found]]
    keypoints = {}
    if config.keypoint_estimation_task is not None:
        sides_4 = tf.constant([height, width] * 2, tf.float32)
        centers = Centers(cell_BM, corner_BM2, tf.clip_by_value(boxes_yxyx_BM4, 0.0, sides_4))
        has_keypoints_BM = is_detection_BM & (class_index_BM == keypoint_class_index)
        points = build_keypoints(config.keypoint_estimation_task, outputs, centers, true_cells_hw_B2, has_keypoints_BM)
        keypoints = {
            name: tf.pad(value, [*missing, *[[0, 0]] * (value.shape.rank - 2)]) for name, value in points.items()
        }
    return {
        **keypoints,
        BOXES: tf.pad(
            tf.where(is_detection_BM[..., tf.newaxis], tf.clip_by_value(boxes_yxyx_rel_BM4, 0.0, 1.0), 0.0),
            [*missing, [0, 0]],
        ),
        SCORES: tf.pad(scores_BM, missing),
        CLASSES: tf.pad(
            tf.where(is_detection_BM, tf.gather(tf.cast(class_ids_K, tf.float32), class_index_BM), 0.0), missing
        ),
        NUM_DETECTIONS: tf.reduce_sum(tf.cast(is_detection_BM, tf.float32), axis=1),
    }
