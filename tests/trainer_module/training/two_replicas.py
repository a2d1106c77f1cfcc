"""Train on two logical devices; `device_process.py` runs this script.

ARGUMENTS: CONFIG.json RESULT.npz
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from training_parts import make_batches, make_steps, weights_of

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm


def train(config: TrainEvalConfig, strategy: tf.distribute.Strategy, **settings: Any) -> dict[str, np.ndarray]:
    """Run three steps with other `train` settings and return everything they changed."""
    steps, iterator = make_steps(replace(config, train=replace(config.train, **settings)), strategy)
    result = steps.run(iterator, 3)
    with steps.averaged_weights.in_network():
        averaged = weights_of(steps)
    return {
        "weights": np.concatenate([value.ravel() for value in weights_of(steps)]),
        "averaged": np.concatenate([value.ravel() for value in averaged]),
        "numbers": np.array(list(result.numbers.values())),
        "counts": np.array([int(steps.optimizer.iterations.numpy()), int(steps.num_boxes_dropped.numpy())]),
        "copies_differ": np.array(
            max(
                np.abs(first.numpy() - other.numpy()).max()
                for variable in steps.detector.network.weights
                for first, *others in [strategy.experimental_local_results(variable.value)]
                for other in others or [first]
            )
        ),
    }


def drop(config: TrainEvalConfig, strategy: tf.distribute.Strategy) -> dict[str, np.ndarray]:
    """Run a step with dropout, in which each replica gets the same two images; return the loss and the seeds."""
    copies = strategy.num_replicas_in_sync
    predictor = replace(config.model.box_predictor, use_dropout=True, dropout_keep_probability=0.5)
    batches = {name: np.concatenate([rows[:, :2]] * copies, axis=1) for name, rows in make_batches(config).items()}
    config = replace(
        config,
        model=replace(config.model, box_predictor=predictor),
        train=replace(config.train, batch_size=2 * copies),
    )
    steps, iterator = make_steps(config, strategy, batches)
    loss = steps.run(iterator, 1).numbers["loss"]
    seeds = [seed for name, seed in steps.state.items() if name.startswith("seed_")]
    local = [np.stack([each.numpy() for each in strategy.experimental_local_results(seed)]) for seed in seeds]
    return {"loss": np.array(loss), "seeds": np.stack(local, axis=1)}


def normalize(strategy: tf.distribute.Strategy) -> dict[str, np.ndarray]:
    """Apply synchronized batch norm to inputs far from 0; return output, gradients and moving statistics.

    The statistics are those with the unbiased variance, and those with the variance of the batch.
    """
    inputs = np.random.default_rng(0).normal(100, 1, (4, 3, 5, 2)).astype(np.float32)
    with strategy.scope():
        layer = FusedBatchNorm(synchronized=True, momentum=0.5)
        biased = FusedBatchNorm(synchronized=True, momentum=0.5, unbiased_variance=False)
        layer.build([None, 3, 5, 2])
        biased.build([None, 3, 5, 2])
    layer.gamma.assign([2.0, 3.0])

    def forward_and_backward(rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        variables = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            output = layer(rows, training=True)
            loss = tf.reduce_sum(output**3)
        by_rows, *by_variables = tape.gradient(loss, [rows, *variables])
        biased(rows, training=True)
        context = tf.distribute.get_replica_context()
        return output, by_rows, *context.all_reduce("SUM", by_variables)

    def value(context: tf.distribute.ReplicaContext) -> tf.Tensor:
        size = 4 // context.num_replicas_in_sync
        first = context.replica_id_in_sync_group * size
        return tf.constant(inputs[first : first + size])

    rows = strategy.experimental_distribute_values_from_function(value)
    run = tf.function(lambda: strategy.run(forward_and_backward, args=(rows,)))
    output, by_rows, *by_variables = run()
    local = strategy.experimental_local_results
    return {
        "output": np.concatenate(local(output)),
        "by_inputs": np.concatenate(local(by_rows)),
        "by_variables": np.stack([local(each)[0] for each in by_variables]),
        "statistics": np.stack(
            [each.numpy() for one in (layer, biased) for each in (one.moving_mean, one.moving_variance)]
        ),
    }


def main() -> None:
    keras.utils.set_random_seed(0)
    config = from_json(TrainEvalConfig, Path(sys.argv[1]).read_text(encoding="utf-8"))
    one, two = tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    results = {
        "one": train(config, one),
        "two": train(config, two),
        "two_in_parts": train(config, two, gradient_accumulation_steps=2),
        "two_compiled": train(config, two, jit_compile=True, debug=False),
        "drop_one": drop(config, one),
        "drop_two": drop(config, two),
        "norm_one": normalize(one),
        "norm_two": normalize(two),
    }
    np.savez(
        sys.argv[2], **{f"{run}.{name}": value for run, values in results.items() for name, value in values.items()}
    )


main()
