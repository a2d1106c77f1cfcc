"""Proposals of the first stage: the best boxes after non-maximum suppression, with static shapes.

Boxes are yxyx in pixels of the network's input. Letters: `A` anchors, `P` padded proposals.
"""

from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model.detector import FasterRcnnBoxCoder
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.trainer_module.boxes.box_coder import decode_boxes
from detloom.trainer_module.boxes.geometry import area
from detloom.trainer_module.detectors.faster_rcnn.sampling import take_first

BOX_CODER = FasterRcnnBoxCoder()  # of both stages; the reference has no setting


class Proposals(NamedTuple):
    """Proposals in descending order of score; rows after `num_B` are 0.

    Attributes:
        boxes_yxyx_px_BP4: float32, clipped to the image.
        scores_BP: float32.
        num_B: int32.
    """

    boxes_yxyx_px_BP4: tf.Tensor
    scores_BP: tf.Tensor
    num_B: tf.Tensor


def select_proposals(
    config: FasterRcnn,
    anchors_yxyx_px_A4: tf.Tensor,
    rpn_offsets_BA4: tf.Tensor,
    objectness_logits_BA2: tf.Tensor,
    true_hw_B2: tf.Tensor,
) -> Proposals:
    """Decode, suppress and clip the boxes of the first stage; nothing has a gradient.

    As in the reference, boxes are compared before they are clipped to the image, and a box outside of the image takes
    the place of another. Suppression is TensorFlow's operation with static shapes, which XLA compiles; a network before
    training has thousands of overlapping boxes of equal score, for which `select_boxes` would need many rounds.

    Args:
        true_hw_B2: rows and columns of each input that are image.
    """
    boxes_BA4 = tf.stop_gradient(decode_boxes(BOX_CODER, rpn_offsets_BA4, anchors_yxyx_px_A4))
    scores_BA = tf.stop_gradient(tf.nn.softmax(objectness_logits_BA2))[..., 1]
    most = min(config.first_stage_max_proposals, anchors_yxyx_px_A4.shape[0])
    chosen_BN, num_chosen_B = tf.image.non_max_suppression_padded(
        boxes_BA4,
        scores_BA,
        most,
        config.first_stage_nms_iou_threshold,
        config.first_stage_nms_score_threshold,
        pad_to_max_output_size=True,
        canonicalized_coordinates=True,
    )
    chosen_BN = tf.reshape(chosen_BN, [-1, most])
    true_hw_B2 = tf.cast(true_hw_B2, tf.float32)
    boxes_BN4 = tf.clip_by_value(
        tf.gather(boxes_BA4, chosen_BN, batch_dims=1), 0.0, tf.tile(true_hw_B2, [1, 2])[:, tf.newaxis]
    )
    is_row_BN = tf.range(most) < tf.reshape(num_chosen_B, [-1, 1])
    missing = [[0, 0], [0, config.first_stage_max_proposals - most]]
    num_B, boxes_BP4, scores_BP = take_first(
        tf.pad(is_row_BN & (area(boxes_BN4) > 0), missing),
        config.first_stage_max_proposals,
        tf.pad(boxes_BN4, [*missing, [0, 0]]),
        tf.pad(tf.gather(scores_BA, chosen_BN, batch_dims=1), missing),
    )
    return Proposals(boxes_BP4, scores_BP, num_B)
