"""Claim: the fused kernel shortens the network's forward and backward pass compared with Keras 3's own batch norm.

Both networks alternate in one process, so that a noisy machine slows both. Prints a table and writes JSON.

    python benchmarks/fused_batch_norm.py [--rounds 10] [--output fused_batch_norm.json]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.network import Fpn
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.one_stage.network import build_ssd
from detloom.trainer_module.layers import conv_layers
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

BATCH_SIZE = 8


def make_config() -> Ssd:
    """Build the zoo's detector with half the width, a shorter pyramid and shorter heads."""
    model = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config.model
    extractor = replace(
        model.feature_extractor, depth_multiplier=0.5, neck=Fpn(max_level=6, additional_layer_depth=128)
    )
    return replace(
        model,
        feature_extractor=extractor,
        anchor_generator=replace(model.anchor_generator, max_level=6),
        box_predictor=replace(model.box_predictor, depth=64, num_layers_before_predictor=2),
    )


class KerasBatchNorm(keras.layers.BatchNormalization):
    """Build Keras' batch norm with our settings."""

    def __init__(self, *, use_moving_statistics: bool, **settings: Any) -> None:
        assert not use_moving_statistics
        super().__init__(**settings)


def build_pass(batch_norm: type[keras.layers.BatchNormalization]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function that runs one forward and backward pass with this batch norm."""
    conv_layers.FusedBatchNorm = batch_norm
    try:
        network = build_ssd(make_config(), num_classes=3)
    finally:
        conv_layers.FusedBatchNorm = FusedBatchNorm

    @tf.function
    def forward_backward(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = network(images, training=True)
            total = tf.add_n([tf.reduce_sum(output) for output in outputs.values()])
        return tf.linalg.global_norm(tape.gradient(total, network.trainable_variables))

    return forward_backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    images = tf.random.stateless_uniform([BATCH_SIZE, 320, 320, 3], [0, 0], -1, 1)
    kinds = {"keras": KerasBatchNorm, "fused": FusedBatchNorm}
    passes = {name: build_pass(kind) for name, kind in kinds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for round_number in range(arguments.rounds + 1):
        for name, forward_backward in passes.items():
            started = time.perf_counter()
            forward_backward(images).numpy()
            if round_number:  # the first call traces
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["fused"] / medians["keras"]
    for name, median in medians.items():
        print(f"{name:6} {1000 * median:7.0f} ms  ({1000 * min(seconds[name]):.0f} to {1000 * max(seconds[name]):.0f})")
    print(f"fused / keras {ratio:.2f}")
    if arguments.output:
        result = {"median_seconds": medians, "seconds": seconds, "fused_over_keras": ratio}
        arguments.output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
