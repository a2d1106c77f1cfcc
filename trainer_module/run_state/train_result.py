"""The result of a training run: metrics, throughput and the time of its phases."""

import contextlib
import dataclasses
import math
import resource
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.format_duration import format_duration
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.runtime.host_memory import format_bytes
from detloom.trainer_module.weights.freezing import PartCounts

_SHORTEST_SECONDS = 1e-6
_INPUT_BOUND = 0.2  # share of time waiting for data above which advice is given
_EVALUATION_BOUND, _EVALUATION_SECONDS = 0.2, 60  # share of time, and total time, of evaluations that need advice
_PHASES = {"evaluation": "evaluating", "checkpoints": "saving checkpoints"}  # wording in the paragraph
SUMMARY_FILE = "training_summary.json"  # written last: marks a finished run


@dataclass(frozen=True, kw_only=True)
class PerformanceSummary:
    """Measurements of `Performance` in this process; earlier processes of a resumed run are not included.

    Attributes:
        num_steps: all steps; the first call's are excluded from all other fields but `first_call_seconds`.
        median_step_seconds, p90_step_seconds: the steps of one call count as equally long; 0 if nothing was measured.
        images_per_second: images divided by the time of the steps, including their waiting for data.
        input_share: share of the steps' time spent waiting for data.
        first_call_seconds: time of the first host call, which traces and compiles.
        phase_seconds: time outside of the steps, by name.
        peak_host_bytes: maximum memory of this process so far.
        peak_device_bytes: by device; empty where TensorFlow does not count it, as on CPU.
    """

    batch_size: int
    precision: str
    num_steps: int
    median_step_seconds: float
    p90_step_seconds: float
    images_per_second: float
    input_share: float
    step_seconds_total: float
    first_call_seconds: float
    phase_seconds: dict[str, float]
    peak_host_bytes: int
    peak_device_bytes: dict[str, int]

    def paragraph(self) -> str:
        """Return a summary in a few sentences."""
        sentences = []
        if self.median_step_seconds:
            median, p90 = format_duration(self.median_step_seconds), format_duration(self.p90_step_seconds)
            sentences.append(
                f"{self.images_per_second:.1f} images/s at batch {self.batch_size} in {self.precision}: a step took "
                f"{median} (median; 90 % at most {p90})."
            )
        times = [
            f"{format_duration(self.step_seconds_total)} in steps",
            f"{format_duration(self.first_call_seconds)} in the first call",
        ]
        times += [
            f"{format_duration(seconds)} {_PHASES.get(name, name)}" for name, seconds in self.phase_seconds.items()
        ]
        sentences.append(f"{', '.join(times)}.")
        memory = [f"{format_bytes(self.peak_host_bytes)} of host memory"]
        memory += [f"{format_bytes(count)} of {device}" for device, count in self.peak_device_bytes.items()]
        sentences.append(f"Peak memory: {', '.join(memory)}.")
        sentences.append(f"Input-bound: {100 * self.input_share:.0f} %.")
        return " ".join([*sentences, *filter(None, [self.advice()])])

    def advice(self) -> str | None:
        """Return advice if the device often waits for images; otherwise None."""
        if self.input_share <= _INPUT_BOUND:
            return None
        return (
            f"The device waited for images in {100 * self.input_share:.0f} % of the time: give the host more cores, "
            "shrink the image files (more pixels than the network's input gain nothing), or remove the most expensive "
            "augmentations."
        )


class Performance:
    """Collects the times of a training run; `precision` is its name in the summary."""

    def __init__(self, batch_size: int, precision: str) -> None:
        self._batch_size, self.precision = batch_size, precision
        self._num_steps = 0
        self._seconds = self._input_seconds = 0.0
        self._first_call_seconds: float | None = None
        self._steps_of_calls, self._step_seconds = array("q"), array("d")
        self._seconds_of_phases: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, num_steps: int, seconds: float, input_seconds: float = 0.0) -> dict[str, float]:
        """Add one host call of `num_steps` steps, during which the device waited `input_seconds` for data.

        Returns:
            The call's steps_per_second, images_per_second and input_share for the log; empty for the first call, which
            includes tracing, and for a call without steps.
        """
        if not num_steps:
            return {}
        self._num_steps += num_steps
        if self._first_call_seconds is None:
            self._first_call_seconds = seconds
            return {}
        step_seconds = max(seconds / num_steps, _SHORTEST_SECONDS)
        self._seconds += seconds
        self._input_seconds += input_seconds
        self._steps_of_calls.append(num_steps)
        self._step_seconds.append(step_seconds)
        return {
            "steps_per_second": 1 / step_seconds,
            "images_per_second": self._batch_size / step_seconds,
            "input_share": _share(input_seconds, seconds),
        }

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block separately from the steps, such as "evaluation" or "checkpoints"."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds_of_phases[name].append(time.monotonic() - started)

    def evaluation_advice(self, config: TrainEvalConfig) -> str | None:
        """Return advice if the second evaluation, the first without compilation, takes too much of the time."""
        seconds = self._seconds_of_phases["evaluation"]
        if len(seconds) != 2 or not self._seconds:
            return None
        interval, step_seconds = config.evaluation_interval, self._seconds / sum(self._steps_of_calls)
        share = _share(seconds[-1], seconds[-1] + interval * step_seconds)
        if share <= _EVALUATION_BOUND or seconds[-1] * config.train.num_steps / interval < _EVALUATION_SECONDS:
            return None
        enough = math.ceil(seconds[-1] * (1 / _EVALUATION_BOUND - 1) / step_seconds)
        return (
            f"Evaluation takes {100 * share:.0f} % of the time: set eval.evaluate_every to {enough} (now {interval}) "
            f"for {100 * _EVALUATION_BOUND:.0f} %, raise eval.batch_size (now {config.eval.batch_size}), or evaluate "
            "fewer images with eval_input.sample_1_of_n_examples."
        )

    def summary(self) -> PerformanceSummary:
        step_seconds = np.repeat(self._step_seconds, self._steps_of_calls)
        has_steps = len(step_seconds) > 0
        median, p90 = np.quantile(step_seconds, [0.5, 0.9]).tolist() if has_steps else (0.0, 0.0)
        return PerformanceSummary(
            batch_size=self._batch_size,
            precision=self.precision,
            num_steps=self._num_steps,
            median_step_seconds=median,
            p90_step_seconds=p90,
            images_per_second=len(step_seconds) * self._batch_size / self._seconds if self._seconds else 0.0,
            input_share=_share(self._input_seconds, self._seconds),
            step_seconds_total=self._seconds,
            first_call_seconds=self._first_call_seconds or 0.0,
            phase_seconds={name: sum(seconds) for name, seconds in self._seconds_of_phases.items()},
            peak_host_bytes=peak_host_bytes(),
            peak_device_bytes=peak_device_bytes(),
        )


def peak_host_bytes(status_file: Path = Path("/proc/self/status")) -> int:
    """Return the maximum memory (resident set) of this process.

    `getrusage` would include the memory of the parent process at the time of the fork.
    """
    with contextlib.suppress(OSError, ValueError):  # the file exists on Linux only
        for line in status_file.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in kB on Linux


def peak_device_bytes() -> dict[str, int]:
    """Return TensorFlow's peak memory per accelerator, as "GPU:0"; devices without this counter are left out."""
    peaks = {}
    for device in tf.config.list_logical_devices():
        if device.device_type == "CPU":
            continue
        name = ":".join(device.name.split(":")[-2:])
        with contextlib.suppress(ValueError, RuntimeError, tf.errors.OpError):  # this device has no counter
            peaks[name] = int(tf.config.experimental.get_memory_info(name)["peak"])
    return peaks


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Result of training; `detector` holds the best weights and computes in float32.

    Attributes:
        config: the effective configuration, as in the folder of the run: learning rates are scaled to the batch size.
        best: metrics on the eval split at `best_step`, of the averaged weights if these are evaluated.
        num_steps: completed steps; fewer than configured after early stopping.
        stopped_early: True if `train.early_stopping` ended the run.
        performance: of this process only; earlier processes of a resumed run are not included.
        num_boxes_dropped: boxes dropped because an image had more than `max_number_of_boxes`.
        num_incidents: number of non-finite losses or gradients.
        trained: trained variables per part of the network.
    """

    detector: Detector
    config: TrainEvalConfig
    best: CocoMetrics
    best_step: int
    num_steps: int
    stopped_early: bool
    performance: PerformanceSummary
    num_boxes_dropped: int
    num_incidents: int
    trained: tuple[PartCounts, ...]

    def summary(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "config"}
        return {
            **plain,
            "detector": self.detector.network.name,
            "best": self.best.to_dict(),
            "performance": dataclasses.asdict(self.performance),
            "trained": [dataclasses.asdict(part) for part in self.trained],
        }
