"""Exact non-maximum suppression of a batch that examines only the pairs of box and class that matter.

The result equals that of the Object Detection API, which suppresses within each class over all boxes and then takes
the best of all classes. This equals one greedy pass over all pairs of box and class in descending order of score, in
which only kept pairs of the same class suppress a pair. The pass ends when enough pairs are kept, so that pairs with
low scores are rarely needed. It therefore runs over the best pairs only; what it keeps above the best score left out
is final. If that is not enough, it runs again over more pairs.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model.detector import BatchNonMaxSuppression
from detloom.trainer_module.boxes.geometry import area, pairwise_iou

_NUM_FIRST_PAIRS = 512  # about five for each of 100 detections; selecting more takes longer than comparing them
_MORE_PAIRS = 8  # growth factor from one round to the next
_BLOCK = 128  # number of pairs that are compared with each other at once
_DEAD = -1.0  # score of a pair that can no longer be selected; score thresholds are 0 or more


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
    class_indices_BN: tf.Tensor
    scores_BN: tf.Tensor
    boxes_yxyx_BN4: tf.Tensor
    is_visible_BN: tf.Tensor  # True if the box has area inside the clip window
    least_rank_B: tf.Tensor  # rank of the last pair
    best_left_out_B: tf.Tensor  # upper bound of the scores of pairs left out; -inf if none is left out


class _Kept(NamedTuple):
    """Pairs kept so far, `S` columns. Pairs that are not visible suppress and count, but are never reported."""

    places_BS: tf.Tensor  # index into `_Pairs`
    class_indices_BS: tf.Tensor  # -1 in padding
    boxes_yxyx_BS4: tf.Tensor
    scores_BS: tf.Tensor
    is_visible_BS: tf.Tensor


class _Taken(NamedTuple):
    """One entry [B] per step."""

    places: tf.TensorArray
    scores: tf.TensorArray
    is_visible: tf.TensorArray


def select_boxes(
    config: BatchNonMaxSuppression,
    ranks_BNK: tf.Tensor,
    to_scores: Callable[[tf.Tensor], tf.Tensor],
    boxes_of: Callable[[tf.Tensor], tf.Tensor],
    clip_windows_yxyx_B4: tf.Tensor,
    *,
    has_boxes_per_class: bool = False,
) -> Selection:
    """Suppress overlapping boxes within each class, then keep the best of all classes.

    Args:
        ranks_BNK: a number for each box and class that increases with the score. If there are NaNs, valid pairs may
            be lost.
        to_scores: converts ranks of any shape to scores of the same shape; must be monotone.
        boxes_of: returns the boxes [B, M, 4] of box indices [B, M]; with `has_boxes_per_class`, of the indices of the
            pairs, box index * K + class index.
        clip_windows_yxyx_B4: boxes without area inside are not reported. Boxes are compared unclipped.
        has_boxes_per_class: whether each pair of box and class has a box of its own.
    """
    num_images, num_pairs = tf.shape(ranks_BNK)[0], tf.reduce_prod(tf.shape(ranks_BNK)[1:])
    num_classes = tf.shape(ranks_BNK)[2]

    def boxes_of_pairs(box_indices_BP: tf.Tensor, class_indices_BP: tf.Tensor) -> tf.Tensor:
        return boxes_of(box_indices_BP * num_classes + class_indices_BP if has_boxes_per_class else box_indices_BP)

    best_of_box_BN = tf.reduce_max(ranks_BNK, axis=-1)
    suppress = _suppress_softly if config.soft_nms_sigma > 0 else _suppress

    def is_unfinished(num: tf.Tensor, is_final_B: tf.Tensor, selection: Selection) -> tf.Tensor:
        return ~tf.reduce_all(is_final_B)

    def look_at_more(
        num: tf.Tensor, is_final_B: tf.Tensor, selection: Selection
    ) -> tuple[tf.Tensor, tf.Tensor, Selection]:
        pairs = _best_pairs(ranks_BNK, best_of_box_BN, num, to_scores, boxes_of_pairs, clip_windows_yxyx_B4)
        selection = suppress(config, pairs)
        enough_B = selection.num_selected_B >= config.max_total_detections
        is_final_B = enough_B | ~(pairs.best_left_out_B > config.score_threshold)
        num = tf.cond(tf.reduce_all(is_final_B), lambda: num, lambda: _next_num(num, ranks_BNK, pairs.least_rank_B))
        return num, is_final_B, selection

    none_BM = tf.zeros([num_images, config.max_total_detections], tf.int32)
    nothing = Selection(none_BM, none_BM, tf.cast(none_BM, tf.float32), none_BM[:, 0])
    first = tf.minimum(_NUM_FIRST_PAIRS, num_pairs)
    is_final_B = tf.zeros([num_images], tf.bool)
    rows = tf.TensorShape([None, config.max_total_detections])
    shapes = (first.shape, tf.TensorShape([None]), Selection(rows, rows, rows, tf.TensorShape([None])))
    return tf.while_loop(is_unfinished, look_at_more, (first, is_final_B, nothing), shape_invariants=shapes)[2]


def _best_pairs(
    ranks_BNK: tf.Tensor,
    best_of_box_BN: tf.Tensor,
    num: tf.Tensor,
    to_scores: Callable[[tf.Tensor], tf.Tensor],
    boxes_of_pairs: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    clip_windows_yxyx_B4: tf.Tensor,
) -> _Pairs:
    """Return the `num` pairs with the highest ranks. They belong to the `num` boxes whose best class ranks highest."""
    num_boxes, num_classes = tf.shape(ranks_BNK)[1], tf.shape(ranks_BNK)[2]
    _, boxes_BM = tf.math.top_k(best_of_box_BN, tf.minimum(num, num_boxes))
    ranks_BMK = tf.gather(ranks_BNK, boxes_BM, batch_dims=1)
    ranks_BP, places_BP = tf.math.top_k(tf.reshape(ranks_BMK, [tf.shape(ranks_BNK)[0], -1]), num)
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
    begin, end = tf.split(clip_windows_yxyx_B4[:, tf.newaxis], 2, axis=-1)
    clipped = tf.clip_by_value(boxes_yxyx_BP4, tf.tile(begin, [1, 1, 2]), tf.tile(end, [1, 1, 2]))
    nothing_left_out = tf.equal(num, num_boxes * num_classes)
    best_left_out_B = tf.where(nothing_left_out, -float("inf"), scores_BP[:, -1])
    is_visible_BP = area(clipped) > 0
    return _Pairs(
        box_indices_BP, class_indices_BP, scores_BP, boxes_yxyx_BP4, is_visible_BP, ranks_BP[:, -1], best_left_out_B
    )


def _next_num(num: tf.Tensor, ranks_BNK: tf.Tensor, least_rank_B: tf.Tensor) -> tf.Tensor:
    """Return the number of pairs of the next round, which includes at once all pairs that tie with the last one.

    An untrained network has thousands of these, and no round that leaves out a part of them is final.
    """
    is_tied_BNK = ranks_BNK >= least_rank_B[:, tf.newaxis, tf.newaxis]
    num_tied_B = tf.reduce_sum(tf.cast(is_tied_BNK, tf.int32), axis=[1, 2])
    more = tf.maximum(num * _MORE_PAIRS, tf.reduce_max(num_tied_B) + 1)
    return tf.minimum(more, tf.reduce_prod(tf.shape(ranks_BNK)[1:]))


def _suppress(config: BatchNonMaxSuppression, pairs: _Pairs) -> Selection:
    """Process blocks of `_BLOCK` pairs until enough are kept; skip pairs that tie with a pair left out."""
    num_pairs = tf.shape(pairs.scores_BN)[1]
    least_score_B = tf.maximum(pairs.best_left_out_B, config.score_threshold)

    def is_unfinished(begin: tf.Tensor, kept: _Kept) -> tf.Tensor:
        num_visible_B = tf.reduce_sum(tf.cast(kept.is_visible_BS, tf.int32), axis=1)
        next_score_B = pairs.scores_BN[:, tf.minimum(begin, num_pairs - 1)]
        is_open_B = (num_visible_B < config.max_total_detections) & (next_score_B > least_score_B)
        return (begin < num_pairs) & tf.reduce_any(is_open_B)

    def look_at_block(begin: tf.Tensor, kept: _Kept) -> tuple[tf.Tensor, _Kept]:
        end = tf.minimum(begin + _BLOCK, num_pairs)
        places_BN = tf.broadcast_to(tf.range(begin, end), [tf.shape(pairs.scores_BN)[0], end - begin])
        parts = (pairs.class_indices_BN, pairs.boxes_yxyx_BN4, pairs.scores_BN, pairs.is_visible_BN)
        block = _Kept(places_BN, *(part[:, begin:end] for part in parts))
        is_kept_BN = _keep_of_block(config, block, kept, block.scores_BS > least_score_B[:, tf.newaxis])
        return end, _append(kept, block, is_kept_BN)

    num_images = tf.shape(pairs.scores_BN)[0]
    none = _Kept(
        tf.zeros([num_images, 0], tf.int32),
        tf.zeros([num_images, 0], tf.int32),
        tf.zeros([num_images, 0, 4]),
        tf.zeros([num_images, 0]),
        tf.zeros([num_images, 0], tf.bool),
    )
    shapes = _Kept(*(tf.TensorShape([None, None, *part.shape[2:]]) for part in none))
    _, kept = tf.while_loop(
        is_unfinished, look_at_block, (tf.constant(0), none), shape_invariants=(tf.TensorShape([]), shapes)
    )
    return _report(config, pairs, kept.places_BS, kept.scores_BS, kept.is_visible_BS)


def _keep_of_block(config: BatchNonMaxSuppression, block: _Kept, kept: _Kept, is_candidate_BN: tf.Tensor) -> tf.Tensor:
    """Return bool [B, N]: pairs of the block that are not suppressed and not over the limit of their class."""
    same_as_kept_BNS = block.class_indices_BS[:, :, tf.newaxis] == kept.class_indices_BS[:, tf.newaxis, :]
    overlaps_BNS = pairwise_iou(block.boxes_yxyx_BS4, kept.boxes_yxyx_BS4) > config.iou_threshold
    is_candidate_BN &= ~tf.reduce_any(same_as_kept_BNS & overlaps_BNS, axis=-1)

    columns = tf.range(tf.shape(block.scores_BS)[1])
    is_earlier_NN = columns[tf.newaxis, :] < columns[:, tf.newaxis]  # [later, earlier]
    same_class_BNN = block.class_indices_BS[:, :, tf.newaxis] == block.class_indices_BS[:, tf.newaxis, :]
    same_class_BNN &= is_earlier_NN
    overlaps_BNN = pairwise_iou(block.boxes_yxyx_BS4, block.boxes_yxyx_BS4) > config.iou_threshold
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


def _append(kept: _Kept, block: _Kept, is_kept_BN: tf.Tensor) -> _Kept:
    """Concatenate both in order and without gaps; the width is that of the image with the most pairs."""
    is_used_BS = tf.concat([kept.class_indices_BS >= 0, is_kept_BN], axis=1)
    num_used_B = tf.reduce_sum(tf.cast(is_used_BS, tf.int32), axis=1)
    width = tf.reduce_max(num_used_B, axis=0)
    used_first_BS = tf.argsort(tf.cast(~is_used_BS, tf.int32), axis=1, stable=True)[:, :width]
    joined = _Kept(
        *(
            tf.gather(tf.concat([old, new], axis=1), used_first_BS, batch_dims=1)
            for old, new in zip(kept, block, strict=True)
        )
    )
    is_used_BS = tf.sequence_mask(num_used_B, width)
    return joined._replace(
        class_indices_BS=tf.where(is_used_BS, joined.class_indices_BS, -1),
        is_visible_BS=joined.is_visible_BS & is_used_BS,
    )


def _suppress_softly(config: BatchNonMaxSuppression, pairs: _Pairs) -> Selection:
    """Repeatedly take the best pair and lower the scores of its class by their overlap with it (arXiv:1704.04503)."""
    least_score_B = tf.maximum(pairs.best_left_out_B, config.score_threshold)
    num_pairs = tf.shape(pairs.scores_BN)[1]

    def is_open(scores_BN: tf.Tensor, num_visible_B: tf.Tensor) -> tf.Tensor:
        return (num_visible_B < config.max_total_detections) & (tf.reduce_max(scores_BN, axis=1) > least_score_B)

    def take_best(
        step: tf.Tensor, scores_BN: tf.Tensor, num_of_class_BN: tf.Tensor, num_visible_B: tf.Tensor, taken: _Taken
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, _Taken]:
        is_open_B = is_open(scores_BN, num_visible_B)
        best_B1 = tf.argmax(scores_BN, axis=1, output_type=tf.int32)[:, tf.newaxis]
        is_visible_B = tf.gather(pairs.is_visible_BN, best_B1, batch_dims=1)[:, 0] & is_open_B
        num_visible_B += tf.cast(is_visible_B, tf.int32)
        taken = _Taken(
            taken.places.write(step, best_B1[:, 0]),
            taken.scores.write(step, tf.reduce_max(scores_BN, axis=1)),
            taken.is_visible.write(step, is_visible_B),
        )
        same_class_BN = tf.gather(pairs.class_indices_BN, best_B1, batch_dims=1) == pairs.class_indices_BN
        num_of_class_BN += tf.cast(same_class_BN & is_open_B[:, tf.newaxis], tf.int32)
        iou_BN = pairwise_iou(tf.gather(pairs.boxes_yxyx_BN4, best_B1, batch_dims=1), pairs.boxes_yxyx_BN4)[:, 0]
        lowered_BN = scores_BN * tf.exp(-0.5 / config.soft_nms_sigma * tf.square(iou_BN))
        scores_BN = tf.where(same_class_BN, lowered_BN, scores_BN)
        is_dead_BN = (num_of_class_BN >= config.max_detections_per_class) | (tf.range(num_pairs) == best_B1)
        return step + 1, tf.where(is_dead_BN, _DEAD, scores_BN), num_of_class_BN, num_visible_B, taken

    nothing = _Taken(
        *(
            tf.TensorArray(kind, size=0, dynamic_size=True, element_shape=[None])
            for kind in (tf.int32, tf.float32, tf.bool)
        )
    )
    none_BN = tf.zeros_like(pairs.class_indices_BN)

    def is_unfinished(
        step: tf.Tensor, scores_BN: tf.Tensor, num_of_class_BN: tf.Tensor, num_visible_B: tf.Tensor, taken: _Taken
    ) -> tf.Tensor:
        # The first step is always taken: an empty array with an unknown batch size cannot be stacked.
        return (step == 0) | tf.reduce_any(is_open(scores_BN, num_visible_B))

    *_, taken = tf.while_loop(
        is_unfinished,
        take_best,
        (tf.constant(0), pairs.scores_BN, none_BN, none_BN[:, 0], nothing),
    )
    return _report(config, pairs, *(tf.transpose(part.stack()) for part in taken))


def _report(
    config: BatchNonMaxSuppression,
    pairs: _Pairs,
    places_BS: tf.Tensor,
    scores_BS: tf.Tensor,
    is_visible_BS: tf.Tensor,
) -> Selection:
    """Return the first `max_total_detections` visible pairs."""
    most = config.max_total_detections
    missing = tf.maximum(most - tf.shape(places_BS)[1], 0)
    places_BS, scores_BS, is_visible_BS = (
        tf.pad(part, [[0, 0], [0, missing]]) for part in (places_BS, scores_BS, is_visible_BS)
    )
    visible_first_BM = tf.argsort(tf.cast(~is_visible_BS, tf.int32), axis=1, stable=True)[:, :most]
    is_visible_BM = tf.gather(is_visible_BS, visible_first_BM, batch_dims=1)
    places_BM = tf.gather(places_BS, visible_first_BM, batch_dims=1)

    def rows(values_BN: tf.Tensor, places_BM: tf.Tensor) -> tf.Tensor:
        values_BM = tf.gather(values_BN, places_BM, batch_dims=1)
        return tf.ensure_shape(tf.where(is_visible_BM, values_BM, tf.zeros_like(values_BM)), [None, most])

    return Selection(
        rows(pairs.box_indices_BN, places_BM),
        rows(pairs.class_indices_BN, places_BM),
        rows(scores_BS, visible_first_BM),
        tf.reduce_sum(tf.cast(is_visible_BM, tf.int32), axis=1),
    )
