"""Every generated run file ends with a decision, or is refused before training.

`DETLOOM_GENERATED_SEED` repeats the runs from a seed; without it, the seed changes every day.
"""

import datetime
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # tests are not a package

import bases
import run_file_generator as generator
import run_generated

SEED_VARIABLE = "DETLOOM_GENERATED_SEED"
LOG_VARIABLE = "DETLOOM_GENERATED_LOG"
FIRST_SEED = int(os.environ.get(SEED_VARIABLE, 1000 * datetime.date.today().toordinal()))
NUM_DAILY, NUM_DAILY_WITH_SHAPES = 6, 3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_generated.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.slow
@pytest.mark.parametrize("index", range(NUM_DAILY))
def test_a_generated_run_file_runs_to_the_end_or_is_refused(index, inputs):
    check_outcome(FIRST_SEED + index, bases.OF_BOXES, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(NUM_DAILY_WITH_SHAPES))
def test_a_generated_run_file_with_masks_or_keypoints_runs_to_the_end_or_is_refused(index, inputs):
    check_outcome(FIRST_SEED + index, bases.OF_SHAPES, inputs)


def check_outcome(seed, detectors, inputs):
    plain = run_generated.generated(seed, inputs, detectors)
    outcome = run_generated.run_in_process(f"{SEED_VARIABLE}={seed}", plain)
    assert outcome.result != "failed", f"{outcome.name}: {outcome.error}\n{outcome.settings}"


@pytest.fixture
def run_all(tmp_path):
    """Return a function that runs all files, and returns the number of outcomes and the failed ones.

    With `DETLOOM_GENERATED_LOG`, a later call goes on where this one was interrupted.
    """
    log = Path(os.environ.get(LOG_VARIABLE, tmp_path / "outcomes.jsonl"))

    def call(files):
        outcomes = list(run_generated.run_all(files, log))
        return len(outcomes), [outcome for outcome in outcomes if outcome.result == "failed"]

    return call


@pytest.mark.nightly
@pytest.mark.timeout(24 * 3600)
def test_random_run_files_run_to_the_end_or_are_refused(inputs, run_all):
    seeds = range(run_generated.NUM_SEEDS)
    assert run_all(run_generated.random_files(seeds, inputs)) == (len(seeds), [])


@pytest.mark.nightly
@pytest.mark.timeout(24 * 3600)
def test_random_run_files_with_masks_or_keypoints_run_to_the_end_or_are_refused(inputs, run_all):
    seeds = range(run_generated.NUM_SEEDS_WITH_SHAPES)
    assert run_all(run_generated.files_with_shapes(seeds, inputs)) == (len(seeds), [])


@pytest.mark.nightly
@pytest.mark.timeout(24 * 3600)
def test_run_files_with_all_pairs_of_options_run_to_the_end_or_are_refused(inputs, run_all):
    """Pairs that are in the random files need no further file."""
    cover = run_generated.cover_besides_random_files(inputs)
    print(cover.num_options, cover.num_pairs, cover.num_excluded)
    random = [plain for _, plain in run_generated.all_random_files(inputs)]
    reached = {name for plain in [*random, *cover.files] for name, *_ in generator.walk(generator.RunFile, plain)}
    assert reached == generator.all_settings()
    files = [(f"pairs {number}", plain) for number, plain in enumerate(cover.files)]
    assert run_all(files) == (len(files), [])
