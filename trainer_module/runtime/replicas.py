"""Sums over the replicas of a strategy."""

from typing import TypeVar

import tensorflow as tf

_Tensors = TypeVar("_Tensors")  # a tensor, or a list of them


def num_replicas() -> int:
    """Return the number of replicas in sync; 1 outside of a replica context."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def sum_over_replicas(tensors: _Tensors) -> _Tensors:
    """Sum over the replicas, for each replica; the gradient is also summed. With one replica, return the argument.

    Do not call it in a branch or a loop of a graph: replicas synchronize there only under XLA.
    """
    if num_replicas() == 1:
        return tensors
    summed: _Tensors = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)
    return summed


def gather_from_replicas(tensor: tf.Tensor) -> tf.Tensor:
    """Return the values of all replicas, [number of replicas, ...], on every replica; see `sum_over_replicas`."""
    if num_replicas() == 1:
        return tensor[tf.newaxis]
    row = tf.one_hot(tf.distribute.get_replica_context().replica_id_in_sync_group, num_replicas(), dtype=tensor.dtype)
    return sum_over_replicas(tf.tensordot(row, tensor, axes=0))
