"""Mosaic and MixUp of the images of a training batch, which are already resized and padded.

Both only average and move pixels, so that it does not matter whether colors are normalized before or afterwards.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import BOXES, CLASSES, COLUMNS, IMAGE, NUM_DROPPED, SHARES, TRUE_HW
from detloom.schemas.model.augmentations import Augmentation, Mixing, MixUp, Mosaic
from detloom.trainer_module.boxes import geometry as boxes

Batch = dict[str, tf.Tensor]

_MIN_SIDE_PX = 2.0  # boxes with less left are dropped, as in the mosaic of YOLOv5


def mixings_of(augmentations: Sequence[Augmentation]) -> tuple[Mixing, ...]:
    """Return the augmentations that mix images of a batch."""
    return tuple(augmentation for augmentation in augmentations if isinstance(augmentation, Mosaic | MixUp))


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def mix_batch(mixings: Sequence[Mixing], batch: Batch, seed: tf.Tensor, *, is_on: tf.Tensor | bool) -> Batch:
    """Mix each image with others of the batch; a batch of one image is returned unchanged.

    Args:
        batch: with the keys of `build_train_dataset`; other entries are returned unchanged.
        is_on: bool []; if False, the batch is returned unchanged.

    Returns:
        A batch with the same keys and shapes, and with `image_shares` if one of the mixings is MixUp. If there are more
        than G boxes, the largest are kept and the others are added to `num_dropped`. Boxes of mixed images are in
        descending order of area.
    """
    if not mixings or batch[IMAGE].shape[0] == 1:
        return batch
    if any(isinstance(mixing, MixUp) for mixing in mixings):
        batch = {**batch, SHARES: tf.where(batch[CLASSES] >= 0, 1.0, 0.0)}

    def mixed() -> Batch:
        changed = batch
        for i, mixing in enumerate(mixings):
            its_seed = tf.random.experimental.stateless_fold_in(seed, i)
            match mixing:
                case Mosaic():
                    changed = _with_mosaics(mixing, changed, its_seed)
                case MixUp():
                    changed = _mixed_up(mixing, changed, its_seed)
        return changed

    is_on = tf.convert_to_tensor(is_on) & (tf.shape(batch[IMAGE])[0] > 1)
    return tf.cond(is_on, mixed, lambda: {name: tf.identity(value) for name, value in batch.items()})


def partners(batch_size: tf.Tensor, num_partners: int, seed: tf.Tensor) -> tf.Tensor:
    """Draw other images for every image, int32 [B, num_partners]; a small batch repeats images, or the image itself."""
    order = tf.argsort(tf.random.stateless_uniform([batch_size], seed))
    ahead = tf.range(1, num_partners + 1)
    return tf.gather(order, (tf.argsort(order)[:, tf.newaxis] + ahead) % batch_size)


def _mixed_up(config: MixUp, batch: Batch, seed: tf.Tensor) -> Batch:
    images, num_images = batch[IMAGE], tf.shape(batch[IMAGE])[0]
    seeds = tf.random.experimental.stateless_split(seed, 4)
    others = partners(num_images, 1, seeds[0])[:, 0]
    first, second = (
        tf.random.stateless_gamma([num_images], its_seed, config.alpha) for its_seed in (seeds[1], seeds[2])
    )
    is_drawn = tf.random.stateless_uniform([num_images], seeds[3]) < config.probability
    share_B = tf.where(is_drawn, tf.math.divide_no_nan(first, first + second), 1.0)
    image_share = share_B[:, tf.newaxis, tf.newaxis, tf.newaxis]
    true_hw = tf.where(is_drawn[:, tf.newaxis], tf.gather(batch[TRUE_HW], others), batch[TRUE_HW])
    both = {name: tf.concat([batch[name], tf.gather(batch[name], others)], axis=1) for name in _columns(batch)}
    num_boxes = tf.shape(batch[CLASSES])[1]
    shares_BG = tf.repeat(tf.stack([share_B, 1.0 - share_B], axis=1), num_boxes, axis=1)
    both[SHARES] *= shares_BG
    changed = {
        **batch,
        IMAGE: images * image_share + tf.gather(images, others) * (1.0 - image_share),
        TRUE_HW: tf.maximum(batch[TRUE_HW], true_hw),
    }
    return _with_largest(changed, both, (both[CLASSES] >= 0) & (shares_BG > 0.0))


class _Quarters(NamedTuple):
    """Content of the four quarters of each mosaic, int32 pixels: upper left, upper right, lower left, lower right.

    Attributes:
        sources_B4: index in the batch of the image that is shown.
        begin_yx_B42: begin of its window.
        window_hw_B42: sides of the window.
        offset_yx_B42: begin of the quarter.
        quarter_hw_B42: sides of the quarter.
    """

    sources_B4: tf.Tensor
    begin_yx_B42: tf.Tensor
    window_hw_B42: tf.Tensor
    offset_yx_B42: tf.Tensor
    quarter_hw_B42: tf.Tensor


def _with_mosaics(config: Mosaic, batch: Batch, seed: tf.Tensor) -> Batch:
    seeds = tf.random.experimental.stateless_split(seed, 2)
    num_images, canvas_hw = tf.shape(batch[IMAGE])[0], tf.shape(batch[IMAGE])[1:3]
    is_drawn_B = tf.random.stateless_uniform([num_images], seeds[0]) < config.probability
    quarters = _draw_quarters(config, batch[TRUE_HW], canvas_hw, seeds[1])
    moved, is_kept = _in_quarters(config, batch, quarters, canvas_hw)
    unmixed = {name: tf.pad(batch[name], _three_times_padding(batch[name])) for name in _columns(batch)}
    unmixed_kept = tf.pad(batch[CLASSES] >= 0, _three_times_padding(batch[CLASSES]))
    candidates = {
        name: tf.where(tf.reshape(is_drawn_B, [-1] + [1] * (len(moved[name].shape) - 1)), moved[name], unmixed[name])
        for name in _columns(batch)
    }
    changed = {
        **batch,
        IMAGE: _mosaic_images(batch[IMAGE], quarters, is_drawn_B),
        TRUE_HW: tf.where(is_drawn_B[:, tf.newaxis], canvas_hw, batch[TRUE_HW]),
    }
    return _with_largest(changed, candidates, tf.where(is_drawn_B[:, tf.newaxis], is_kept, unmixed_kept))


def _three_times_padding(column_BG: tf.Tensor) -> list[list[int | tf.Tensor]]:
    """Return paddings to the number of box rows of four images."""
    return [[0, 0], [0, 3 * tf.shape(column_BG)[1]]] + [[0, 0]] * (len(column_BG.shape) - 2)


def _draw_quarters(config: Mosaic, true_hw_B2: tf.Tensor, canvas_hw: tf.Tensor, seed: tf.Tensor) -> _Quarters:
    seeds, num_images = tf.random.experimental.stateless_split(seed, 4), tf.shape(true_hw_B2)[0]
    sources = tf.concat([tf.range(num_images)[:, tf.newaxis], partners(num_images, 3, seeds[0])], axis=1)
    center_share = tf.random.stateless_uniform([num_images, 2], seeds[1], config.min_center, config.max_center)
    center_yx = tf.cast(tf.round(center_share * tf.cast(canvas_hw, tf.float32)), tf.int32)
    center_yx = tf.clip_by_value(center_yx, 1, canvas_hw - 1)
    is_second = tf.constant([[0, 0], [0, 1], [1, 0], [1, 1]])  # below, to the right
    offset_yx = center_yx[:, tf.newaxis] * is_second
    quarter_hw = tf.where(is_second > 0, (canvas_hw - center_yx)[:, tf.newaxis], center_yx[:, tf.newaxis])
    source_hw = tf.gather(true_hw_B2, sources)
    filling = tf.cast(quarter_hw, tf.float32) / tf.cast(source_hw, tf.float32)
    scale = tf.random.stateless_uniform([num_images, 4], seeds[2], config.min_scale, config.max_scale)
    scale = tf.maximum(scale, tf.reduce_max(filling, axis=-1))[..., tf.newaxis]
    window_hw = tf.cast(tf.round(tf.cast(quarter_hw, tf.float32) / scale), tf.int32)
    window_hw = tf.clip_by_value(window_hw, 1, source_hw)
    draw = tf.random.stateless_uniform([num_images, 4, 2], seeds[3])
    begin_yx = tf.cast(draw * tf.cast(source_hw - window_hw + 1, tf.float32), tf.int32)
    return _Quarters(sources, tf.minimum(begin_yx, source_hw - window_hw), window_hw, offset_yx, quarter_hw)


def _mosaic_images(images_BHW3: tf.Tensor, quarters: _Quarters, is_drawn_B: tf.Tensor) -> tf.Tensor:
    def quarter(i: tf.Tensor, k: int) -> tf.Tensor:
        begin, size = quarters.begin_yx_B42[i, k], quarters.window_hw_B42[i, k]
        end = begin + size
        window = images_BHW3[quarters.sources_B4[i, k], begin[0] : end[0], begin[1] : end[1]]
        return tf.image.resize(window, quarters.quarter_hw_B42[i, k])

    def mosaic(i: tf.Tensor) -> tf.Tensor:
        rows = [tf.concat([quarter(i, k), quarter(i, k + 1)], axis=1) for k in (0, 2)]
        return tf.ensure_shape(tf.concat(rows, axis=0), images_BHW3.shape[1:])

    def image(i: tf.Tensor) -> tf.Tensor:
        return tf.cond(is_drawn_B[i], lambda: mosaic(i), lambda: images_BHW3[i])

    signature = tf.TensorSpec(images_BHW3.shape[1:], images_BHW3.dtype)
    return tf.map_fn(image, tf.range(tf.shape(images_BHW3)[0]), fn_output_signature=signature)


def _in_quarters(
    config: Mosaic, batch: Batch, quarters: _Quarters, canvas_hw: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return the ground truth of four images, [B, 4 * G], and which of the boxes are visible."""
    canvas = tf.tile(tf.cast(canvas_hw, tf.float32), [2])
    begin, window, offset, size = (
        tf.tile(tf.cast(lengths_B42, tf.float32), [1, 1, 2])[:, :, tf.newaxis]
        for lengths_B42 in (
            quarters.begin_yx_B42,
            quarters.window_hw_B42,
            quarters.offset_yx_B42,
            quarters.quarter_hw_B42,
        )
    )
    columns = {name: tf.gather(batch[name], quarters.sources_B4) for name in _columns(batch)}  # [B, 4, G, ...]
    moved_px = (columns[BOXES] * canvas - begin) / window * size
    seen_px = tf.clip_by_value(moved_px, 0.0, size)
    share = tf.math.divide_no_nan(boxes.area(seen_px), boxes.area(moved_px))
    shorter_side = tf.reduce_min(seen_px[..., 2:] - seen_px[..., :2], axis=-1)
    is_kept = (columns[CLASSES] >= 0) & (share >= config.overlap_thresh) & (shorter_side >= _MIN_SIDE_PX)
    columns[BOXES] = (seen_px + offset) / canvas
    num_images, num_places = tf.shape(is_kept)[0], 4 * tf.shape(is_kept)[2]
    flat = {
        name: tf.reshape(value, tf.concat([[num_images, num_places], tf.shape(value)[3:]], axis=0))
        for name, value in columns.items()
    }
    return flat, tf.reshape(is_kept, [num_images, num_places])


def _with_largest(batch: Batch, candidates: dict[str, tf.Tensor], is_kept: tf.Tensor) -> Batch:
    """Return the batch with the largest boxes of the candidates, at most G per image."""
    max_boxes = tf.shape(batch[CLASSES])[1]
    areas = tf.where(is_kept, boxes.area(candidates[BOXES]), -1.0)
    largest = tf.argsort(areas, axis=1, direction="DESCENDING", stable=True)[:, :max_boxes]
    is_box_BG = tf.gather(is_kept, largest, batch_dims=1)
    columns = {}
    for name, value in candidates.items():
        kept = tf.gather(value, largest, batch_dims=1)
        is_box = tf.reshape(is_box_BG, [*tf.unstack(tf.shape(is_box_BG)), *[1] * (len(kept.shape) - 2)])
        padding = tf.cast(COLUMNS[name].padding, kept.dtype)
        columns[name] = tf.ensure_shape(tf.where(is_box, kept, padding), batch[name].shape)
    num_too_many = tf.maximum(tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1) - max_boxes, 0)
    return {**batch, **columns, NUM_DROPPED: batch[NUM_DROPPED] + num_too_many}


def _columns(batch: Batch) -> list[str]:
    names = [name for name in batch if name in COLUMNS]
    unsupported = [name for name in names if COLUMNS[name].geometry in ("masks", "points")]
    assert not unsupported, f"Mosaic and MixUp do not move {unsupported}"
    return names
