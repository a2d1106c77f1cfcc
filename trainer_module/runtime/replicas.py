"""Sums over the replicas of a strategy; exchange between its workers."""

from typing import TypeVar

import numpy as np
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


def gather_from_workers(strategy: tf.distribute.Strategy, data: bytes) -> list[bytes]:
    """Return the bytes of all workers on each worker, in the order of their replicas; every worker has to call this."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return [data]
    # Collectives have no kernel for bytes, and crash if no worker has a value: each sends int32, the size first.
    words_N = np.frombuffer(np.int32(len(data)).tobytes() + data + bytes(-len(data) % 4), np.int32)
    is_first = iter([True])  # of this worker's replicas, only the first sends
    values = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(words_N if next(is_first, False) else words_N[:0])
    )
    words_N, messages = np.asarray(strategy.gather(values, axis=0)), []
    while words_N.size:
        size = int(words_N[0])
        end = 1 + -(-size // 4)
        messages.append(words_N[1:end].tobytes()[:size])
        words_N = words_N[end:]
    return messages
