"""Random choice of the anchors, or proposals, of each image that count in the losses (arXiv:1506.01497, 3.1.3)."""

import tensorflow as tf


def sample_balanced(
    is_candidate_BN: tf.Tensor,
    is_positive_BN: tf.Tensor,
    random_BN: tf.Tensor,
    *,
    batch_size: int,
    positive_fraction: float,
) -> tf.Tensor:
    """Choose up to `batch_size` candidates of each image at random, bool [B, N].

    At most the share `positive_fraction` of `batch_size` is positive; negatives fill the rest as far as there are any.

    Args:
        random_BN: random numbers from 0 to 1; the candidates with the largest ones are chosen.
    """
    num_positives = int(positive_fraction * batch_size)
    chosen_BN = _largest(tf.where(is_candidate_BN & is_positive_BN, random_BN, -1.0), num_positives)
    num_missing_B = batch_size - tf.math.count_nonzero(chosen_BN, axis=1, dtype=tf.int32)
    negatives_BN = tf.where(is_candidate_BN & ~is_positive_BN, random_BN, -1.0)
    return chosen_BN | _largest(negatives_BN, batch_size, num_missing_B)


def _largest(values_BN: tf.Tensor, most: int, count_B: tf.Tensor | None = None) -> tf.Tensor:
    """Return bool [B, N]: the `count_B`, at most `most`, largest values of each image that are not negative."""
    most = min(most, values_BN.shape[1])
    if most == 0:
        return tf.zeros_like(values_BN, tf.bool)
    found_BM, places_BM = tf.math.top_k(values_BN, most)
    is_chosen_BM = found_BM >= 0
    if count_B is not None:
        is_chosen_BM &= tf.range(most) < count_B[:, tf.newaxis]
    images_BM = tf.broadcast_to(tf.range(tf.shape(values_BN)[0])[:, tf.newaxis], tf.shape(places_BM))
    indices_BM2 = tf.stack([images_BM, places_BM], axis=-1)
    return tf.scatter_nd(indices_BM2, tf.cast(is_chosen_BM, tf.int32), tf.shape(values_BN)) > 0


def take_first(is_chosen_BN: tf.Tensor, most: int, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Move the chosen rows of each image to the front, in order.

    Args:
        most: number of returned rows; must not exceed N.
        values: tensors [B, N, ...].

    Returns:
        The number of chosen rows, int32 [B], at most `most`, and the values [B, most, ...], 0 after the chosen rows.
    """
    order_BM = tf.argsort(tf.cast(~is_chosen_BN, tf.int32), axis=1, stable=True)[:, :most]
    num_chosen_B = tf.minimum(tf.math.count_nonzero(is_chosen_BN, axis=1, dtype=tf.int32), most)
    is_row_BM = tf.range(most) < num_chosen_B[:, tf.newaxis]
    rows = []
    for value in values:
        taken = tf.gather(value, order_BM, batch_dims=1)
        mask = tf.reshape(is_row_BM, [*tf.unstack(tf.shape(is_row_BM)), *[1] * (len(value.shape) - 2)])
        rows.append(tf.where(mask, taken, tf.zeros_like(taken)))
    return num_chosen_B, *rows
