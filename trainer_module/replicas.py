"""What is summed over the replicas of a strategy."""

from typing import TypeVar

import tensorflow as tf

_Tensors = TypeVar("_Tensors")  # a tensor, or a list of them


def num_replicas() -> int:
    """Of the replicas that do the same at the same time; 1 where this is not called on a replica."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def sum_over_replicas(tensors: _Tensors) -> _Tensors:
    """The sums, on every replica; its gradient is the sum too. Where there is one replica, what was given.

    Not inside a branch or a loop of a graph: replicas wait for one another there only under XLA.
    """
    if num_replicas() == 1:
        return tensors
    summed: _Tensors = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)
    return summed


def gather_from_replicas(tensor: tf.Tensor) -> tf.Tensor:
    """What each replica has, [number of replicas, ...], on every replica; see `sum_over_replicas`."""
    if num_replicas() == 1:
        return tensor[tf.newaxis]
    row = tf.one_hot(tf.distribute.get_replica_context().replica_id_in_sync_group, num_replicas(), dtype=tensor.dtype)
    return sum_over_replicas(tf.tensordot(row, tensor, axes=0))
