"""Evaluate the checkpoints of a run on the devices that the environment selects; `device_process.py` runs this script.

ARGUMENTS: RUN_DIR EVAL_FILE OUT_DIR; the numbers are written to OUT_DIR/numbers-WORKER.json.
"""

import os
import sys
from pathlib import Path

from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.training.follow_checkpoints import EvalSet, WatchOptions, evaluate_checkpoints


def main(run_dir: str, eval_file: str, out_dir: str) -> None:
    out = Path(out_dir)
    result = evaluate_checkpoints(Path(run_dir), [EvalSet("eval", (eval_file,))], out, WatchOptions())
    numbers = {str(row.step): {**row.evaluation.to_dict(), "seconds": None} for row in result.evaluations}
    worker = os.environ.get("DETLOOM_HOST_INDEX", "0")
    (out / f"numbers-{worker}.json").write_text(to_strict_json(numbers), encoding="utf-8")


main(*sys.argv[1:])
