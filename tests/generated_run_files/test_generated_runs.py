"""Every generated run file ends with a decision, or is refused before training.

The seed is fixed on a push. At night, seeds start at `DETLOOM_GENERATED_SEED`, which `make test-nightly` sets to the
day. A failure names the seed that repeats it.
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
AT_NIGHT = [(index, "boxes") for index in range(60)] + [(index, "shapes") for index in range(12)]
DETECTORS = {"boxes": bases.OF_BOXES, "shapes": bases.OF_SHAPES}  # shapes: masks or keypoints


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return bases.write_tiny_data(tmp_path_factory.mktemp("tiny") / "data")


def check_outcome(seed, kind, data, folder):
    plain = run_generated.generated(seed, data, folder, DETECTORS[kind])
    outcome = run_generated.run_in_process(f"{SEED_VARIABLE}={seed}, {kind}", plain)
    assert outcome.result != "failed", f"{outcome.name}: {outcome.error}\n{outcome.settings}"


@pytest.mark.slow
def test_a_generated_run_file_runs_to_the_end_or_is_refused(data, tmp_path):
    check_outcome(1, "boxes", data, tmp_path)  # a run without TensorFlow Lite, which takes minutes


@pytest.mark.nightly
@pytest.mark.parametrize(("index", "kind"), AT_NIGHT)
def test_run_files_of_the_day_run_to_the_end_or_are_refused(index, kind, data, tmp_path):
    check_outcome(NIGHTLY_SEED + index, kind, data, tmp_path)
