"""Run one day in a subprocess and kill its training half way: python run_day.py RUN_FILE JOURNAL."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from detloom.pipelines.local.run_local import run_locally
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.trainer_module import tfx_run
from fake_training.learner import make_learner

if __name__ == "__main__":
    tfx_run.run = make_learner(Path(sys.argv[2]), dies_half_way=True)
    run_locally(read_run_file(Path(sys.argv[1])))
