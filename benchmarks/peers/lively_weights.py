"""Weights and pictures made from names alone, so that a reference and a test hold the same ones with nothing stored.

Runs under Python 3.9 with NumPy 1.23 (the peer) and under ours: plain NumPy, and of its random numbers only
`RandomState.random_sample`, whose stream is frozen for good.
"""

from __future__ import annotations  # Python 3.9

import math
import zlib

import numpy as np

CLASS_BIAS = -4.6  # a probability of 0.01, as after training: focal losses and top scores stay in their usual range
SCALE_STEPS = 16
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def variable_name(key: str) -> str:
    """The last part of a checkpoint key's object path: `kernel`, `gamma`, ..."""
    return key[: -len(_SUFFIX)].rsplit("/", 1)[-1] if key.endswith(_SUFFIX) else key.rsplit("/", 1)[-1]


def batch_norm_key(key: str) -> str:
    """What the variables of one batch norm have in common."""
    return key[: -len(_SUFFIX)].rsplit("/", 1)[0]


def lively_value(key: str, shape: tuple[int, ...], input_scales: dict[str, int] | None = None) -> np.ndarray:
    """float32 values for the variable that a checkpoint holds under `key`.

    `input_scales` says by `batch_norm_key` how large (root mean square, as a power of two, in steps of `SCALE_STEPS` an
    octave) the inputs of a batch norm are: with it, inference mode neither grows nor dies through a deep network.
    """
    uniform = np.random.RandomState(zlib.crc32(key.encode())).random_sample(shape)
    scale = 2.0 ** ((input_scales or {}).get(batch_norm_key(key), 0) / SCALE_STEPS)
    name = variable_name(key)
    if name == "depthwise_kernel":
        value = (2 * uniform - 1) * math.sqrt(6 / (shape[0] * shape[1]))
    elif name in ("kernel", "pointwise_kernel"):
        # He et al. 2015; what the heads read out needs no room for a ReLU.
        gain = 3 if "prediction_head" in key else 6
        value = (2 * uniform - 1) * math.sqrt(gain / max(1, math.prod(shape[:-1])))
    elif name == "bias":
        value = 0.2 * (uniform - 0.5) + (CLASS_BIAS if "class" in key or "object_center" in key else 0)
    elif name == "moving_mean":
        value = scale * (uniform - 0.5)
    elif name == "moving_variance":
        value = 1.2 * scale * scale * (0.5 + uniform)  # 1.2: what gamma and the mean add to the variance
    elif name == "beta":
        value = 0.5 * (uniform - 0.5)
    else:  # gamma, bifpn_combine_weights
        value = 0.5 + uniform
    return np.asarray(value, np.float32)


def lively_pictures(num_pictures: int, height: int, width: int) -> np.ndarray:
    """uint8 [B, H, W, 3]: waves, rectangles and noise, so that resizing, borders and textures all matter."""
    random = np.random.RandomState(num_pictures * 1_000_003 + height * 1_009 + width)
    rows, columns = np.mgrid[0:height, 0:width]
    pictures = np.empty((num_pictures, height, width, 3), np.uint8)
    for picture in pictures:
        for channel in range(3):
            cycles_y, cycles_x, phase = random.random_sample(3) * (6, 6, 2 * math.pi)
            waves = np.sin(2 * math.pi * (cycles_y * rows / height + cycles_x * columns / width) + phase)
            picture[..., channel] = np.round(110 + 80 * waves + 60 * (random.random_sample((height, width)) - 0.5))
        for _ in range(6):
            top, left, rows_share, columns_share, *color = random.random_sample(7)
            below, right = int((top + 0.4 * rows_share) * height) + 2, int((left + 0.4 * columns_share) * width) + 2
            picture[int(top * height) : below, int(left * width) : right] = np.asarray(color) * 255
    return pictures
