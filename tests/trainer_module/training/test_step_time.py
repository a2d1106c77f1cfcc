"""Test the measurement of the step time."""

import time

import pytest

from detloom.trainer_module.training.step_time import NUM_CALLS, STEPS_PER_CALL, measure_step_seconds


@pytest.mark.slow  # compilation
def test_the_time_of_a_step_excludes_compilation(one_level_config):
    started = time.perf_counter()
    seconds = measure_step_seconds(one_level_config, ["cat"], (64, 64))
    total = time.perf_counter() - started
    assert 0 < seconds * NUM_CALLS * STEPS_PER_CALL < 0.7 * total  # building and compiling take most of it
