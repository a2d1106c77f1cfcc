"""Every generated run file ends with a decision, or is refused before training.

`DETLOOM_GENERATED_SEED` repeats the runs from a seed; without it, the seed changes every day.
"""

import datetime
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # tests are not a package

import pairwise
import run_file_generator as generator
import run_generated

SEED_VARIABLE = "DETLOOM_GENERATED_SEED"
LOG_VARIABLE = "DETLOOM_GENERATED_LOG"
FIRST_SEED = int(os.environ.get(SEED_VARIABLE, 1000 * datetime.date.today().toordinal()))
NUM_DAILY, NUM_RANDOM = 12, 300


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return run_generated.write_inputs(tmp_path_factory.mktemp("inputs"))


def run(name, plain, folder):
    outcome = run_generated.run_plain(name, plain, folder)
    log = os.environ.get(LOG_VARIABLE)
    run_generated.write_outcome(Path(log) if log else folder / "outcome.jsonl", outcome)
    assert outcome.result != "failed", f"{name}: {outcome.error}\n{outcome.settings}"


@pytest.mark.slow
@pytest.mark.parametrize("index", range(NUM_DAILY))
def test_a_generated_run_file_runs_to_the_end_or_is_refused(index, inputs, tmp_path):
    seed = FIRST_SEED + index
    run(f"{SEED_VARIABLE}={seed}", run_generated.generated(seed, inputs), tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(NUM_RANDOM))
def test_random_run_files_run_to_the_end_or_are_refused(seed, inputs, tmp_path):
    run(f"{SEED_VARIABLE}={seed}", run_generated.generated(seed, inputs), tmp_path)


@pytest.mark.proof
@pytest.mark.timeout(24 * 3600)
def test_run_files_with_all_pairs_of_options_run_to_the_end_or_are_refused(inputs, tmp_path):
    cover = pairwise.cover_all_pairs(lambda seed: run_generated.generated(seed, inputs))
    print(cover.num_options, cover.num_pairs, cover.num_excluded)
    for number, plain in enumerate(cover.files):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(f"pairs {number}", plain, folder)
    reached = {name for plain in cover.files for name, *_ in generator.walk(generator.RunFile, plain)}
    assert reached == generator.all_settings()
