"""Heads alone, on inputs that stand for a pyramid."""

from collections.abc import Callable

import keras
import pytest

from detloom.schemas.model.detector import Ssd


@pytest.fixture(scope="session")
def on_pyramid() -> Callable[..., keras.Model]:
    """`on_pyramid(build_shared_heads, config, channels=(4, 4))`: offsets, then logits, of 4x4, 2x2, ... pixels."""

    def build(
        build_heads: Callable, config: Ssd, channels: tuple[int, ...], num_class_channels: int = 3
    ) -> keras.Model:
        side = 2 ** (len(channels) - 1)
        inputs = {
            3 + i: keras.Input((side // 2**i, side // 2**i, depth), name=f"level_{3 + i}")
            for i, depth in enumerate(channels)
        }
        offsets, logits = build_heads(config, inputs, num_class_channels)
        return keras.Model(list(inputs.values()), [*offsets, *logits])

    return build
