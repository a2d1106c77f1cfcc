"""Soft non-maximum suppression of the best pairs of box and class of each image (Gaussian, arXiv:1704.04503)."""

import functools

import tensorflow as tf

from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression
from detloom.trainer_module.boxes.geometry import area

NOT_SELECTED = -1.0  # score of a pair that is not selected; score thresholds are 0 or more
_SMALLEST_AREA = 1e-30  # so that the overlap of boxes without area is 0; it changes no other area


def select_softly(
    config: BatchNonMaxSuppression,
    boxes_yxyx_BN4: tf.Tensor,
    class_indices_BN: tf.Tensor,
    scores_BN: tf.Tensor,
    is_visible_BN: tf.Tensor,
    least_score_B: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Repeatedly select the best pair of each image and lower the scores of its class by overlap.

    Static shapes and few small operations for each pair that is selected, for XLA and ONNX.

    Args:
        scores_BN: in descending order, ties as they are to be selected.
        is_visible_BN: whether a selected pair counts for `max_total_detections`.
        least_score_B: the selection ends at this score.

    Returns:
        Score of each pair when it was selected, float32 [B, N], or `NOT_SELECTED`; and bool [B], False where the
        selection ended too early, because a class may have reached `max_detections_per_class`.
    """
    most, numbers_N = config.max_total_detections, tf.range(scores_BN.shape[1], dtype=tf.int64)
    ymin, xmin, ymax, xmax = tf.unstack(boxes_yxyx_BN4, axis=-1)
    areas = area(boxes_yxyx_BN4) + _SMALLEST_AREA
    classes, visible = (tf.cast(values, tf.float32) for values in (class_indices_BN, is_visible_BN))
    columns_BN7 = tf.stack([ymin, xmin, ymax, xmax, areas, classes, visible], axis=-1)

    least_score_B1 = least_score_B[:, tf.newaxis]

    def is_open(left_BN: tf.Tensor, num_visible_B1: tf.Tensor) -> tf.Tensor:
        return (tf.reduce_max(left_BN, axis=1, keepdims=True) > least_score_B1) & (num_visible_B1 < most)

    def select_best(
        left_BN: tf.Tensor, taken_BN: tf.Tensor, num_visible_B1: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        place_B = tf.argmax(left_BN, axis=1)
        best_B7 = tf.gather(columns_BN7, place_B, batch_dims=1)
        top, left, bottom, right, best_area, best_class, best_visible = tf.split(best_B7, 7, axis=1)
        height = tf.nn.relu(tf.minimum(ymax, bottom) - tf.maximum(ymin, top))
        width = tf.nn.relu(tf.minimum(xmax, right) - tf.maximum(xmin, left))
        shared = height * width
        iou = shared / (areas + best_area - shared)
        lowered_BN = left_BN * tf.exp(-0.5 / config.soft_nms_sigma * tf.square(iou))
        lowered_BN = tf.where(tf.equal(classes, best_class), lowered_BN, left_BN)
        is_best = tf.equal(numbers_N, place_B[:, tf.newaxis])
        return (
            tf.where(is_best, NOT_SELECTED, lowered_BN),
            tf.maximum(taken_BN, tf.where(is_best, left_BN, NOT_SELECTED)),  # a pair may be best again at the end
            num_visible_B1 + best_visible,
        )

    # An image that has ended goes on while another has not; what it selects then is not used.
    left_BN, taken_BN, num_visible_B1 = tf.while_loop(
        lambda left_BN, _, num_visible_B1: tf.reduce_any(is_open(left_BN, num_visible_B1)),
        select_best,
        (scores_BN, tf.fill(tf.shape(scores_BN), NOT_SELECTED), tf.zeros_like(scores_BN[:, :1])),
        maximum_iterations=config.max_detections_per_class,
    )
    taken_BN = tf.where(taken_BN > least_score_B1, taken_BN, NOT_SELECTED)
    return taken_BN, ~is_open(left_BN, num_visible_B1)[:, 0]


def select_softly_on_host(
    config: BatchNonMaxSuppression,
    boxes_yxyx_BN4: tf.Tensor,
    class_indices_BN: tf.Tensor,
    scores_BN: tf.Tensor,
    least_score_B: tf.Tensor,
    num_classes: int,
) -> tf.Tensor:
    """Return the scores of `select_softly` by TensorFlow's own operation, which runs on the CPU only.

    It selects up to `max_detections_per_class` pairs of each class.
    """

    def select_of_class(boxes_N4: tf.Tensor, scores_N: tf.Tensor, least_score: tf.Tensor) -> tf.Tensor:
        places, scores = tf.image.non_max_suppression_with_scores(
            boxes_N4,
            scores_N,
            config.max_detections_per_class,
            iou_threshold=1.0,
            score_threshold=least_score,
            soft_nms_sigma=config.soft_nms_sigma,
        )
        return tf.tensor_scatter_nd_update(tf.fill(tf.shape(scores_N), NOT_SELECTED), places[:, tf.newaxis], scores)

    def select_of_image(image: tuple[tf.Tensor, ...]) -> tf.Tensor:
        boxes_N4, class_indices_N, scores_N, least_score = image
        of_classes = (
            select_of_class(boxes_N4, tf.where(class_indices_N == class_index, scores_N, NOT_SELECTED), least_score)
            for class_index in range(num_classes)
        )
        return functools.reduce(tf.maximum, of_classes)

    images = (boxes_yxyx_BN4, class_indices_BN, scores_BN, least_score_B)
    return tf.map_fn(select_of_image, images, fn_output_signature=tf.float32)
