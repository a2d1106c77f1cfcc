"""The training loop: several steps a host call under `tf.distribute`, evaluation inside, nothing lost in a kill.

What a step sees is a function of its number (`input_pipeline.py`), and all else that it depends on is in the checkpoint
(`run_checkpoints.py`) or in files beside it, so a run that was killed and started again ends as if it had not been.
"""

import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.config import Train, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.text_file import write_text_file
from detloom.trainer_module.best_checkpoints import BestCheckpoints
from detloom.trainer_module.checkpoints.own_checkpoint import BEST_DIR, CHECKPOINTS_DIR, weights_by_path
from detloom.trainer_module.checkpoints.restore import find_trained, restore
from detloom.trainer_module.checkpoints.restore_report import RestoreReport, write_report
from detloom.trainer_module.coco_metrics import CocoMetrics
from detloom.trainer_module.detector import Detector, build_detector
from detloom.trainer_module.determinism import use_deterministic_operations
from detloom.trainer_module.evaluate import Evaluator, naming_bad_records
from detloom.trainer_module.evaluation_history import HISTORY_FILE, EvaluationHistory
from detloom.trainer_module.input_pipeline import (
    broken_example_keys,
    build_eval_dataset,
    build_train_dataset,
    example_keys,
    per_replica_batch_size,
)
from detloom.trainer_module.moving_average import AveragedWeights
from detloom.trainer_module.nonfinite import NONFINITE_FILE, Incidents, describe_incident
from detloom.trainer_module.optimizers import build_optimizer, with_scaled_learning_rate
from detloom.trainer_module.performance import Performance
from detloom.trainer_module.precision import network_precision, precision_of, refuse_without_accelerator
from detloom.trainer_module.preemption import Preempted, StopRequest, stop_on_signals
from detloom.trainer_module.preflight import preflight
from detloom.trainer_module.profiling import ProfilerWindow
from detloom.trainer_module.progress import Reporter, show_progress
from detloom.trainer_module.records import list_shards
from detloom.trainer_module.run_checkpoints import RunCheckpoints
from detloom.trainer_module.run_folder import copy_run_state, data_fingerprint, refuse_another_run, write_settings
from detloom.trainer_module.strategies import build_strategy, worker_out_dir
from detloom.trainer_module.strict_json import to_strict_json
from detloom.trainer_module.supported import check_trainable
from detloom.trainer_module.train_result import SUMMARY_FILE, TrainResult
from detloom.trainer_module.train_step import StepsResult, TrainSteps
from detloom.trainer_module.training_log import TENSORBOARD_DIR, TrainingLog
from detloom.trainer_module.training_pictures import draw_augmented, draw_beside_truth
from detloom.trainer_module.variable_names import variables_by_path

_SHOWN = ("loss", "learning_rate")  # beside the progress; the log has all
_LOGGER = logging.getLogger("detloom")


def train(
    config: TrainEvalConfig,
    label_map: LabelMap,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    out_dir: Path,
    strategy: tf.distribute.Strategy | None = None,
) -> TrainResult:
    """Train, and write checkpoints, log and settings to `out_dir`.

    It goes on from the newest whole checkpoint there, exactly. Without one, it starts from
    `train.fine_tune_checkpoint`, and writes a report of what was restored, or from random weights.

    Args:
        train_files, eval_files: patterns of TFRecord shards.
        out_dir: one that all workers see. Those that are not chief write elsewhere, and their files go at the end.
        strategy: None chooses by what is here (`strategies.py`).

    Raises:
        InputError: if the configuration says what is not trained yet or what `preflight` refuses, a pattern matches
            nothing, `out_dir` holds another run, a record cannot be used, or the loss stops being finite more often
            than `train.nonfinite` allows.
        Preempted: after SIGTERM or Ctrl-C, when all is saved.
    """
    config = with_scaled_learning_rate(config)
    check_trainable(config)
    strategy = strategy or build_strategy()
    train_files, eval_files = list_shards(train_files), list_shards(eval_files)
    run = config, label_map, data_fingerprint(train_files, eval_files)
    refuse_another_run(out_dir, *run)
    with _execution_mode(config.train), worker_out_dir(strategy, out_dir) as own_dir:
        if own_dir != out_dir:
            copy_run_state(out_dir, own_dir)
        loop = _Loop(config, label_map, train_files, eval_files, out_dir, own_dir, strategy)
        write_settings(own_dir, *run)  # only now: what `_Loop` refuses can be set right in the same folder
        if loop.restored:
            write_report(loop.restored, own_dir)
        return loop.run()


@contextlib.contextmanager
def _execution_mode(config: Train) -> Iterator[None]:
    """`train.deterministic` and `train.debug`; TensorFlow keeps the first for the life of the process."""
    if config.deterministic or config.debug:
        use_deterministic_operations()
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(config.debug or before)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


class _Loop:
    """The state of one training run."""

    def __init__(
        self,
        config: TrainEvalConfig,
        label_map: LabelMap,
        train_files: Sequence[str],
        eval_files: Sequence[str],
        out_dir: Path,
        own_dir: Path,
        strategy: tf.distribute.Strategy,
    ) -> None:
        """Make what the run needs; nothing is trained or written yet.

        Args:
            out_dir: has the checkpoints, for all workers.
            own_dir: for all that is written; another folder for workers that are not chief.
        """
        precision = precision_of(config.train, on_tpu=isinstance(strategy, tf.distribute.TPUStrategy))
        refuse_without_accelerator(precision)
        train = replace(config.train, precision=precision)
        self.config, self.label_map, self.strategy = config, label_map, strategy
        self.train_files, self.eval_files, self.out_dir, self.own_dir = train_files, eval_files, out_dir, own_dir
        self.has_several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.is_stopped = False
        self.batch_size = per_replica_batch_size(config, strategy.num_replicas_in_sync)
        keras.utils.set_random_seed(train.seed)
        with strategy.scope(), network_precision(precision):
            self.detector = build_detector(config.model, label_map)
        for warning in preflight(config, label_map, self.detector, train_files):
            _LOGGER.warning("%s", warning)
        self.trained = find_trained(train, self.detector)
        _LOGGER.info("%s", self.trained.sentence())
        self.restored = self._restore_unless_begun()
        with strategy.scope():  # after restoring: averages start at the weights
            self.optimizer = build_optimizer(train.optimizer)
            self.optimizer.build(self.trained.variables)
            average = train.moving_average
            self.averaged_weights = AveragedWeights(average, self.trained.variables) if average else None
        self.steps = TrainSteps(train, self.detector, self.trained, self.optimizer, self.averaged_weights, strategy)
        self.eval_dataset = build_eval_dataset(config, label_map, eval_files, batch_size=config.eval.batch_size)
        self.evaluator = Evaluator(self.detector, self.eval_dataset, eval_files)
        self.checkpoints = RunCheckpoints(out_dir / CHECKPOINTS_DIR, self._state(), train, is_chief=own_dir == out_dir)
        self.best = BestCheckpoints(own_dir / BEST_DIR, config.eval.best_metric, config.eval.keep_best)
        self.history = EvaluationHistory(own_dir / HISTORY_FILE)
        self.incidents = Incidents(own_dir / NONFINITE_FILE, train.nonfinite)
        self.performance = Performance(train.batch_size, precision)
        watched = train.monitoring
        self.profiler = ProfilerWindow(watched.profile_first_step, watched.profile_num_steps, own_dir / TENSORBOARD_DIR)

    # --- where a run starts -------------------------------------------------------------------------------------------

    def _restore_unless_begun(self) -> RestoreReport | None:
        """Fine-tuning starts from other weights once; a run that goes on has its own."""
        if not self.config.train.fine_tune_checkpoint or any((self.out_dir / CHECKPOINTS_DIR).glob("*.index")):
            return None
        report = restore(self.config.train, self.detector, self.trained)
        _LOGGER.info("%s", report.sentence())
        if report.note:
            _LOGGER.warning("%s", report.note)
        return report

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds, by paths that do not depend on the code."""
        state = {"network": weights_by_path(self.detector.network), "optimizer": self.optimizer}
        if self.averaged_weights is not None:
            pairs = zip(self.trained.by_path, self.averaged_weights.averages, strict=True)
            state["averaged_weights"] = dict(pairs)
        return {**state, "steps": self.steps.state}

    def _take_up(self) -> None:
        """Stand where the newest checkpoint stands; without one, save the start, so that there is a way back to it."""
        if self.checkpoints.restore_newest() is None:
            self.checkpoints.save(self.step)
        if self._sum_over_workers(self.step) != self.step * self.strategy.num_replicas_in_sync:
            raise InputError(f"{self.out_dir}: the workers find different checkpoints there; give all the same folder.")
        self.steps.rate_factor.assign(self.incidents.rate_factor)
        known = self.best.entries
        self.best.forget_after(self.step)
        # Weights that were better than what is left are gone: measure this step again, if it is one to measure.
        self.history.forget_after(self.step if self.best.entries == known else self.step - 1)
        self.train_iterator = iter(self.strategy.distribute_datasets_from_function(self._build_dataset))

    def _build_dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Of one input pipeline, from this step on."""
        self.num_input_pipelines = context.num_input_pipelines
        return build_train_dataset(
            self.config,
            self.label_map,
            self.train_files,
            batch_size=self.batch_size,
            input_context=context,
            start_step=self.step,
        )

    def _sum_over_workers(self, number: int) -> int:
        """Over all replicas, of what each worker gives; all of them have to ask."""
        if not self.has_several_workers:
            return number * self.strategy.num_replicas_in_sync
        each = self.strategy.run(lambda: tf.constant(number, tf.int64))
        return int(self.strategy.reduce("SUM", each, axis=None))

    def _say_what_begins(self) -> None:
        if self.step:
            _LOGGER.info("Training goes on from step %d in %s.", self.step, self.out_dir)
        _LOGGER.info(
            "Training %s: %d parameters, %s, %d classes, batch %d, %d steps.",
            self.detector.network.name,
            self.detector.network.count_params(),
            self.detector.describe(),
            self.label_map.num_classes,
            self.config.train.batch_size,
            self.config.train.num_steps,
        )

    # --- the loop -----------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def run(self) -> TrainResult:
        """Train until the last step, or until early stopping ends it."""
        train, best = self.config.train, None
        with stop_on_signals(lambda: self.steps.stop.assign(True)) as stop:
            self._take_up()
            self._say_what_begins()
            bar = show_progress("Training", train.num_steps, unit="images", units_each=train.batch_size)
            log = TrainingLog(self.own_dir, first_step=self.step)
            with log as self.log, contextlib.closing(self.profiler), bar as progress:
                self._log_input()
                progress.start_at(self.step)
                while True:
                    if self._is_evaluation_due():
                        with progress.pause():
                            best = self._evaluate(stop) or best
                    if self.step >= train.num_steps or self._stops_early():
                        break
                    self._advance(progress)
                    self._save_if_due(stop, progress)
                return self._finish(best, stop)

    def _is_evaluation_due(self) -> bool:
        is_point = self.step % self.config.eval.evaluate_every == 0 or self.step == self.config.train.num_steps
        return is_point and self.step > 0 and self.step not in self.history

    def _stops_early(self) -> bool:
        """As soon as one worker says so: on accelerators their evaluations may differ in the last digit."""
        rule = self.config.train.early_stopping
        if rule is None or self.step not in self.history:
            return False
        is_over = self.history.evaluations_without_improvement(rule) >= rule.patience
        return self._sum_over_workers(int(is_over)) > 0

    def _advance(self, progress: Reporter) -> None:
        """Steps up to the next point at which something is to be done; at most `steps_per_call`."""
        train, step, skipped = self.config.train, self.step, self.incidents.skipped_steps
        if step in skipped:
            with self._naming_records():
                self.steps.skip(self.train_iterator)
            progress.advance()
            return
        points = [train.num_steps, step + train.steps_per_call, *(point for point in skipped if point > step)]
        points += [step + every - step % every for every in (train.checkpoint_every_n, self.config.eval.evaluate_every)]
        self.profiler.move_to(step)
        with self._naming_records():
            result = self.steps.run(self.train_iterator, self.profiler.limit(step, min(points) - step))
        if not result.is_finite:
            self._roll_back(result, progress)
            return
        self.is_stopped = result.is_stopped
        speed = self.performance.add(result.num_steps, result.seconds, result.input_seconds)
        self.log.steps(self.step, {**result.numbers, **speed})
        shown = {name: result.numbers[name] for name in _SHOWN}
        progress.advance(result.num_steps, input_share=speed.get("input_share"), **shown)

    @contextlib.contextmanager
    def _naming_records(self) -> Iterator[None]:
        """Of a step that cannot be read, say by which records."""
        try:
            with naming_bad_records(self.train_files):
                yield
        except InputError as error:
            keys = broken_example_keys(
                self.config,
                self.label_map,
                self.train_files,
                step=self.step,
                num_input_pipelines=self.num_input_pipelines,
            )
            raise InputError(f"{error} Records: {', '.join(keys)}." if keys else str(error)) from error

    def _roll_back(self, result: StepsResult, progress: Reporter) -> None:
        """Back to the last checkpoint. What happens when training comes here again, `train.nonfinite` says."""
        bad_step, rate = self.step, result.numbers["learning_rate"]
        keys = example_keys(self.config, self.train_files, step=bad_step, num_input_pipelines=self.num_input_pipelines)
        incident = self.incidents.add(bad_step, rate, tuple(keys))
        _LOGGER.warning("%s", describe_incident(incident))
        if self.incidents.are_not_the_pictures_fault() and self.checkpoints.put_newest_away():
            _LOGGER.warning("Two steps in turn: the newest checkpoint may be spoiled already, and is put away.")
        self._take_up()
        self.log.forget_after(self.step)
        facts = {name: value for name, value in asdict(incident).items() if name != "step"}
        self.log.event(self.step, "rollback", bad_step=bad_step, **facts)
        progress.start_at(self.step)
        _LOGGER.warning("Back at step %d; %s.", self.step, incident.consequence())

    def _save_if_due(self, stop: StopRequest, progress: Reporter) -> None:
        """At each evaluation too, and before it: a run that is killed while it measures has lost no step."""
        is_due = self.step % self.config.train.checkpoint_every_n == 0 or self._is_evaluation_due()
        if is_due or self._is_asked_to_end(stop):
            with self.performance.phase("checkpoints"), progress.pause():
                self.checkpoints.save(self.step)
        self._end_if_asked(stop)

    def _end_if_asked(self, stop: StopRequest) -> None:
        """Everything up to this step is saved."""
        if self._is_asked_to_end(stop):
            number = stop.signal_number or signal.SIGTERM  # another worker was told
            self.log.event(self.step, "preempted", signal=int(number))
            raise Preempted(number, self.step, str(self.out_dir))

    def _is_asked_to_end(self, stop: StopRequest) -> bool:
        """Several workers have to agree, as they do in the next step; otherwise some would wait for the others."""
        return self.is_stopped or (bool(stop) and not self.has_several_workers)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate(self, stop: StopRequest) -> CocoMetrics | None:
        """Measure the weights, or their average; if they are the best so far, return the metrics."""
        with self.performance.phase("evaluation"), self._weights_to_evaluate():
            evaluation = self.evaluator(lambda: self._end_if_asked(stop))
            self.best.consider(self.step, evaluation, self._write_weights)
            self._log_detections()
        self.log.evaluation(self.step, evaluation)
        self.history.add(self.step, evaluation.numbers())  # last: with it, the evaluation is done
        is_best = self.best.best is not None and self.best.best.step == self.step
        _LOGGER.info("Step %d: %s%s", self.step, evaluation.sentence(), " (best so far)" if is_best else "")
        return evaluation.metrics if is_best else None

    def _weights_to_evaluate(self) -> contextlib.AbstractContextManager[None]:
        """While it is open, the network holds the weights that are evaluated and exported."""
        if self.averaged_weights is not None and self.config.eval.use_moving_averages:
            return self.averaged_weights.in_network()
        return contextlib.nullcontext()

    def _write_weights(self, path: Path) -> None:
        tf.train.Checkpoint(network=weights_by_path(self.detector.network)).write(str(path))

    def _log_input(self) -> None:
        """What the network is fed, once a process."""
        if count := self.config.train.monitoring.num_pictures:
            with naming_bad_records(self.train_files):
                pictures = draw_augmented(self.config, self.label_map, self.train_files, count, step=self.step)
            self.log.pictures(self.step, "input", pictures)

    def _log_detections(self) -> None:
        watched = self.config.train.monitoring
        if watched.num_pictures:
            pictures = draw_beside_truth(
                self.evaluator.detect_batch, self.eval_dataset, self.config.model, self.label_map, watched.num_pictures
            )
            self.log.pictures(self.step, "eval", pictures)
        if watched.histograms:
            self.log.histograms(self.step, self.trained.by_path)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, best_metrics: CocoMetrics | None, stop: StopRequest) -> TrainResult:
        """The best weights in a detector that computes in float32, and what there is to say about the run."""
        best, train = self.best.best, self.config.train
        assert best is not None, "the last step is always evaluated"
        weights = tf.train.Checkpoint(network=weights_by_path(self.detector.network))
        weights.read(str(best.path)).assert_existing_objects_matched()
        if best_metrics is None:  # measured by an earlier process
            best_metrics = self.evaluator(lambda: self._end_if_asked(stop)).metrics
        if self.step < train.num_steps and train.early_stopping is not None:
            self.log.event(self.step, "stopped early", **asdict(train.early_stopping))
        result = TrainResult(
            detector=self._for_export(),
            best=best_metrics,
            best_step=best.step,
            num_steps=self.step,
            stopped_early=self.step < train.num_steps,
            performance=self.performance.summary(),
            num_boxes_dropped=int(self.steps.num_boxes_dropped.numpy()),
            num_incidents=len(self.incidents),
            trained=self.trained.parts,
        )
        if result.num_boxes_dropped:
            _LOGGER.warning(
                "%d times a box was left out of a training picture, the smallest first: "
                "train_input.max_number_of_boxes is %d.",
                result.num_boxes_dropped,
                self.config.train_input.max_number_of_boxes,
            )
        write_text_file(self.own_dir / SUMMARY_FILE, to_strict_json(result.summary(), indent=1))
        how = "Stopped early at" if result.stopped_early else "Trained"
        _LOGGER.info("%s step %d. %s", how, result.num_steps, result.performance.paragraph())
        _LOGGER.info("Best: AP %.3f, AP50 %.3f at step %d.", result.best.AP, result.best.AP50, result.best_step)
        return result

    def _for_export(self) -> Detector:
        """The detector with the weights that are in the network, in float32 and on one device."""
        if self.performance.precision == "float32" and self.strategy.num_replicas_in_sync == 1:
            return self.detector
        detector = build_detector(self.config.model, self.label_map)
        trained = variables_by_path(self.detector.network)
        for path, variable in variables_by_path(detector.network).items():
            variable.assign(trained[path].numpy())
        return detector
