"""Exact non-maximum suppression of a batch that examines only the pairs of box and class that matter.

The result equals that of the Object Detection API, which suppresses within each class over all boxes and then takes
the best of all classes. This equals one greedy pass over all pairs of box and class in descending order of score, in
which only kept pairs of the same class suppress a pair. The pass ends when enough pairs are kept, so that pairs with
low scores are rarely needed. It therefore runs over the best pairs only; what it keeps above the best score left out
is final. If that is not enough, it runs over more pairs, and in the end over all of them.

All shapes are static, apart from the number of images, so that XLA compiles each function.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression
from detloom.trainer_module.boxes.geometry import area, iou_matrix
from detloom.trainer_module.boxes.soft_nms import NOT_SELECTED, select_softly, select_softly_on_host

_NUMS_OF_PAIRS = (512, 4096)  # 512 are about five for each of 100 detections; selecting more takes longer
_NUMS_OF_SOFT_PAIRS = (1536,)  # lowered pairs stay in the way: a crowd of 100 cells needs about 1000
_BLOCK = 128  # number of pairs that are compared with each other at once


class Selection(NamedTuple):
    """The pairs kept in each image, in descending order of score, padded with zeros.

    Attributes:
        box_indices_BM: int32.
        class_indices_BM: int32.
        scores_BM: float32.
        num_selected_B: int32, number of rows that are not padding.
    """

    box_indices_BM: tf.Tensor
    class_indices_BM: tf.Tensor
    scores_BM: tf.Tensor
    num_selected_B: tf.Tensor


class _Pairs(NamedTuple):
    """Pairs of box and class in descending order of score, ties by class, then box, as in the reference."""

    box_indices_BN: tf.Tensor
    class_indices_BN: tf.Tensor  # -1 in padding
    scores_BN: tf.Tensor
    boxes_yxyx_BN4: tf.Tensor
    is_visible_BN: tf.Tensor  # True if the box has area inside the clip window


class _Best(NamedTuple):
    """The best pairs, padded to whole blocks, and a bound of the scores of all others; -inf if there are none."""

    pairs: _Pairs
    best_left_out_B: tf.Tensor


class _Scores(NamedTuple):
    """Scores of the pairs of each class, which decrease while pairs are selected.

    Attributes:
        best_BK: highest score of each class.
        num_selected_BK: number of selected pairs of each class.
    """

    all_BKN: tf.Tensor
    best_BK: tf.Tensor
    num_selected_BK: tf.Tensor


def select_boxes(
    config: BatchNonMaxSuppression,
    ranks_BNK: tf.Tensor,
    to_scores: Callable[[tf.Tensor], tf.Tensor],
    boxes_of: Callable[[tf.Tensor], tf.Tensor],
    clip_windows_yxyx_B4: tf.Tensor,
    *,
    has_boxes_per_class: bool = False,
    on_host: bool = False,
) -> Selection:
    """Suppress overlapping boxes within each class, then keep the best of all classes.

    Args:
        ranks_BNK: a number for each box and class that increases with the score; N and K are static. If there are
            NaNs, valid pairs may be lost.
        to_scores: converts ranks of any shape to scores of the same shape; must be monotone.
        boxes_of: returns the boxes [B, M, 4] of box indices [B, M]; with `has_boxes_per_class`, of the indices of the
            pairs, box index * K + class index.
        clip_windows_yxyx_B4: boxes without area inside are not reported. Boxes are compared unclipped.
        has_boxes_per_class: whether each pair of box and class has a box of its own.
        on_host: use operations that exist on CPUs only, where they are faster than the loops.
    """
    num_classes, is_soft = ranks_BNK.shape[2], config.soft_nms_sigma > 0

    def boxes_of_pairs(box_indices_BP: tf.Tensor, class_indices_BP: tf.Tensor) -> tf.Tensor:
        return boxes_of(box_indices_BP * num_classes + class_indices_BP if has_boxes_per_class else box_indices_BP)

    def select(nums_of_pairs: tuple[int, ...]) -> Selection:
        if not nums_of_pairs:
            boxes_BN4 = None if has_boxes_per_class else boxes_of(_all_boxes(ranks_BNK))
            return _select_from_all(config, to_scores(ranks_BNK), boxes_BN4, boxes_of_pairs, clip_windows_yxyx_B4)
        best = _best_pairs(ranks_BNK, nums_of_pairs[0], to_scores, boxes_of_pairs, clip_windows_yxyx_B4)
        if is_soft:
            selection, is_final_B = _select_softly(config, best, num_classes, on_host=on_host)
        else:
            selection, is_final_B = _select_in_blocks(config, best)
        return tf.cond(tf.reduce_all(is_final_B), lambda: selection, lambda: select(nums_of_pairs[1:]))

    selected: Selection = select(_NUMS_OF_SOFT_PAIRS if is_soft else _NUMS_OF_PAIRS)
    return selected


def _all_boxes(ranks_BNK: tf.Tensor) -> tf.Tensor:
    """Return the indices of all boxes, int32 [B, N]."""
    return tf.broadcast_to(tf.range(ranks_BNK.shape[1]), [tf.shape(ranks_BNK)[0], ranks_BNK.shape[1]])


def _is_visible(boxes_yxyx_BP4: tf.Tensor, clip_windows_yxyx_B4: tf.Tensor) -> tf.Tensor:
    begin, end = tf.split(clip_windows_yxyx_B4[:, tf.newaxis], 2, axis=-1)
    return area(tf.clip_by_value(boxes_yxyx_BP4, tf.tile(begin, [1, 1, 2]), tf.tile(end, [1, 1, 2]))) > 0


# --- the best pairs ---------------------------------------------------------------------------------------------------


def _best_pairs(
    ranks_BNK: tf.Tensor,
    num: int,
    to_scores: Callable[[tf.Tensor], tf.Tensor],
    boxes_of_pairs: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    clip_windows_yxyx_B4: tf.Tensor,
) -> _Best:
    """Return the `num` pairs with the highest ranks. They belong to the `num` boxes whose best class ranks highest."""
    num_boxes, num_classes = ranks_BNK.shape[1:]
    num = min(num, num_boxes * num_classes)
    _, boxes_BM = tf.math.top_k(tf.reduce_max(ranks_BNK, axis=-1), min(num, num_boxes))
    ranks_BMK = tf.gather(ranks_BNK, boxes_BM, batch_dims=1)
    ranks_BP, places_BP = tf.math.top_k(tf.reshape(ranks_BMK, [-1, boxes_BM.shape[1] * num_classes]), num)
    box_indices_BP = tf.gather(boxes_BM, places_BP // num_classes, batch_dims=1)
    class_indices_BP = places_BP % num_classes

    # Different ranks can have equal scores; ties are ordered by class, then box.
    by_class_BP = tf.argsort(class_indices_BP * num_boxes + box_indices_BP)
    scores_BP = tf.gather(to_scores(ranks_BP), by_class_BP, batch_dims=1)
    scores_BP, by_score_BP = tf.math.top_k(scores_BP, num)  # stable
    order_BP = tf.gather(by_class_BP, by_score_BP, batch_dims=1)
    box_indices_BP, class_indices_BP = (
        tf.gather(indices, order_BP, batch_dims=1) for indices in (box_indices_BP, class_indices_BP)
    )
    boxes_yxyx_BP4 = boxes_of_pairs(box_indices_BP, class_indices_BP)
    is_visible_BP = _is_visible(boxes_yxyx_BP4, clip_windows_yxyx_B4)
    is_all = num == num_boxes * num_classes
    best_left_out_B = tf.fill([tf.shape(ranks_BNK)[0]], -float("inf")) if is_all else scores_BP[:, -1]
    pairs = _Pairs(box_indices_BP, class_indices_BP, scores_BP, boxes_yxyx_BP4, is_visible_BP)
    return _Best(_pad(pairs, -num % _BLOCK), best_left_out_B)


def _pad(pairs: _Pairs, num_missing: int) -> _Pairs:
    def pad(part: tf.Tensor, value: float) -> tf.Tensor:
        return tf.pad(part, [[0, 0], [0, num_missing], *[[0, 0]] * (len(part.shape) - 2)], constant_values=value)

    return _Pairs(*(pad(part, value) for part, value in zip(pairs, (0, -1, NOT_SELECTED, 0.0, False), strict=True)))


def _select_in_blocks(config: BatchNonMaxSuppression, best: _Best) -> tuple[Selection, tf.Tensor]:
    """Process blocks of `_BLOCK` pairs until enough are kept; skip pairs that tie with a pair left out.

    Returns:
        The selection, and bool [B]: False if pairs that were left out can belong to it.
    """
    pairs, most = best.pairs, config.max_total_detections
    num_blocks = pairs.scores_BN.shape[1] // _BLOCK
    blocks = _Pairs(*(tf.reshape(part, [-1, num_blocks, _BLOCK, *part.shape[2:]]) for part in pairs))
    least_score_B = tf.maximum(best.best_left_out_B, config.score_threshold)

    def is_open(i: tf.Tensor, kept: _Pairs) -> tf.Tensor:
        num_visible_B = tf.reduce_sum(tf.cast(kept.is_visible_BN, tf.int32), axis=1)
        next_score_B = tf.gather(blocks.scores_BN[:, :, 0], tf.minimum(i, num_blocks - 1), axis=1)
        return (num_visible_B < most) & (next_score_B > least_score_B)

    def is_unfinished(i: tf.Tensor, kept: _Pairs, is_cut_B: tf.Tensor) -> tf.Tensor:
        return (i < num_blocks) & tf.reduce_any(is_open(i, kept))

    def look_at_block(i: tf.Tensor, kept: _Pairs, is_cut_B: tf.Tensor) -> tuple[tf.Tensor, _Pairs, tf.Tensor]:
        block = _Pairs(*(tf.gather(part, i, axis=1) for part in blocks))
        is_kept_BN = _keep_of_block(config, block, kept, block.scores_BN > least_score_B[:, tf.newaxis])
        kept, is_cut_now_B = _append(kept, block, is_kept_BN)
        return i + 1, kept, is_cut_B | is_cut_now_B

    # A block more than needed: pairs that are not visible are rare. If they take all of it, `is_cut_B` is True.
    nothing = _Pairs(*(tf.zeros_like(part[:, :1]) for part in pairs))
    nothing = nothing._replace(class_indices_BN=nothing.class_indices_BN - 1)
    nothing = _Pairs(*(tf.repeat(part, most + _BLOCK, axis=1) for part in nothing))
    start = (tf.constant(0), nothing, tf.zeros_like(nothing.is_visible_BN[:, 0]))
    _, kept, is_cut_B = tf.while_loop(is_unfinished, look_at_block, start)
    selection = _visible(config, kept)
    is_complete_B = ~is_cut_B & ~(best.best_left_out_B > config.score_threshold)
    return selection, (selection.num_selected_B >= most) | is_complete_B


def _keep_of_block(
    config: BatchNonMaxSuppression, block: _Pairs, kept: _Pairs, is_candidate_BN: tf.Tensor
) -> tf.Tensor:
    """Return bool [B, N]: pairs of the block that are not suppressed and not over the limit of their class."""
    same_as_kept_BNS = block.class_indices_BN[:, :, tf.newaxis] == kept.class_indices_BN[:, tf.newaxis, :]
    overlaps_BNS = iou_matrix(block.boxes_yxyx_BN4, kept.boxes_yxyx_BN4) > config.iou_threshold
    is_candidate_BN &= ~tf.reduce_any(same_as_kept_BNS & overlaps_BNS, axis=-1)

    columns = tf.range(_BLOCK)
    is_earlier_NN = columns[tf.newaxis, :] < columns[:, tf.newaxis]  # [later, earlier]
    same_class_BNN = block.class_indices_BN[:, :, tf.newaxis] == block.class_indices_BN[:, tf.newaxis, :]
    same_class_BNN &= is_earlier_NN
    overlaps_BNN = iou_matrix(block.boxes_yxyx_BN4, block.boxes_yxyx_BN4) > config.iou_threshold
    can_suppress_BNN = tf.cast(same_class_BNN & overlaps_BNN, tf.float32)

    def without_suppressed(is_kept_BN: tf.Tensor) -> tf.Tensor:
        num_suppressors_BN = tf.linalg.matvec(can_suppress_BNN, tf.cast(is_kept_BN, tf.float32))
        return is_candidate_BN & (num_suppressors_BN == 0)

    # Whether a pair is kept depends on earlier pairs only, so the greedy result is the only fixed point. After n rounds
    # it is reached for pairs at the end of a chain of n overlaps; chains are short.
    _, is_kept_BN = tf.while_loop(
        lambda before_BN, now_BN: tf.reduce_any(before_BN != now_BN),
        lambda before_BN, now_BN: (now_BN, without_suppressed(now_BN)),
        (is_candidate_BN, without_suppressed(is_candidate_BN)),
    )
    num_before_BN = tf.reduce_sum(tf.cast(same_as_kept_BNS, tf.float32), axis=-1) + tf.linalg.matvec(
        tf.cast(same_class_BNN, tf.float32), tf.cast(is_kept_BN, tf.float32)
    )
    return is_kept_BN & (num_before_BN < config.max_detections_per_class)


def _append(kept: _Pairs, block: _Pairs, is_kept_BN: tf.Tensor) -> tuple[_Pairs, tf.Tensor]:
    """Append the kept pairs of the block; also return where, bool [B], some did not fit."""
    size = kept.scores_BN.shape[1]
    block = block._replace(
        class_indices_BN=tf.where(is_kept_BN, block.class_indices_BN, -1),
        is_visible_BN=block.is_visible_BN & is_kept_BN,
    )
    joined = _Pairs(*(tf.concat([old, new], axis=1) for old, new in zip(kept, block, strict=True)))
    is_used_BS = joined.class_indices_BN >= 0
    used_first_BS = _true_first(is_used_BS)[:, :size]
    is_cut_B = tf.reduce_sum(tf.cast(is_used_BS, tf.int32), axis=1) > size
    return _Pairs(*(tf.gather(part, used_first_BS, batch_dims=1) for part in joined)), is_cut_B


def _true_first(is_true_BN: tf.Tensor) -> tf.Tensor:
    """Return the places of all True, then those of all False, in order. No two keys tie: OpenVINO would mix these."""
    size = is_true_BN.shape[1]
    return tf.argsort(tf.where(is_true_BN, 0, size) + tf.range(size), axis=1)


def _visible(config: BatchNonMaxSuppression, kept: _Pairs) -> Selection:
    """Return the first `max_total_detections` visible pairs."""
    most = config.max_total_detections
    visible_first_BM = _true_first(kept.is_visible_BN)[:, :most]
    is_visible_BM = tf.gather(kept.is_visible_BN, visible_first_BM, batch_dims=1)

    def rows(values_BS: tf.Tensor) -> tf.Tensor:
        values_BM = tf.gather(values_BS, visible_first_BM, batch_dims=1)
        return tf.where(is_visible_BM, values_BM, tf.zeros_like(values_BM))

    num_selected_B = tf.reduce_sum(tf.cast(is_visible_BM, tf.int32), axis=1)
    return Selection(rows(kept.box_indices_BN), rows(kept.class_indices_BN), rows(kept.scores_BN), num_selected_B)


# --- one pair after the other -----------------------------------------------------------------------------------------


def _select_softly(
    config: BatchNonMaxSuppression, best: _Best, num_classes: int, *, on_host: bool
) -> tuple[Selection, tf.Tensor]:
    """Return the same as `_select_in_blocks`, with soft suppression."""
    most = config.max_total_detections
    pairs = _pad(best.pairs, max(most - best.pairs.scores_BN.shape[1], 0))
    least_score_B = tf.maximum(best.best_left_out_B, config.score_threshold)
    columns = (pairs.boxes_yxyx_BN4, pairs.class_indices_BN, pairs.scores_BN)
    if on_host:
        taken_BN = select_softly_on_host(config, *columns, least_score_B, num_classes)
        is_ended_B = tf.ones_like(least_score_B, tf.bool)
    else:
        taken_BN, is_ended_B = select_softly(config, *columns, pairs.is_visible_BN, least_score_B)
    # Later selections have equal or lower scores, and of equal scores, the first pair is selected first.
    scores_BM, places_BM = tf.math.top_k(tf.where(pairs.is_visible_BN, taken_BN, NOT_SELECTED), most)
    is_row_BM = scores_BM > NOT_SELECTED
    box_indices_BM, class_indices_BM = (
        tf.where(is_row_BM, tf.gather(indices_BN, places_BM, batch_dims=1), 0)
        for indices_BN in (pairs.box_indices_BN, pairs.class_indices_BN)
    )
    num_selected_B = tf.reduce_sum(tf.cast(is_row_BM, tf.int32), axis=1)
    selection = Selection(box_indices_BM, class_indices_BM, tf.where(is_row_BM, scores_BM, 0.0), num_selected_B)
    is_complete_B = is_ended_B & ~(best.best_left_out_B > config.score_threshold)
    return selection, (num_selected_B >= most) | is_complete_B


def _select_from_all(
    config: BatchNonMaxSuppression,
    scores_BNK: tf.Tensor,
    boxes_yxyx_BN4: tf.Tensor | None,
    boxes_of_pairs: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    clip_windows_yxyx_B4: tf.Tensor,
) -> Selection:
    """Repeatedly take the best of all pairs, and remove those of its class that it overlaps, or lower their scores.

    The lower score is that of Soft-NMS with a Gaussian (arXiv:1704.04503).

    Args:
        boxes_yxyx_BN4: None if each pair has a box of its own.
    """
    most, num_images = config.max_total_detections, tf.shape(scores_BNK)[0]
    all_boxes_BN, scores_BKN = _all_boxes(scores_BNK), tf.transpose(scores_BNK, [0, 2, 1])

    def is_open(scores: _Scores, found: Selection) -> tf.Tensor:
        best_B = tf.reduce_max(scores.best_BK, axis=1)
        return (found.num_selected_B < most) & (best_B > config.score_threshold)

    def take_best(scores: _Scores, found: Selection) -> tuple[_Scores, Selection]:
        is_open_B1 = is_open(scores, found)[:, tf.newaxis]
        class_B1 = tf.argmax(scores.best_BK, axis=1, output_type=tf.int32)[:, tf.newaxis]
        scores_BN = tf.gather(scores.all_BKN, class_B1, batch_dims=1)[:, 0]
        box_B1 = tf.argmax(scores_BN, axis=1, output_type=tf.int32)[:, tf.newaxis]
        boxes_BN4 = boxes_of_pairs(all_boxes_BN, class_B1) if boxes_yxyx_BN4 is None else boxes_yxyx_BN4
        best_box_B14 = tf.gather(boxes_BN4, box_B1, batch_dims=1)

        num_selected_B1 = tf.gather(scores.num_selected_BK, class_B1, batch_dims=1) + 1
        iou_BN = iou_matrix(best_box_B14, boxes_BN4)[:, 0]
        if config.soft_nms_sigma > 0:
            lowered_BN = scores_BN * tf.exp(-0.5 / config.soft_nms_sigma * tf.square(iou_BN))
        else:
            lowered_BN = tf.where(iou_BN > config.iou_threshold, NOT_SELECTED, scores_BN)
        lowered_BN = tf.where(num_selected_B1 < config.max_detections_per_class, lowered_BN, NOT_SELECTED)
        lowered_BN = tf.where(tf.range(scores_BN.shape[1]) == box_B1, NOT_SELECTED, lowered_BN)

        is_reported_BM = (tf.range(most) == found.num_selected_B[:, tf.newaxis]) & is_open_B1
        is_reported_BM &= _is_visible(best_box_B14, clip_windows_yxyx_B4)
        found = Selection(
            tf.where(is_reported_BM, box_B1, found.box_indices_BM),
            tf.where(is_reported_BM, class_B1, found.class_indices_BM),
            tf.where(is_reported_BM, tf.reduce_max(scores.best_BK, axis=1, keepdims=True), found.scores_BM),
            found.num_selected_B + tf.reduce_sum(tf.cast(is_reported_BM, tf.int32), axis=1),
        )
        places_B2 = tf.stack([tf.range(num_images), class_B1[:, 0]], axis=1)  # finished images: without effect
        scores = _Scores(
            tf.tensor_scatter_nd_update(scores.all_BKN, places_B2, lowered_BN),
            tf.tensor_scatter_nd_update(scores.best_BK, places_B2, tf.reduce_max(lowered_BN, axis=1)),
            tf.tensor_scatter_nd_update(scores.num_selected_BK, places_B2, num_selected_B1[:, 0]),
        )
        return scores, found

    none_BM = tf.zeros([num_images, most], tf.int32)
    none_BK = tf.zeros([num_images, scores_BNK.shape[2]], tf.int32)
    _, found = tf.while_loop(
        lambda scores, found: tf.reduce_any(is_open(scores, found)),
        take_best,
        (
            _Scores(scores_BKN, tf.reduce_max(scores_BKN, axis=2), none_BK),
            Selection(none_BM, none_BM, tf.cast(none_BM, tf.float32), none_BM[:, 0]),
        ),
    )
    return found
