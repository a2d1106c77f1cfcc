"""Masks of Deep-MAC (arXiv:2104.00613): a deep network applied to the pixels of each box, the same for all classes.

The structure is that of `DeepMACMetaArch` in the Object Detection API. Letters: `B` images, `N` boxes of an image, `s`
rows and columns of a mask, `H W` cells of the maps, `D` and `E` channels of the embeddings of pixels and of objects.
"""

import keras
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.deepmac import DeepMac, MaskNetwork
from detloom.trainer_module.boxes.crops import crop_features, crop_masks
from detloom.trainer_module.detectors.centernet.peaks import at_cells
from detloom.trainer_module.layers.backbones.hourglass import Hourglass, build_hourglasses

_PREFIX = "head_mask_net_"
PROJECTION = f"{_PREFIX}projection"
# Channels by level, as multiples of those of the first convolution, and residual blocks by level.
_LEVELS: dict[MaskNetwork, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "hourglass10": ((2, 2), (1, 1)),
    "hourglass20": ((2, 2, 3), (1, 2, 2)),
    "hourglass32": ((2, 2, 3, 3), (2, 2, 2, 2)),
    "hourglass52": ((2, 2, 3, 3, 3, 4), (2, 2, 2, 2, 2, 4)),
    "hourglass100": ((2, 2, 3, 3, 3, 4), (4, 4, 4, 4, 4, 8)),
}


def mask_hourglass(config: DeepMac) -> Hourglass:
    """Return the settings of the mask network."""
    factors, num_blocks = _LEVELS[config.network_type]
    channels = tuple(config.num_init_channels * factor for factor in factors)
    return Hourglass(config.num_init_channels, channels, num_blocks, is_stem_strided=False, prefix=_PREFIX)


def build_mask_network(config: DeepMac) -> keras.Model:
    """Build the network from embeddings [N, s, s, channels] to float32 logits [N, s, s]."""
    channels = config.pixel_embedding_dim + (2 if config.use_xy else 0)
    channels += config.dim if config.use_instance_embedding else 0
    embeddings = keras.Input((config.mask_size, config.mask_size, channels), name="embeddings")
    features = build_hourglasses(mask_hourglass(config), embeddings)[-1]
    logits = keras.layers.Conv2D(1, 1, name=PROJECTION)(features)
    logits = keras.layers.Reshape((config.mask_size, config.mask_size), dtype=tf.float32)(logits)
    return keras.Model(embeddings, logits, name="mask_network")


def mask_logits(
    config: DeepMac,
    network: keras.Model,
    pixels_BHWD: tf.Tensor,
    objects_BHWE: tf.Tensor,
    boxes_yxyx_rel_BN4: tf.Tensor,
    *,
    training: bool,
) -> tf.Tensor:
    """Return the logits of the mask of each box, [B, N, s, s].

    Args:
        boxes_yxyx_rel_BN4: relative to the network's input; there is no gradient for them.
    """
    side = config.mask_size
    height, width = pixels_BHWD.shape[1:3]
    boxes_yxyx_rel_BN4 = tf.stop_gradient(boxes_yxyx_rel_BN4)
    inputs = [crop_features([pixels_BHWD], boxes_yxyx_rel_BN4, (height, width), side)]
    shape = [*tf.unstack(tf.shape(boxes_yxyx_rel_BN4)[:2]), side, side]  # evaluation pads to any number of boxes
    if config.use_xy:
        steps = tf.linspace(-1.0, 1.0, side)
        yx_SS2 = tf.stack(tf.meshgrid(steps, steps, indexing="ij"), axis=-1)
        inputs.insert(0, tf.cast(tf.broadcast_to(yx_SS2, [*shape, 2]), pixels_BHWD.dtype))
    if config.use_instance_embedding:
        objects_BNE = _at_centers(objects_BHWE, boxes_yxyx_rel_BN4)
        inputs.append(tf.broadcast_to(objects_BNE[:, :, tf.newaxis, tf.newaxis], [*shape, objects_BNE.shape[-1]]))
    inputs_BNssC = tf.concat(inputs, axis=-1)
    logits = network(tf.reshape(inputs_BNssC, [-1, side, side, network.input.shape[-1]]), training=training)
    return tf.ensure_shape(tf.reshape(logits, shape), [None, boxes_yxyx_rel_BN4.shape[1], side, side])


def trained_mask_weights(
    config: DeepMac, label_map: LabelMap, class_indices_BG: tf.Tensor, weights_BG: tf.Tensor
) -> tf.Tensor:
    """Return the weights of the boxes whose masks are trained, 0 for other classes and padding, float32 [B, G]."""
    is_trained_BG = class_indices_BG >= 0
    if config.allowed_masked_classes_ids:
        allowed = [class_id in config.allowed_masked_classes_ids for class_id in label_map.class_ids]
        is_trained_BG &= tf.gather(tf.constant(allowed), tf.maximum(class_indices_BG, 0))
    return weights_BG * tf.cast(is_trained_BG, tf.float32)


def mask_loss(
    logits_BGss: tf.Tensor, masks_BGHW: tf.Tensor, boxes_yxyx_rel_BG4: tf.Tensor, weights_BG: tf.Tensor
) -> tf.Tensor:
    """Return the sum over the boxes of the mean cross-entropy of their cells, a float32 scalar.

    The target of a box is the part of its own mask that it covers.
    """
    side = logits_BGss.shape[2]
    own_BG = tf.broadcast_to(tf.range(tf.shape(weights_BG)[1]), tf.shape(weights_BG))
    target_BGss = crop_masks(masks_BGHW, own_BG, boxes_yxyx_rel_BG4, (side, side))
    loss_BGss = tf.nn.sigmoid_cross_entropy_with_logits(labels=target_BGss, logits=logits_BGss)
    return tf.reduce_sum(tf.reduce_mean(loss_BGss, axis=[2, 3]) * weights_BG)


def check_mask_classes(config: DeepMac, label_map: LabelMap) -> None:
    """Check the ids of the classes whose masks are trained.

    Raises:
        InputError: for an id that the label map lacks.
    """
    unknown = [class_id for class_id in config.allowed_masked_classes_ids if class_id not in label_map.class_ids]
    if unknown:
        raise InputError(
            f"model.deepmac_mask_estimation.allowed_masked_classes_ids: got {unknown[0]}, allowed: ids of the label "
            f"map, such as {label_map.class_ids[0]}; [] trains the masks of all classes."
        )


def _at_centers(objects_BHWE: tf.Tensor, boxes_yxyx_rel_BN4: tf.Tensor) -> tf.Tensor:
    """Return the embedding of the cell at the center of each box, [B, N, E]."""
    height, width = objects_BHWE.shape[1:3]
    low_BN2, high_BN2 = tf.split(boxes_yxyx_rel_BN4, 2, axis=-1)
    cell_BN2 = tf.cast((low_BN2 + high_BN2) / 2 * tf.constant([height, width], tf.float32), tf.int32)
    row_BN, column_BN = tf.unstack(tf.clip_by_value(cell_BN2, 0, tf.constant([height - 1, width - 1])), axis=-1)
    return at_cells(objects_BHWE, row_BN * width + column_BN)
