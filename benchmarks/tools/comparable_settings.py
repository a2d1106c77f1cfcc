"""Settings with which the Object Detection API's loop and ours can be compared."""

import json
import re
from dataclasses import replace

from detloom.schemas.model.optimizers import CosineDecayLearningRate, Optimizer

_EXTENSION = re.compile(r"\[detloom\.overrides\] \{\n(?P<settings>(?:  set: .*\n)*)\}\n\Z")


def with_length(optimizer: Optimizer, num_steps: int) -> Optimizer:
    """Return an optimizer whose schedule ends at another step, with a proportional warm-up."""
    rate = optimizer.learning_rate
    assert isinstance(rate, CosineDecayLearningRate), rate
    warmup_steps = max(1, round(rate.warmup_steps * num_steps / rate.total_steps))
    return replace(optimizer, learning_rate=replace(rate, total_steps=num_steps, warmup_steps=warmup_steps))


def split_extension(text: str) -> tuple[str, list[str]]:
    """Return the part that the Object Detection API reads, and the settings in our extension at the end."""
    found = _EXTENSION.search(text)
    if not found:
        return text, []
    lines = found["settings"].splitlines()
    return text[: found.start()], [json.loads(line.strip().removeprefix("set: ")) for line in lines]
