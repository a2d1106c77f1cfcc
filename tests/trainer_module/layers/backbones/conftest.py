"""Weights and an image that any program can make again, so that few numbers say what a reference's network gave."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import keras
import numpy as np
import pytest


def _noise(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values between 0 and 1 that depend only on the name."""
    steps = np.arange(np.prod(shape)) + crc32(name.encode()) % 1000
    return (np.sin(steps * 12.9898) * 43758.5453 % 1).reshape(shape)


def _made_value(layer: str, variable: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = _noise(f"{layer}/{variable}", shape)
    match variable:
        case "gamma" | "moving_variance":
            return 0.5 + noise
        case "beta" | "moving_mean":
            return 0.2 * noise - 0.1
    fan_in = shape[0] * shape[1] * (1 if variable == "depthwise_kernel" else shape[2])
    return (2 * noise - 1) * np.sqrt(6 / fan_in)  # He's variance


@pytest.fixture(scope="session")
def corner_means() -> Callable[..., dict[int, list[float]]]:
    """Return, by level, the mean over the channels in the first and the last cell, with synthetic weights and image."""

    def run(network: keras.Model, *, training: bool) -> dict[int, list[float]]:
        for layer in network.layers:
            for variable in layer.weights:
                depthwise = isinstance(layer, keras.layers.DepthwiseConv2D) and variable.name == "kernel"
                name = "depthwise_kernel" if depthwise else variable.name
                variable.assign(_made_value(layer.name, name, tuple(variable.shape)))
        image = 2 * _noise("image", (2, *network.input_shape[1:])) - 1
        features: dict[int, Any] = network(image.astype(np.float32), training=training)
        return {
            level: [float(feature[0, 0, 0].numpy().mean()), float(feature[1, -1, -1].numpy().mean())]
            for level, feature in features.items()
        }

    return run
