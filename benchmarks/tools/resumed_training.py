"""Training that receives SIGTERM and is started again, compared with an uninterrupted run.

As a script it trains: python resumed_training.py OUT_DIR
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

NUM_STEPS, SIGNAL_AFTER_STEP = 60, 10
WEIGHTS_FILE = "weights.npz"
_NUM_IMAGES = {"train": 32, "eval": 4}
_BATCH_SIZE = 8  # so that eight cores of a TPU can divide it
_MAX_SECONDS = 900


def train_run(out_dir: Path) -> int:
    """Train the tiny detector; return the exit code."""
    import tensorflow as tf
    from tools.made_records import write_records
    from tools.tiny_training import CLASS_NAMES, make_examples, one_level_config

    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.schemas.model.config import Monitoring
    from detloom.trainer_module.runtime.preemption import Preempted
    from detloom.trainer_module.training.loop import train

    logging.basicConfig(level=logging.INFO)
    config = one_level_config()
    settings = replace(
        config.train,
        num_steps=NUM_STEPS,
        batch_size=_BATCH_SIZE,
        steps_per_call=2,
        checkpoint_every_n=NUM_STEPS // 3,
        deterministic=True,
        monitoring=Monitoring(num_images=0),
    )
    config = replace(config, train=settings, eval=replace(config.eval, evaluate_every=NUM_STEPS))
    for seed, (split, count) in enumerate(_NUM_IMAGES.items()):
        file = out_dir.parent / f"{split}.tfrecord"
        if not file.is_file():
            write_records(file, make_examples(count, seed))
    files = [[str(out_dir.parent / f"{split}.tfrecord")] for split in _NUM_IMAGES]
    try:
        train(config, LabelMap.from_names(CLASS_NAMES), *files, out_dir)
    except Preempted as preempted:
        return 128 + preempted.signal_number
    reader = tf.train.load_checkpoint(str(out_dir / "checkpoints" / f"ckpt-{NUM_STEPS}"))
    names = [name for name in reader.get_variable_to_shape_map() if not name.startswith("_CHECKPOINTABLE")]
    np.savez(out_dir / WEIGHTS_FILE, **{name: reader.get_tensor(name) for name in names})
    return 0


def compare_resumed(folder: Path, strategy: str) -> dict[str, Any]:
    """Train twice, once with a signal and a second start, and compare all variables of the last checkpoints.

    Args:
        strategy: "one_device" or "tpu". With several GPUs, a sum may depend on the order in which gradients arrive.

    Raises:
        RuntimeError: with the end of its log, if a process fails.
    """
    whole, resumed = folder / "whole", folder / "resumed"
    _expect(_start(whole, strategy), 0, whole)
    process = _start(resumed, strategy)
    try:
        _wait_for_step(process, resumed)
        process.send_signal(signal.SIGTERM)
        _expect(process, 128 + signal.SIGTERM, resumed)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    stopped_at = _last_step(resumed)
    _expect(_start(resumed, strategy), 0, resumed)
    with np.load(whole / WEIGHTS_FILE) as one, np.load(resumed / WEIGHTS_FILE) as other:
        return {"steps": NUM_STEPS, "stopped_at": stopped_at, **compare_variables(dict(one), dict(other))}


def compare_variables(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return status, cause and counts; variables have to be equal to the last bit."""
    different = sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not np.array_equal(one[name], other[name])
    )
    cause = f"{len(different)} of {len(one)} variables differ, such as {different[0]}" if different else ""
    return {
        "status": "failed" if different else "passed",
        "cause": cause,
        "num_variables": len(one),
        "num_different": len(different),
    }


def _start(out_dir: Path, strategy: str) -> subprocess.Popen[bytes]:
    out_dir.mkdir(exist_ok=True)
    environment = {**os.environ, "DETLOOM_STRATEGY": strategy}
    with _log_of(out_dir).open("ab") as log:
        command = [sys.executable, __file__, str(out_dir)]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _log_of(out_dir: Path) -> Path:
    return out_dir.parent / f"{out_dir.name}.log"


def _expect(process: subprocess.Popen[bytes], code: int, out_dir: Path) -> None:
    try:
        found = process.wait(_MAX_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        found = process.wait()
    if found != code:
        end = " ".join(_log_of(out_dir).read_text(encoding="utf-8", errors="replace").split())[-300:]
        raise RuntimeError(f"training ended with exit code {found}, expected {code}: {end}")


def _wait_for_step(process: subprocess.Popen[bytes], out_dir: Path) -> None:
    started = time.monotonic()
    while _last_step(out_dir) < SIGNAL_AFTER_STEP and process.poll() is None:
        if time.monotonic() - started > _MAX_SECONDS:
            raise RuntimeError(f"step {SIGNAL_AFTER_STEP} was not reached in {_MAX_SECONDS} s")
        time.sleep(0.02)


def _last_step(out_dir: Path) -> int:
    log = out_dir / "train_log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(train_run(Path(sys.argv[1])))
