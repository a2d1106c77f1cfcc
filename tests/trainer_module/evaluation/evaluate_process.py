"""Evaluate the checkpoints of a run on the devices that the environment selects; test_devices.py starts this script.

python evaluate_process.py RUN_DIR EVAL_FILE OUT_DIR NUM_CPUS
"""

import sys
from pathlib import Path

import tensorflow as tf

from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.training.follow_checkpoints import EvalSet, WatchOptions, evaluate_checkpoints


def main(run_dir: str, eval_file: str, out_dir: str, num_cpus: str) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(num_cpus))
    out = Path(out_dir)
    result = evaluate_checkpoints(Path(run_dir), [EvalSet("eval", (eval_file,))], out, WatchOptions())
    found = {each.step: {**each.evaluation.to_dict(), "seconds": None} for each in result.evaluations}
    out.mkdir(exist_ok=True)
    (out / "found.json").write_text(to_strict_json(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
