"""Claim: during hours of training with evaluations, checkpoints and summaries, resident memory stays flat within 3 %.

A tiny detector trains on generated images in a child process until the time is over and it receives a signal. Its
resident memory is sampled every few seconds; the first tenth is warm-up. Flat means: the straight line with the best
fit to the rest rises by at most 3 % of its start value. Writes JSON and a plot.

    python benchmarks/soak.py [--hours 2] [--output DIR]
"""

import argparse
import contextlib
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's `detloom`

from detloom.components.pages.charts import Line, format_svg  # noqa: E402

LARGEST_RISE = 0.03
WARM_UP_SHARE = 0.1
NUM_SAMPLES = 1440  # a sample every 5 seconds in two hours
SECONDS_TO_END = 120  # after the signal
SECONDS_TO_START = 600
NUM_IMAGES = {"train": 256, "eval": 32}
_MB = 2**20

Samples = Sequence[tuple[float, float]]
"""Seconds since the first sample, resident memory in MB."""


# --- the process that trains ----------------------------------------------------------------------------------------


def train_without_end(folder: Path) -> None:
    from tools.made_records import write_records
    from tools.tiny_training import CLASS_NAMES, make_examples, tiny_config

    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.trainer_module.runtime.preemption import Preempted
    from detloom.trainer_module.training.loop import train

    logging.basicConfig(level=logging.WARNING)
    for seed, (split, count) in enumerate(NUM_IMAGES.items()):
        write_records(folder / f"{split}.tfrecord", make_examples(count, seed))
    files = {split: [str(folder / f"{split}.tfrecord")] for split in NUM_IMAGES}
    with contextlib.suppress(Preempted):
        train(tiny_config(), LabelMap.from_names(CLASS_NAMES), files["train"], files["eval"], folder / "run")


# --- the process that watches ---------------------------------------------------------------------------------------


def watch(folder: Path, seconds: float) -> tuple[list[tuple[float, float]], int]:
    """Return the samples since the first checkpoint after some steps, and the exit code after the signal.

    Raises:
        RuntimeError: with the end of its output, if it ends early.
    """
    log_path = folder / "train.log"
    with log_path.open("w", encoding="utf-8") as log:
        child = subprocess.Popen(
            [sys.executable, __file__, "--child", str(folder)], stdout=log, stderr=subprocess.STDOUT
        )
    memory = psutil.Process(child.pid)
    try:
        _wait_for_checkpoint(child, folder, log_path)
        samples, started = [], time.monotonic()
        while (now := time.monotonic() - started) <= seconds:
            if child.poll() is not None:
                raise RuntimeError(f"training ended: {log_path.read_text(encoding='utf-8')[-3000:]}")
            samples.append((now, memory.memory_info().rss / _MB))
            time.sleep(seconds / NUM_SAMPLES)
        child.send_signal(signal.SIGTERM)
        return samples, child.wait(SECONDS_TO_END)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _wait_for_checkpoint(child: subprocess.Popen[bytes], folder: Path, log_path: Path) -> None:
    started = time.monotonic()
    while not any(path.stem != "ckpt-0" for path in (folder / "run").glob("checkpoints/*.index")):
        if child.poll() is not None or time.monotonic() - started > SECONDS_TO_START:
            raise RuntimeError(f"no checkpoint was written: {log_path.read_text(encoding='utf-8')[-3000:]}")
        time.sleep(1)


def relative_rise(samples: Samples) -> tuple[float, float]:
    """Return, after warm-up, the rise of the fitted line and the whole range, relative to the start of the line."""
    warm_up_seconds = WARM_UP_SHARE * samples[-1][0]
    seconds, megabytes = np.array([sample for sample in samples if sample[0] >= warm_up_seconds]).T
    slope, at_zero = np.polyfit(seconds, megabytes, 1)
    start = at_zero + slope * seconds[0]
    return float(slope * (seconds[-1] - seconds[0]) / start), float(np.ptp(megabytes) / start)


def last_numbers(folder: Path) -> dict[str, Any]:
    """Return step and numbers of the last line of the training log."""
    lines = (folder / "run/train_log.jsonl").read_text(encoding="utf-8").splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--output", type=Path, default=Path.home() / ".cache/detloom/soak")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train_without_end(args.child)
        return
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        samples, exit_code = watch(Path(name), 3600 * args.hours)
        last = last_numbers(Path(name))
    rise, span = relative_rise(samples)
    passed = abs(rise) <= LARGEST_RISE
    settings = {"hours": args.hours, "warm_up_share": WARM_UP_SHARE, "largest_rise": LARGEST_RISE}
    result = {"passed": passed, "rise": rise, "range": span, "exit_code": exit_code, "last": last, "settings": settings}
    text = json.dumps({**result, "samples": samples}, indent=1)
    (args.output / "soak.json").write_text(text + "\n", encoding="utf-8")
    line = Line(name="resident memory", points=[(seconds / 3600, megabytes) for seconds, megabytes in samples])
    title = f"Training and evaluating: memory {rise:+.1%} after warm-up"
    (args.output / "soak.svg").write_text(format_svg(title, "hours", "MB", [line]), encoding="utf-8")
    middle = float(np.median([megabytes for _, megabytes in samples]))
    print(
        f"{'flat' if passed else 'NOT FLAT'}: {rise:+.2%} in {args.hours:g} hours (allowed {LARGEST_RISE:.0%}), range "
        f"{span:.2%}, median {middle:.0f} MB, {last.get('step')} steps, exit code {exit_code}"
    )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
