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
import run_file_generator
import run_generated

SEED_VARIABLE = "DETLOOM_GENERATED_SEED"
LOG_VARIABLE = "DETLOOM_GENERATED_LOG"
FIRST_SEED = int(os.environ.get(SEED_VARIABLE, 1000 * datetime.date.today().toordinal()))
NUM_DAILY, NUM_RANDOM = 12, 300
# Further files without a new pair after which the pairs are complete: each file contains thousands of pairs.
_PATIENCE = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return bases.write_tiny_data(tmp_path_factory.mktemp("tiny") / "data")


def run(seed, data, folder):
    print(f"{SEED_VARIABLE}={seed}")
    outcome = run_generated.run_one(seed, data, folder)
    log = os.environ.get(LOG_VARIABLE)
    run_generated.write_outcome(Path(log) if log else folder / "outcome.jsonl", outcome)
    assert outcome.result != "failed", f"{SEED_VARIABLE}={seed}: {outcome.error}\n{' '.join(outcome.overrides)}"


@pytest.mark.proof
@pytest.mark.parametrize("index", range(NUM_DAILY))
def test_a_generated_run_file_runs_to_the_end_or_is_refused(index, data, tmp_path):
    run(FIRST_SEED + index, data, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(NUM_RANDOM))
def test_random_run_files_run_to_the_end_or_are_refused(seed, data, tmp_path):
    run(seed, data, tmp_path)


@pytest.mark.proof
@pytest.mark.timeout(24 * 3600)
def test_run_files_with_all_pairs_of_choices_run_to_the_end_or_are_refused(data, tmp_path):
    seen, reached, since_new, seed = set(), set(), 0, NUM_RANDOM
    while since_new < _PATIENCE:
        _, plain, _ = run_generated.generated(seed, data)
        pairs = run_file_generator.pairs_in(plain)
        if pairs - seen:
            seen, since_new = seen | pairs, 0
            reached |= {setting.name for setting in run_file_generator.walk(run_file_generator.RunFile, plain)}
            folder = tmp_path / str(seed)
            folder.mkdir()
            run(seed, data, folder)
        else:
            since_new += 1
        seed += 1
    assert reached == run_file_generator.all_settings()
