"""The training loop: several steps per host call under `tf.distribute`, with evaluation inside the loop.

The input of a step is a function of the step number (`input_pipeline.py`). Everything else that a step depends on is
in the checkpoint (`run_checkpoints.py`) or in files beside it. A run that was killed and resumed therefore ends with
the same weights as an uninterrupted one.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import LEARNING_RATE, LOSS
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.data.data_service import (
    check_servers,
    lost_servers_as_input_errors,
    servers_in,
    watched_servers,
)
from detloom.trainer_module.data.input_pipeline import (
    build_eval_dataset,
    build_train_dataset,
    example_keys,
    per_replica_batch_size,
)
from detloom.trainer_module.data.records import list_shards
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.detectors.supported import check_trainable
from detloom.trainer_module.drawing.training_images import draw_augmented, draw_beside_truth
from detloom.trainer_module.evaluation.coco_metrics import NO_VALUE, CocoMetrics
from detloom.trainer_module.evaluation.keypoint_metrics import measured_keypoints
from detloom.trainer_module.evaluation.split_evaluator import SplitEvaluator, bad_records_as_input_errors
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.run_state.evaluations import HISTORY_FILE, BestCheckpoints, EvaluationHistory
from detloom.trainer_module.run_state.nonfinite import NONFINITE_FILE, Incidents, describe_incident
from detloom.trainer_module.run_state.run_checkpoints import RunCheckpoints
from detloom.trainer_module.run_state.run_folder import (
    check_same_run,
    copy_run_state,
    data_fingerprint,
    write_settings,
)
from detloom.trainer_module.run_state.train_log_and_tensorboard import TENSORBOARD_DIR, TrainingLog
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE, Performance, TrainResult
from detloom.trainer_module.runtime.host_memory import format_bytes, process_bytes
from detloom.trainer_module.runtime.numerics import (
    check_precision,
    execution_mode,
    network_precision,
    precision_of,
)
from detloom.trainer_module.runtime.preemption import Preempted, StopRequest, stop_on_signals
from detloom.trainer_module.runtime.profiling import ProfilerWindow
from detloom.trainer_module.runtime.progress import Reporter, show_progress
from detloom.trainer_module.runtime.strategies import (
    build_strategy,
    checkpoint_options,
    place_of_worker,
    worker_out_dir,
)
from detloom.trainer_module.training.optimizers import with_scaled_learning_rate
from detloom.trainer_module.training.preflight import preflight
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.weights.own_checkpoint import BEST_DIR, CHECKPOINTS_DIR, weights_by_path
from detloom.trainer_module.weights.restore import find_trained, restore
from detloom.trainer_module.weights.restore_report import RestoreReport, write_report
from detloom.trainer_module.weights.variable_names import variables_by_path

_SHOWN = (LOSS, LEARNING_RATE)  # numbers shown beside the progress bar; the log has all of them
_LOGGER = logging.getLogger("detloom")


def train(
    config: TrainEvalConfig,
    label_map: LabelMap,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    out_dir: Path,
    strategy: tf.distribute.Strategy | None = None,
) -> TrainResult:
    """Train a detector and write checkpoints, log and settings to `out_dir`.

    Training resumes exactly from the newest intact checkpoint in `out_dir`. If there is none, it starts from
    `train.fine_tune_checkpoint` and writes a report of the restored variables, or it starts from random weights.

    Args:
        train_files, eval_files: patterns of TFRecord shards.
        out_dir: a folder that all workers can read. Workers other than the chief write to a temporary folder.
        strategy: None selects one for the available devices (`strategies.py`).

    Raises:
        InputError: if the configuration is not supported or `preflight` rejects it, a pattern matches no file,
            `out_dir` holds another run, a record cannot be used, or the loss becomes non-finite more often than
            `train.nonfinite` allows.
        Preempted: after SIGTERM or Ctrl-C, once the state is saved.
    """
    config = with_scaled_learning_rate(config)
    check_trainable(config)
    strategy = strategy or build_strategy()
    train_files, eval_files = list_shards(train_files), list_shards(eval_files)
    run = config, label_map, data_fingerprint(train_files, eval_files)
    check_same_run(out_dir, *run)
    with execution_mode(config.train), worker_out_dir(strategy, out_dir) as own_dir:
        if own_dir != out_dir:
            copy_run_state(out_dir, own_dir)
        loop = _Loop(config, label_map, train_files, eval_files, out_dir, own_dir, strategy)
        write_settings(own_dir, *run)  # after `_Loop`: a rejected configuration can be corrected in the same folder
        if loop.restored:
            write_report(loop.restored, own_dir)
        return loop.run()


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
        """Build the objects of the run; nothing is trained or written yet.

        Args:
            out_dir: holds the checkpoints, for all workers.
            own_dir: receives all output of this process; a different folder on workers other than the chief.
        """
        precision = precision_of(config.train, on_tpu=isinstance(strategy, tf.distribute.TPUStrategy))
        check_precision(precision)
        train = replace(config.train, precision=precision)
        self.config, self.label_map, self.strategy = config, label_map, strategy
        self.train_files, self.eval_files, self.out_dir, self.own_dir = train_files, eval_files, out_dir, own_dir
        self.has_several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.is_stopped = self.is_save_overdue = False
        self.batch_size = per_replica_batch_size(config, strategy.num_replicas_in_sync)
        self.data_servers = servers_in(os.environ)
        check_servers(self.data_servers)
        keras.utils.set_random_seed(train.seed)
        with strategy.scope(), network_precision(precision):
            self.detector = build_detector(config.model, label_map)
        for warning in preflight(config, label_map, self.detector, train_files, strategy.num_replicas_in_sync):
            _LOGGER.warning("%s", warning)
        self.trained = find_trained(train, self.detector)
        _LOGGER.info("%s", self.trained.sentence())
        self.restored = self._restore_unless_begun()
        # After restoring, because averages start at the restored weights.
        self.steps = TrainSteps(train, self.detector, self.trained, strategy)
        worker, num_workers = place_of_worker(strategy)
        self.eval_dataset = build_eval_dataset(
            config, label_map, eval_files, batch_size=config.eval.batch_size, worker=worker, num_workers=num_workers
        )
        keypoints = measured_keypoints(self.detector.family.keypoints, config.eval)
        self.evaluator = SplitEvaluator(
            self.detector, self.eval_dataset, eval_files, keypoints=keypoints, strategy=strategy
        )
        self.checkpoints = RunCheckpoints(
            out_dir / CHECKPOINTS_DIR,
            self._state(),
            train,
            is_chief=own_dir == out_dir,
            optional=[f"steps/{name}" for name in self.steps.state_of_loss_scale],
            options=checkpoint_options(strategy),
        )
        self.best = BestCheckpoints(own_dir / BEST_DIR, config.eval.best_metric, config.eval.keep_best)
        self.history = EvaluationHistory(own_dir / HISTORY_FILE)
        self.incidents = Incidents(own_dir / NONFINITE_FILE, train.nonfinite)
        self.performance = Performance(train.batch_size, precision)
        watched = train.monitoring
        self.profiler = ProfilerWindow(watched.profile_first_step, watched.profile_num_steps, own_dir / TENSORBOARD_DIR)

    def _restore_unless_begun(self) -> RestoreReport | None:
        """Restore the fine-tuning checkpoint, unless the run already has checkpoints of its own."""
        if not self.config.train.fine_tune_checkpoint or any((self.out_dir / CHECKPOINTS_DIR).glob("*.index")):
            return None
        report = restore(self.config.train, self.detector, self.trained)
        _LOGGER.info("%s", report.sentence())
        if report.note:
            _LOGGER.warning("%s", report.note)
        return report

    def _state(self) -> dict[str, Any]:
        """Return the content of a checkpoint, under keys that do not depend on the code."""
        state = {"network": weights_by_path(self.detector.network), "optimizer": self.steps.optimizer}
        if self.steps.averaged_weights is not None:
            pairs = zip(self.steps.averaged_by_path, self.steps.averaged_weights.averages, strict=True)
            state["averaged_weights"] = dict(pairs)
        return {**state, "steps": self.steps.state}

    def _restore_state(self) -> None:
        """Restore the newest checkpoint; if there is none, save step 0 so that a rollback has a target."""
        if self.checkpoints.restore_newest() is None:
            self.checkpoints.save(self.step)
        if self._sum_over_workers(self.step) != self.step * self.strategy.num_replicas_in_sync:
            raise InputError(
                f"{self.out_dir}: the workers found different checkpoints; give all workers the same folder."
            )
        self.steps.rate_factor.assign(self.incidents.rate_factor)
        known = self.best.entries
        self.best.forget_after(self.step)
        # If entries of the best list were dropped, their weights are gone: evaluate this step again if it is due.
        self.history.forget_after(self.step if self.best.entries == known else self.step - 1)
        self.train_iterator = iter(self.strategy.distribute_datasets_from_function(self._build_dataset))

    def _build_dataset(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Build the input of one pipeline, starting at the current step."""
        self.num_input_pipelines = context.num_input_pipelines
        return build_train_dataset(
            self.config,
            self.label_map,
            self.train_files,
            batch_size=self.batch_size,
            input_context=context,
            start_step=self.step,
            servers=self.data_servers,
        )

    def _sum_over_workers(self, number: int) -> int:
        """Return the sum over all replicas; every worker has to call this."""
        if not self.has_several_workers:
            return number * self.strategy.num_replicas_in_sync
        numbers = self.strategy.run(lambda: tf.constant(number, tf.int64))
        return int(self.strategy.reduce("SUM", numbers, axis=None))

    def _log_start(self) -> None:
        if self.step:
            _LOGGER.info("Resuming training from step %d in %s.", self.step, self.out_dir)
        _LOGGER.info(
            "Training %s: %d parameters, %s, %d classes, batch %d, %d steps.",
            self.detector.network.name,
            self.detector.network.count_params(),
            self.detector.describe(),
            self.label_map.num_classes,
            self.config.train.batch_size,
            self.config.train.num_steps,
        )
        _LOGGER.info("The first step includes the compilation, which takes up to some minutes.")

    # --- the loop -----------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return int(self.steps.optimizer.iterations.numpy())

    def run(self) -> TrainResult:
        """Train until the last step or until early stopping."""
        train, best = self.config.train, None
        with stop_on_signals(lambda: self.steps.stop.assign(True)) as stop:
            self._restore_state()
            self._log_start()
            bar = show_progress("Training", train.num_steps, unit="images", units_each=train.batch_size)
            log = TrainingLog(self.own_dir, first_step=self.step)
            watch = watched_servers(self.data_servers)
            with log as self.log, contextlib.closing(self.profiler), watch, bar as progress:
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
        is_point = self.step % self.config.evaluation_interval == 0 or self.step == self.config.train.num_steps
        return is_point and self.step > 0 and self.step not in self.history

    def _stops_early(self) -> bool:
        """Return True as soon as one worker stops: on accelerators, evaluations may differ in the last digit."""
        rule = self.config.train.early_stopping
        if rule is None or self.step not in self.history:
            return False
        is_over = self.history.evaluations_without_improvement(rule) >= rule.patience
        return self._sum_over_workers(int(is_over)) > 0

    def _advance(self, progress: Reporter) -> None:
        """Run steps up to the next scheduled event, at most `steps_per_call`."""
        train, step, skipped = self.config.train, self.step, self.incidents.skipped_steps
        if step in skipped:
            with self._naming_records():
                self.steps.skip(self.train_iterator)
            progress.advance()
            return
        points = [train.num_steps, step + train.steps_per_call, *(point for point in skipped if point > step)]
        points += [step + every - step % every for every in (train.checkpoint_every_n, self.config.evaluation_interval)]
        self.profiler.move_to(step)
        with self._naming_records():
            result = self.steps.run(self.train_iterator, self.profiler.limit(step, min(points) - step))
        rate = result.numbers[LEARNING_RATE]
        self.is_save_overdue = self._sum_over_workers(int(self.checkpoints.is_overdue)) > 0  # clocks of workers differ
        if not result.is_finite:
            self._roll_back(self.step, rate, progress)
            return
        if self._is_save_due() and not self.steps.are_weights_finite():  # the next step would notice, but may not come
            self._roll_back(self.step - 1, rate, progress)
            return
        self.is_stopped = result.is_stopped
        speed = self.performance.add(result.num_steps, result.seconds, result.input_seconds)
        self.log.steps(self.step, {**result.numbers, **speed})
        shown: dict[str, float | str] = {name: result.numbers[name] for name in _SHOWN}
        if self.best.best is not None and self.best.best.numbers["AP"] != NO_VALUE:
            shown["best_AP"] = self.best.best.numbers["AP"]
        shown["memory"] = format_bytes(process_bytes())
        progress.advance(result.num_steps, input_share=speed.get("input_share"), **shown)

    @contextlib.contextmanager
    def _naming_records(self) -> Iterator[None]:
        """Add the keys of the batch to the error of a record that cannot be read."""
        with lost_servers_as_input_errors(self.data_servers):
            try:
                with bad_records_as_input_errors(self.train_files):
                    yield
            except InputError as error:
                keys = self._keys_of(self.step, only_broken=True)
                raise InputError(f"{error} Records: {', '.join(keys)}." if keys else str(error)) from error

    def _keys_of(self, step: int, *, only_broken: bool = False) -> list[str]:
        """See `example_keys`."""
        return example_keys(
            self.config,
            self.label_map,
            self.train_files,
            step=step,
            num_input_pipelines=self.num_input_pipelines,
            only_broken=only_broken,
        )

    def _roll_back(self, bad_step: int, rate: float, progress: Reporter) -> None:
        """Go back to the last checkpoint; `train.nonfinite` decides what happens to the step afterwards."""
        incident = self.incidents.add(bad_step, rate, tuple(self._keys_of(bad_step)))
        _LOGGER.warning("%s", describe_incident(incident))
        # The chief moves the checkpoint; the sum makes the other workers wait before they list any.
        if self.incidents.has_diverged() and self._sum_over_workers(int(self.checkpoints.quarantine_newest())):
            _LOGGER.warning("Non-finite again: the newest checkpoint may be corrupt and is moved to 'damaged'.")
        self._restore_state()
        self.log.forget_after(self.step)
        facts = {name: value for name, value in asdict(incident).items() if name != "step"}
        self.log.event(self.step, "rollback", bad_step=bad_step, **facts)
        progress.start_at(self.step)
        _LOGGER.warning("Rolled back to step %d; %s.", self.step, incident.consequence())

    def _is_save_due(self) -> bool:
        """Return True if a checkpoint is due. An evaluation also triggers one, before it starts."""
        is_point = self.step % self.config.train.checkpoint_every_n == 0
        return is_point or self.is_save_overdue or self._is_evaluation_due()

    def _save_if_due(self, stop: StopRequest, progress: Reporter) -> None:
        if self._is_save_due() or self._is_asked_to_end(stop):
            with self.performance.phase("checkpoints"), progress.pause():
                self.checkpoints.save(self.step)
            self.is_save_overdue = False
        self._end_if_asked(stop)

    def _end_if_asked(self, stop: StopRequest) -> None:
        """Raise Preempted if the process was asked to stop; the state up to this step is saved."""
        if self._is_asked_to_end(stop):
            number = stop.signal_number or signal.SIGTERM  # another worker received the signal
            self.log.event(self.step, "preempted", signal=int(number))
            raise Preempted(number, self.step, str(self.out_dir))

    def _is_asked_to_end(self, stop: StopRequest) -> bool:
        """Return whether to stop. Several workers agree on this inside a step, so that none waits for the others."""
        return self.is_stopped or (bool(stop) and not self.has_several_workers)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate(self, stop: StopRequest) -> CocoMetrics | None:
        """Evaluate the weights or their averages; return the metrics if they are the best so far."""
        with self.performance.phase("evaluation"), self._weights_to_evaluate():
            evaluation = self.evaluator(lambda: self._end_if_asked(stop))
            self.best.consider(self.step, evaluation, self._write_weights)
            self._log_detections()
        self.log.evaluation(self.step, evaluation)
        self.history.add(self.step, evaluation.numbers())  # last: marks the evaluation as finished
        if advice := self.performance.evaluation_advice(self.config):
            _LOGGER.warning("%s", advice)
        is_best = self.best.best is not None and self.best.best.step == self.step
        _LOGGER.info("Step %d: %s%s", self.step, evaluation.sentence(), " (best so far)" if is_best else "")
        return evaluation.metrics if is_best else None

    def _weights_to_evaluate(self) -> contextlib.AbstractContextManager[None]:
        """Load the weights that are evaluated and exported into the network for the duration of the block."""
        averages = self.steps.averaged_weights
        if averages is not None and self.config.eval.use_moving_averages:
            return averages.in_network()
        return contextlib.nullcontext()

    def _write_weights(self, path: Path) -> None:
        checkpoint = tf.train.Checkpoint(network=weights_by_path(self.detector.network))
        checkpoint.write(str(path), checkpoint_options(self.strategy))

    def _log_input(self) -> None:
        """Log augmented input images once per process."""
        if count := self.config.train.monitoring.num_images:
            with bad_records_as_input_errors(self.train_files):
                images = draw_augmented(self.config, self.label_map, self.train_files, count, step=self.step)
            self.log.images(self.step, "input", images)

    def _log_detections(self) -> None:
        watched = self.config.train.monitoring
        if watched.num_images:
            images = draw_beside_truth(
                self.evaluator.detect_batch, self.eval_dataset, self.config.model, self.label_map, watched.num_images
            )
            self.log.images(self.step, "eval", images)
        if watched.histograms:
            self.log.histograms(self.step, self.trained.by_path)

    def _finish(self, best_metrics: CocoMetrics | None, stop: StopRequest) -> TrainResult:
        """Load the best weights, write the summary and return the result."""
        train, best_step = self.config.train, self._load_best()
        if best_metrics is None or self.best.best is None or best_step != self.best.best.step:
            best_metrics = self.evaluator(lambda: self._end_if_asked(stop)).metrics  # of an earlier process, or others
        if self.step < train.num_steps and train.early_stopping is not None:
            self.log.event(self.step, "stopped early", **asdict(train.early_stopping))
        result = TrainResult(
            detector=self._for_export(),
            config=self.config,
            best=best_metrics,
            best_step=best_step,
            num_steps=self.step,
            stopped_early=self.step < train.num_steps,
            performance=self.performance.summary(),
            num_boxes_dropped=int(self.steps.num_boxes_dropped.numpy()),
            num_incidents=len(self.incidents),
            trained=self.trained.parts,
        )
        if result.num_boxes_dropped:
            _LOGGER.warning(
                "%d times a box was dropped from a training image, smallest first, because "
                "train_input.max_number_of_boxes is %d.",
                result.num_boxes_dropped,
                self.config.train_input.max_number_of_boxes,
            )
        write_text_file(self.own_dir / SUMMARY_FILE, to_strict_json(result.summary(), indent=1))
        how = "Stopped early at" if result.stopped_early else "Trained"
        _LOGGER.info("%s step %d. %s", how, result.num_steps, result.performance.paragraph())
        _LOGGER.info("Best: AP %.3f, AP50 %.3f at step %d.", result.best.AP, result.best.AP50, result.best_step)
        return result

    def _load_best(self) -> int:
        """Load the weights of the best evaluation, or of the next best one or the last checkpoint if a file is damaged.

        Returns:
            The step of these weights.
        """
        weights = tf.train.Checkpoint(network=weights_by_path(self.detector.network))
        for entry in self.best.entries:
            try:
                weights.read(str(entry.path)).assert_existing_objects_matched()
            except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:  # TensorFlow raises all of them
                cause = " ".join(str(error).split())[:200]
                _LOGGER.warning("%s: cannot be read (%s); the next best weights are used.", entry.path, cause)
            else:
                return entry.step
        self.checkpoints.restore_newest()
        averages = self.steps.averaged_weights
        if averages is not None and self.config.eval.use_moving_averages:
            averages.assign_to_variables()
        return self.step

    def _for_export(self) -> Detector:
        """Return a float32 detector on one device, with the weights of the network."""
        if self.performance.precision == "float32" and self.strategy.num_replicas_in_sync == 1:
            return self.detector
        detector = build_detector(self.config.model, self.label_map)
        trained = variables_by_path(self.detector.network)
        for path, variable in variables_by_path(detector.network).items():
            variable.assign(trained[path].numpy())
        return detector
