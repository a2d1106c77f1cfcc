"""Test the measurement of the step time."""

import time
from dataclasses import replace

from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.training.step_time import NUM_CALLS, STEPS_PER_CALL, measure_step_seconds


def test_the_time_of_a_step_excludes_compilation():
    config = find_preset("ssd_mobilenet_v2_320x320").config
    model = replace(config.model, image_resizer=replace(config.model.image_resizer, height=64, width=64))
    config = replace(config, model=model, train=replace(config.train, batch_size=1))
    started = time.perf_counter()
    seconds = measure_step_seconds(config, ["cat"], (64, 64))
    total = time.perf_counter() - started
    assert 0 < seconds * NUM_CALLS * STEPS_PER_CALL < 0.7 * total  # building and compiling take most of it
