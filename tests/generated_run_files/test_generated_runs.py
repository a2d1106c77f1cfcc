"""Every generated run file ends with a decision, or is refused before training.

Seeds are fixed on a push. At night they start at `DETLOOM_GENERATED_SEED`, which `make test-nightly` sets to the day. A
failure names the seed that repeats it.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # tests are not a package

import bases
import run_generated

SEED_VARIABLE = "DETLOOM_GENERATED_SEED"
NIGHTLY_SEED = int(os.environ.get(SEED_VARIABLE, 1000))
ON_PUSH = [(0, "boxes"), (1, "boxes"), (0, "shapes")]
AT_NIGHT = [(index, "boxes") for index in range(60)] + [(index, "shapes") for index in range(12)]
DETECTORS = {"boxes": bases.OF_BOXES, "shapes": bases.OF_SHAPES}  # shapes: masks or keypoints


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_generated.write_inputs(tmp_path_factory.mktemp("inputs"))


def check_outcome(seed, kind, inputs):
    plain = run_generated.generated(seed, inputs, DETECTORS[kind])
    outcome = run_generated.run_in_process(f"{SEED_VARIABLE}={seed}, {kind}", plain)
    assert outcome.result != "failed", f"{outcome.name}: {outcome.error}\n{outcome.settings}"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind"), ON_PUSH)
def test_a_generated_run_file_runs_to_the_end_or_is_refused(seed, kind, inputs):
    check_outcome(seed, kind, inputs)


@pytest.mark.nightly
@pytest.mark.parametrize(("index", "kind"), AT_NIGHT)
def test_run_files_of_the_day_run_to_the_end_or_are_refused(index, kind, inputs):
    check_outcome(NIGHTLY_SEED + index, kind, inputs)
