"""Evaluate the checkpoints of a run while it trains, or afterwards.

Like the Object Detection API's `eval_continuously`, it depends only on the run's folder, not on the trainer process.
With several workers, the chief decides what to evaluate, and writes the results.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tensorflow as tf

from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.data.input_pipeline import build_eval_dataset
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.evaluation.keypoint_metrics import measured_keypoints
from detloom.trainer_module.evaluation.split_evaluator import Evaluation, SplitEvaluator
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.files.tensorboard_file import EventFile
from detloom.trainer_module.run_state.run_folder import CONFIG_FILE
from detloom.trainer_module.run_state.train_log_and_tensorboard import forget_lines_after
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
from detloom.trainer_module.runtime.replicas import gather_from_workers
from detloom.trainer_module.runtime.strategies import build_strategy, is_chief, place_of_worker, worker_out_dir
from detloom.trainer_module.weights.odapi_keys import VALUE
from detloom.trainer_module.weights.own_checkpoint import CHECKPOINTS_DIR
from detloom.trainer_module.weights.read_checkpoint import escape_name
from detloom.trainer_module.weights.variable_names import variables_by_path

EVAL_LOG_FILE = "eval_log.jsonl"  # one line per checkpoint
_INDEX = re.compile(r"ckpt-(\d+)\.index")
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError)  # TensorFlow's errors for a truncated file
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True)
class EvalSet:
    """TFRecord shards to evaluate on, and the name of the results."""

    name: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointEvaluation:
    """The evaluation of one checkpoint on one set."""

    step: int
    set_name: str
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Options for following checkpoints.

    Attributes:
        follow: wait for new checkpoints; otherwise evaluate the existing ones.
        newest_only: skip checkpoints older than the newest.
        timeout_seconds: stop after this time without a new checkpoint.
        poll_seconds: time between checks of the folder.
        one_of: read only every n-th example; None uses the configuration's value.
    """

    follow: bool = False
    newest_only: bool = False
    timeout_seconds: float = 3600.0
    poll_seconds: float = 5.0
    one_of: int | None = None


@dataclass(frozen=True)
class WatchResult:
    """The evaluations of this call, and a sentence on why it ended."""

    evaluations: tuple[CheckpointEvaluation, ...]
    ended: str


def find_run(folder: Path) -> Path:
    """Return the run's folder, given it or its subfolder `checkpoints`."""
    is_inside = folder.name == CHECKPOINTS_DIR and not (folder / CONFIG_FILE).exists()
    return folder.resolve().parent if is_inside else folder


def evaluate_checkpoints(
    run_dir: Path,
    sets: Sequence[EvalSet],
    out_dir: Path,
    options: WatchOptions,
    on_evaluation: Callable[[CheckpointEvaluation], None] = lambda _: None,
) -> WatchResult:
    """Evaluate a run's checkpoints in the order of their steps, with averaged weights if the run evaluates these.

    Checkpoints that `out_dir` already covers are skipped. Each set gets a subfolder, with `eval_log.jsonl` and files
    for TensorBoard.

    Raises:
        InputError: if there is no run, its settings cannot be read, or a record cannot be used; without `follow`, also
            if there is no checkpoint.
    """
    strategy = build_strategy()
    clock = _Clock(options)
    config, label_map = _read_run(run_dir, clock)
    with worker_out_dir(strategy, out_dir) as own_dir:
        watch = _Watch(run_dir, config, label_map, sets, own_dir, options, strategy)
        ended = watch.run(clock, on_evaluation)
    return WatchResult(tuple(watch.evaluations), ended)


@dataclass(frozen=True)
class _Decision:
    """The next action: evaluate a step on some sets, or, for the reason `ended`, nothing more."""

    step: int = 0
    sets: tuple[str, ...] = ()
    ended: str = ""


class _Clock:
    """The time since the last new checkpoint."""

    def __init__(self, options: WatchOptions) -> None:
        self.options, self._since = options, time.monotonic()

    def restart(self) -> None:
        self._since = time.monotonic()

    def wait(self) -> bool:
        """Wait until the next check of the folder; return False after the timeout."""
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
            raise InputError(f"{missing}: no such file; give the output folder of a training run.")
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
        strategy: tf.distribute.Strategy,
    ) -> None:
        self._run_dir, self._config, self._options, self._strategy = run_dir, config, options, strategy
        with strategy.scope():
            self._detector = build_detector(config.model, label_map)  # in float32, whatever the trainer's precision
        reading = config
        if options.one_of is not None:
            reading = replace(config, eval_input=replace(config.eval_input, sample_1_of_n_examples=options.one_of))
        keypoints = measured_keypoints(self._detector.family.keypoints, config.eval)
        worker, num_workers = place_of_worker(strategy)
        self._evaluators = {
            split.name: SplitEvaluator(
                self._detector,
                build_eval_dataset(
                    reading,
                    label_map,
                    split.files,
                    batch_size=config.eval.batch_size,
                    worker=worker,
                    num_workers=num_workers,
                ),
                split.files,
                keypoints=keypoints,
                strategy=strategy,
            )
            for split in sets
        }
        self._logs = {split.name: EvalLog(out_dir / split.name) for split in sets}
        self._failed: set[int] = set()
        self.evaluations: list[CheckpointEvaluation] = []

    def run(self, clock: _Clock, on_evaluation: Callable[[CheckpointEvaluation], None]) -> str:
        """Evaluate until there is nothing more to do; return the reason."""
        while True:
            decision = self._agreed(self._decide(clock) if is_chief(self._strategy) else None)
            if decision.ended:
                return decision.ended
            for evaluation in self._evaluate(decision.step, decision.sets):
                on_evaluation(evaluation)
            clock.restart()

    def _decide(self, clock: _Clock) -> _Decision:
        """Wait until there is something to do."""
        while True:
            is_finished = (self._run_dir / SUMMARY_FILE).is_file()  # check this before looking for checkpoints
            step = self._next_step()
            if step is not None:
                return _Decision(step, tuple(name for name, log in self._logs.items() if step not in log.steps))
            if self._last_step_done():
                return _Decision(ended=f"Step {self._config.train.num_steps} was the last step.")
            if self._options.follow and is_finished:
                return _Decision(ended="The training run has ended.")
            if not clock.wait():
                return _Decision(ended=self._no_more_checkpoints())

    def _agreed(self, decision: _Decision | None) -> _Decision:
        """Return the chief's decision on every worker; the others give None."""
        data = json.dumps(None if decision is None else asdict(decision)).encode()
        chosen = json.loads(gather_from_workers(self._strategy, data)[0])
        return _Decision(chosen["step"], tuple(chosen["sets"]), chosen["ended"])

    def _no_more_checkpoints(self) -> str:
        if self._options.follow:
            return f"No new checkpoint for {self._options.timeout_seconds:.0f} s."
        if not self._existing_steps():
            raise InputError(
                f"{self._run_dir / CHECKPOINTS_DIR}: no checkpoint yet; wait for one with --watch, or give the output "
                "folder of a training run."
            )
        return "All checkpoints are evaluated."

    def _existing_steps(self) -> list[int]:
        """Return the steps of the existing checkpoints in ascending order, without step 0."""
        try:
            names = [path.name for path in (self._run_dir / CHECKPOINTS_DIR).iterdir()]
        except FileNotFoundError:
            return []
        steps = (int(match.group(1)) for name in names if (match := _INDEX.fullmatch(name)))
        return sorted(step for step in steps if step > 0)

    def _is_done(self, step: int) -> bool:
        return step in self._failed or all(step in log.steps for log in self._logs.values())

    def _next_step(self) -> int | None:
        steps = self._existing_steps()
        if self._options.newest_only:
            steps = steps[-1:]
        return next((step for step in steps if not self._is_done(step)), None)

    def _last_step_done(self) -> bool:
        last = self._config.train.num_steps
        return all(max(log.steps, default=0) >= last for log in self._logs.values())

    def _evaluate(self, step: int, sets: Sequence[str]) -> list[CheckpointEvaluation]:
        path = self._run_dir / CHECKPOINTS_DIR / f"ckpt-{step}"
        problem = ""
        try:
            load_checkpoint(self._detector, path, use_averages=self._config.eval.use_moving_averages)
        except _UNREADABLE as error:
            is_gone = not path.with_name(f"{path.name}.index").exists()
            problem = "it has been deleted" if is_gone else " ".join(str(error).split())[:300]
        problems = [text.decode() for text in gather_from_workers(self._strategy, problem.encode()) if text]
        if problems:
            self._failed.add(step)
            _LOGGER.warning("%s is skipped: %s.", path, problems[0])
            return []
        evaluations = []
        for name in sets:
            evaluation = self._evaluators[name]()
            self._logs[name].add(step, evaluation)
            evaluations.append(CheckpointEvaluation(step, name, evaluation))
        self.evaluations += evaluations
        return evaluations


def load_checkpoint(detector: Detector, path: Path, *, use_averages: bool) -> None:
    """Load only the weights of a run's checkpoint into the network.

    Args:
        path: without suffix.
        use_averages: load averages of the weights that have one; frozen weights and statistics have none.

    Raises:
        tf.errors.OpError, IndexError, RuntimeError, ValueError: if it is missing, truncated, or lacks a weight; the
            network is then unchanged.
    """
    reader = tf.train.load_checkpoint(str(path))
    roots = ("averaged_weights", "network") if use_averages else ("network",)
    variables = variables_by_path(detector.network)
    arrays = {}
    for name in variables:
        keys = [f"{root}/{escape_name(name)}{VALUE}" for root in roots]
        key = next((key for key in keys if reader.has_tensor(key)), None)
        if key is None:
            raise ValueError(f"it has no weights for {name}")
        arrays[name] = reader.get_tensor(key)
    for name, array in arrays.items():
        variables[name].assign(array)


class EvalLog:
    """`eval_log.jsonl` and TensorBoard's files of one set; `steps` are the evaluated steps."""

    def __init__(self, folder: Path) -> None:
        """Open the log and remove invalid lines, such as a truncated one that a killed process left."""
        self._path = folder / EVAL_LOG_FILE
        folder.mkdir(parents=True, exist_ok=True)
        forget_lines_after(self._path, sys.maxsize)
        lines = self._path.read_bytes().splitlines() if self._path.is_file() else []
        self.steps = {int(json.loads(line)["step"]) for line in lines}
        self._events = EventFile(folder)

    def add(self, step: int, evaluation: Evaluation) -> None:
        """Add an evaluation. TensorBoard gets no -1, which only means that nothing was measured."""
        numbers = evaluation.numbers()
        row = {"step": step, **numbers, "num_images": evaluation.num_images, "seconds": evaluation.seconds}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(to_strict_json(row) + "\n")
        for name, value in numbers.items():
            if evaluation.explain(name) is None:
                self._events.scalar(step, f"eval/{name}", value)
        self._events.flush()
        self.steps.add(step)
