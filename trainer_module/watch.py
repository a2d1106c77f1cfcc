"""Evaluation beside training: the checkpoints of a run, as they come.

It does what the Object Detection API's `eval_continuously` does, and knows no more of the trainer than its folder.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, read_label_map
from detloom.schemas.text_file import read_text_file
from detloom.schemas.typed_dict import from_json
from detloom.trainer_module.checkpoints.odapi_keys import VALUE
from detloom.trainer_module.checkpoints.own_checkpoint import CHECKPOINTS_DIR
from detloom.trainer_module.checkpoints.read_checkpoint import escape_name
from detloom.trainer_module.detector import Detector, build_detector
from detloom.trainer_module.evaluate import Evaluation, Evaluator
from detloom.trainer_module.event_file import EventFile
from detloom.trainer_module.input_pipeline import build_eval_dataset
from detloom.trainer_module.run_folder import CONFIG_FILE
from detloom.trainer_module.strict_json import to_strict_json
from detloom.trainer_module.train_result import SUMMARY_FILE
from detloom.trainer_module.variable_names import variables_by_path

EVAL_LOG_FILE = "eval_log.jsonl"  # one line a checkpoint
_INDEX = re.compile(r"ckpt-(\d+)\.index")
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError)  # what TensorFlow makes of a torn file
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True)
class EvalSet:
    """Examples that are evaluated on: TFRecord shards, and the name by which their numbers are filed."""

    name: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointEvaluation:
    """One checkpoint on one set."""

    step: int
    set_name: str
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How checkpoints are followed.

    Attributes:
        follow: wait for checkpoints to come, instead of evaluating those that are there.
        newest_only: leave out checkpoints that a newer one has overtaken.
        timeout_seconds: give up when so long nothing came.
        poll_seconds: between two looks into the folder.
        one_of: read only every n-th example; None: as the configuration says.
    """

    follow: bool = False
    newest_only: bool = False
    timeout_seconds: float = 3600.0
    poll_seconds: float = 5.0
    one_of: int | None = None


@dataclass(frozen=True)
class WatchResult:
    """What was evaluated now, and in a sentence why no more."""

    evaluations: tuple[CheckpointEvaluation, ...]
    ended: str


def find_run(folder: Path) -> Path:
    """The run's folder, given it or the folder `checkpoints` in it."""
    is_inside = folder.name == CHECKPOINTS_DIR and not (folder / CONFIG_FILE).exists()
    return folder.resolve().parent if is_inside else folder


def evaluate_checkpoints(
    run_dir: Path,
    sets: Sequence[EvalSet],
    out_dir: Path,
    options: WatchOptions,
    on_evaluation: Callable[[CheckpointEvaluation], None] = lambda _: None,
) -> WatchResult:
    """Evaluate a run's checkpoints in the order of their steps, each with its averages if the run evaluates these.

    What `out_dir` has from an earlier call is not evaluated again. Each set gets a folder there, with `eval_log.jsonl`
    and files for TensorBoard.

    Raises:
        InputError: if there is no run, its settings cannot be read, or a record cannot be used; without `follow`, also
            if there is no checkpoint.
    """
    clock = _Clock(options)
    config, label_map = _read_run(run_dir, clock)
    watch = _Watch(run_dir, config, label_map, sets, out_dir, options)
    ended = watch.run(clock, on_evaluation)
    return WatchResult(tuple(watch.evaluations), ended)


class _Clock:
    """How long nothing has come."""

    def __init__(self, options: WatchOptions) -> None:
        self.options, self._since = options, time.monotonic()

    def restart(self) -> None:
        self._since = time.monotonic()

    def wait(self) -> bool:
        """Wait for one look; False if it is too late for another."""
        left = self.options.timeout_seconds - (time.monotonic() - self._since)
        if not self.options.follow or left <= 0:
            return False
        time.sleep(min(self.options.poll_seconds, left))
        return True


def _read_run(run_dir: Path, clock: _Clock) -> tuple[TrainEvalConfig, LabelMap]:
    paths = (run_dir / CONFIG_FILE, run_dir / LABEL_MAP_FILE)
    while not all(path.is_file() for path in paths):
        if not clock.wait():
            missing = next(path for path in paths if not path.is_file())
            raise InputError(f"{missing}: no such file; give the folder that a training writes to.")
    clock.restart()
    try:
        return from_json(TrainEvalConfig, read_text_file(paths[0])), read_label_map(paths[1])
    except InputError as error:
        raise InputError(f"{run_dir}: the run's settings cannot be read: {error}") from None


class _Watch:
    """The state of one call of `evaluate_checkpoints`."""

    def __init__(
        self,
        run_dir: Path,
        config: TrainEvalConfig,
        label_map: LabelMap,
        sets: Sequence[EvalSet],
        out_dir: Path,
        options: WatchOptions,
    ) -> None:
        self._run_dir, self._config, self._options = run_dir, config, options
        self._detector = build_detector(config.model, label_map)  # in float32, whatever the trainer computes in
        reading = config
        if options.one_of is not None:
            reading = replace(config, eval_input=replace(config.eval_input, sample_1_of_n_examples=options.one_of))
        self._evaluators = {
            each.name: Evaluator(
                self._detector,
                build_eval_dataset(reading, label_map, each.files, batch_size=config.eval.batch_size),
                each.files,
            )
            for each in sets
        }
        self._logs = {each.name: EvalLog(out_dir / each.name) for each in sets}
        self._failed: set[int] = set()
        self.evaluations: list[CheckpointEvaluation] = []

    def run(self, clock: _Clock, on_evaluation: Callable[[CheckpointEvaluation], None]) -> str:
        """Why it ended."""
        while True:
            is_finished = (self._run_dir / SUMMARY_FILE).is_file()  # before looking for what it left
            step = self._next_step()
            if step is not None:
                for each in self._evaluate(step):
                    on_evaluation(each)
                clock.restart()
                continue
            if self._last_step_done():
                return f"Step {self._config.train.num_steps} was the last."
            if self._options.follow and is_finished:
                return "The training has ended."
            if not clock.wait():
                return self._gave_up()

    def _gave_up(self) -> str:
        if self._options.follow:
            return f"No new checkpoint for {self._options.timeout_seconds:.0f} s."
        if not self._steps_there():
            raise InputError(
                f"{self._run_dir / CHECKPOINTS_DIR}: holds no checkpoint yet; wait for one with --watch, or give the "
                "folder that a training writes to."
            )
        return "All checkpoints are evaluated."

    def _steps_there(self) -> list[int]:
        """Of the checkpoints that are there, rising; the one before the first step is left out."""
        try:
            names = [path.name for path in (self._run_dir / CHECKPOINTS_DIR).iterdir()]
        except FileNotFoundError:
            return []
        steps = (int(match.group(1)) for name in names if (match := _INDEX.fullmatch(name)))
        return sorted(step for step in steps if step > 0)

    def _is_done(self, step: int) -> bool:
        return step in self._failed or all(step in log.steps for log in self._logs.values())

    def _next_step(self) -> int | None:
        steps = self._steps_there()
        if self._options.newest_only:
            steps = steps[-1:]
        return next((step for step in steps if not self._is_done(step)), None)

    def _last_step_done(self) -> bool:
        last = self._config.train.num_steps
        return all(max(log.steps, default=0) >= last for log in self._logs.values())

    def _evaluate(self, step: int) -> list[CheckpointEvaluation]:
        path = self._run_dir / CHECKPOINTS_DIR / f"ckpt-{step}"
        try:
            load_checkpoint(self._detector, path, use_averages=self._config.eval.use_moving_averages)
        except _UNREADABLE as error:
            self._failed.add(step)
            gone = not path.with_name(f"{path.name}.index").exists()
            why = "it was deleted meanwhile" if gone else " ".join(str(error).split())[:300]
            _LOGGER.warning("%s is left out: %s.", path, why)
            return []
        found = []
        for name, evaluator in self._evaluators.items():
            if step in self._logs[name].steps:
                continue
            evaluation = evaluator()
            self._logs[name].add(step, evaluation)
            found.append(CheckpointEvaluation(step, name, evaluation))
        self.evaluations += found
        return found


def load_checkpoint(detector: Detector, path: Path, *, use_averages: bool) -> None:
    """Put the weights of a run's checkpoint into the network; nothing else of it is read.

    Args:
        path: without ending.
        use_averages: the average where there is one: not of what is frozen or a statistic.

    Raises:
        tf.errors.OpError, IndexError, RuntimeError, ValueError: if it is not there, torn, or lacks a weight; the
            network is unchanged then.
    """
    reader = tf.train.load_checkpoint(str(path))
    roots = ("averaged_weights", "network") if use_averages else ("network",)
    variables = variables_by_path(detector.network)
    arrays = {}
    for name in variables:
        keys = [f"{root}/{escape_name(name)}{VALUE}" for root in roots]
        key = next((key for key in keys if reader.has_tensor(key)), None)
        if key is None:
            raise ValueError(f"it holds no weights of {name}")
        arrays[name] = reader.get_tensor(key)
    for name, array in arrays.items():
        variables[name].assign(array)


class EvalLog:
    """`eval_log.jsonl` and TensorBoard's files of one set; `steps` are those that have been evaluated."""

    def __init__(self, folder: Path) -> None:
        """A line that a killed process left unfinished is taken out."""
        self._path = folder / EVAL_LOG_FILE
        self.steps: set[int] = set()
        folder.mkdir(parents=True, exist_ok=True)
        self._events = EventFile(folder)
        size = 0
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.is_file() else []
        for line in lines:
            try:
                step = int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self.steps.add(step)
            size += len(line)
        if size < sum(map(len, lines)):
            with self._path.open("rb+") as file:
                file.truncate(size)

    def add(self, step: int, evaluation: Evaluation) -> None:
        """TensorBoard gets no -1, which only says that there was nothing to measure."""
        numbers = evaluation.numbers()
        row = {"step": step, **numbers, "num_images": evaluation.num_images, "seconds": evaluation.seconds}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(to_strict_json(row) + "\n")
        for name, value in numbers.items():
            if evaluation.explain(name) is None:
                self._events.scalar(step, f"eval/{name}", value)
        self._events.flush()
        self.steps.add(step)
