"""The training loop: several steps a host call under `tf.distribute`, evaluation inside, the best weights kept."""

import contextlib
import dataclasses
import json
import logging
import math
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, format_label_map
from detloom.schemas.text_file import write_text_file
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.checkpoints.own_checkpoint import BEST_DIR, CHECKPOINTS_DIR, weights_by_path
from detloom.trainer_module.checkpoints.restore import find_trained, restore
from detloom.trainer_module.checkpoints.restore_report import RestoreReport, write_report
from detloom.trainer_module.coco_metrics import CocoMetrics
from detloom.trainer_module.detector import Detector, build_detector
from detloom.trainer_module.evaluate import evaluate
from detloom.trainer_module.freezing import PartCounts
from detloom.trainer_module.gradients import clip_gradients, scale_bias_gradients
from detloom.trainer_module.input_pipeline import build_eval_dataset, build_train_dataset, list_shards
from detloom.trainer_module.moving_average import AveragedWeights
from detloom.trainer_module.optimizers import build_optimizer
from detloom.trainer_module.preflight import preflight
from detloom.trainer_module.progress import show_progress
from detloom.trainer_module.supported import check_trainable

CONFIG_FILE = "config.json"  # the configuration as it was run
LOG_FILE = "train_log.jsonl"  # one line a host call and an evaluation
SUMMARY_FILE = "training_summary.json"
_SUMMED = ("loss", "regularization_loss", "gradient_norm", "num_dropped")  # of a step, beside the detector's losses
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What training ended with; `detector` holds the best weights.

    Attributes:
        best: metrics on the eval split at `best_step`, of the moving average of the weights if that is what is used.
        step_seconds: median time of a training step.
        images_per_second: batch size over that time.
        seconds: wall time, evaluations included.
        num_boxes_dropped: boxes left out of training because a picture had more than `max_number_of_boxes`.
        trained: by part, what was trained.
    """

    detector: Detector
    best: CocoMetrics
    best_step: int
    num_steps: int
    step_seconds: float
    images_per_second: float
    seconds: float
    num_boxes_dropped: int
    trained: tuple[PartCounts, ...]

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        trained = [dataclasses.asdict(part) for part in self.trained]
        return {**plain, "detector": self.detector.network.name, "best": self.best.to_dict(), "trained": trained}


def build_strategy() -> tf.distribute.Strategy:
    """The first GPU, else the CPU. Several devices are not used yet, and a log line says so."""
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        _LOGGER.warning("%d GPUs are here; training uses the first alone.", len(gpus))
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


def train(
    config: TrainEvalConfig,
    label_map: LabelMap,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    out_dir: Path,
    strategy: tf.distribute.Strategy | None = None,
) -> TrainResult:
    """Train, and write checkpoints, log and settings to `out_dir`.

    It goes on from the newest checkpoint there: model, optimizer, averages, step and the best so far are restored; the
    order of the data starts anew. Without one, it starts from `train.fine_tune_checkpoint`, and writes a report of what
    was restored, or from random weights.

    Args:
        train_files, eval_files: patterns of TFRecord shards.
        strategy: of one replica.

    Raises:
        InputError: if the configuration says what is not trained yet or what `preflight` refuses, the strategy has
            several replicas, a pattern matches nothing, `out_dir` holds another run, a record cannot be used, or the
            loss stops being finite.
    """
    check_trainable(config)
    strategy = strategy or build_strategy()
    if strategy.num_replicas_in_sync != 1:  # clipping and loss would not be those of the global batch
        raise InputError(f"strategy: got {strategy.num_replicas_in_sync} replicas, allowed: 1.")
    train_files, eval_files = list_shards(train_files), list_shards(eval_files)
    settings = {CONFIG_FILE: to_canonical_json(config), LABEL_MAP_FILE: format_label_map(label_map)}
    _refuse_another_run(settings, out_dir)
    loop = _Loop(config, label_map, train_files, eval_files, out_dir, strategy)
    _write_settings(settings, out_dir)  # only now: what `_Loop` refuses can be set right in the same folder
    if loop.restored:
        write_report(loop.restored, out_dir)
    return loop.run()


def _refuse_another_run(settings: dict[str, str], out_dir: Path) -> None:
    """Its weights would be taken for ours."""
    for name, text in settings.items():
        path = out_dir / name
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            raise InputError(f"{path}: another run stands here, with other settings; train into another folder.")


def _write_settings(settings: dict[str, str], out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, text in settings.items():
        write_text_file(out_dir / name, text)


@contextlib.contextmanager
def _reading(files: Sequence[str]) -> Iterator[None]:
    """Turn the error of a record that cannot be used into one sentence that names its split's folder."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        if "IteratorGetNext" not in error.message:  # not from reading a record: our mistake
            raise
        cause = " ".join(re.sub(r"\{\{[^}]*\}\}|\[\[.*", "", error.message, flags=re.DOTALL).split())
        raise InputError(f"{Path(files[0]).parent}: a record cannot be used: {cause}") from error


class _Loop:
    """The state of one training run."""

    def __init__(
        self,
        config: TrainEvalConfig,
        label_map: LabelMap,
        train_files: Sequence[str],
        eval_files: Sequence[str],
        out_dir: Path,
        strategy: tf.distribute.Strategy,
    ) -> None:
        self.config, self.strategy = config, strategy
        self.train_files, self.eval_files = train_files, eval_files
        keras.utils.set_random_seed(config.train.seed)
        with strategy.scope():
            self.detector = build_detector(config.model, label_map)
        for warning in preflight(config, label_map, self.detector, train_files):
            _LOGGER.warning("%s", warning)
        self.trained = find_trained(config.train, self.detector)
        _LOGGER.info("%s", self.trained.sentence())
        self.restored = self._restore_unless_begun(out_dir)
        with strategy.scope():  # after restoring: averages start at the weights
            self.optimizer = build_optimizer(config.train.optimizer)
            self.optimizer.build(self.trained.variables)
            average = config.train.moving_average
            self.averaged_weights = AveragedWeights(average, self.trained.variables) if average else None
            self.best_value = tf.Variable(-math.inf, dtype=tf.float64, trainable=False)
            self.best_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.eval_dataset = build_eval_dataset(config, label_map, eval_files, batch_size=config.eval.batch_size)
        self.train_iterator = iter(self._distribute(label_map))
        self.detect = tf.function(self.detector.detect, reduce_retracing=True)
        self.train_steps = tf.function(self._train_steps)
        checkpoint = tf.train.Checkpoint(
            network=weights_by_path(self.detector.network),
            optimizer=self.optimizer,
            best_value=self.best_value,
            best_step=self.best_step,
            **self._averages_by_path(),
        )
        self.checkpoints = tf.train.CheckpointManager(
            checkpoint,
            str(out_dir / CHECKPOINTS_DIR),
            max_to_keep=2,
            keep_checkpoint_every_n_hours=config.train.keep_checkpoint_every_n_hours,
        )
        self.best_checkpoint = tf.train.Checkpoint(network=weights_by_path(self.detector.network))
        self.best_dir = out_dir / BEST_DIR
        self.log_path = out_dir / LOG_FILE
        self.summaries = tf.summary.create_file_writer(str(out_dir / "tensorboard"))
        self.step_seconds: list[float] = []
        self.num_boxes_dropped = 0

    def _distribute(self, label_map: LabelMap) -> Any:
        def per_replica(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batch_size = context.get_per_replica_batch_size(self.config.train.batch_size)
            return build_train_dataset(
                self.config, label_map, self.train_files, batch_size=batch_size, input_context=context
            )

        return self.strategy.distribute_datasets_from_function(per_replica)

    def _restore_unless_begun(self, out_dir: Path) -> RestoreReport | None:
        """Fine-tuning starts from other weights once; a run that goes on has its own."""
        if not self.config.train.fine_tune_checkpoint or tf.train.latest_checkpoint(str(out_dir / CHECKPOINTS_DIR)):
            return None
        report = restore(self.config.train, self.detector, self.trained)
        _LOGGER.info("%s", report.sentence())
        if report.note:
            _LOGGER.warning("%s", report.note)
        return report

    def _go_on(self) -> bool:
        """Take up the newest checkpoint of this run, if there is one.

        Raises:
            InputError: if it lacks anything that is trained, or cannot be read.
        """
        latest = self.checkpoints.latest_checkpoint
        if not latest:
            return False
        try:
            self.checkpoints.checkpoint.restore(latest).assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            cause = " ".join(str(error).split())
            raise InputError(
                f"{latest}: this run cannot go on from it ({cause}); train into another folder, with "
                "train.fine_tune_checkpoint set to this one to keep its weights."
            ) from error
        return True

    def _averages_by_path(self) -> dict[str, dict[str, tf.Variable]]:
        if self.averaged_weights is None:
            return {}
        pairs = zip(self.trained.by_path, self.averaged_weights.averages, strict=True)
        return {"averaged_weights": dict(pairs)}

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def run(self) -> TrainResult:
        config, every, started = self.config.train, self.config.eval.evaluate_every, time.monotonic()
        if self._go_on():
            _LOGGER.info("Training goes on from step %d (%s).", self.step, self.checkpoints.latest_checkpoint)
        _LOGGER.info(
            "Training %s: %d parameters, %s, %d classes, batch %d, %d steps.",
            self.detector.network.name,
            self.detector.network.count_params(),
            self.detector.describe(),
            self.detector.label_map.num_classes,
            config.batch_size,
            config.num_steps,
        )
        best: CocoMetrics | None = None
        with show_progress("Training", config.num_steps, unit="images", units_each=config.batch_size) as progress:
            progress.start_at(self.step)
            while self.step < config.num_steps:
                count = min(config.steps_per_call, every - self.step % every, config.num_steps - self.step)
                losses = self._call(count)
                progress.advance(count, **losses)
                if self.step % every == 0 or self.step == config.num_steps:
                    best = self._evaluate() or best
                    self._save()
        self.best_checkpoint.read(self._best_path()).assert_existing_objects_matched()
        if best is None:  # it was found by an earlier call
            best = self._measure()
        return self._result(best, time.monotonic() - started)

    def _best_path(self) -> str:
        return str(self.best_dir / f"ckpt-{int(self.best_step.numpy())}")

    def _save(self) -> None:
        """The checkpoint names the step of the best weights; weights that it no longer names go after it is written."""
        self.checkpoints.save()
        for file in self.best_dir.glob("ckpt-*"):
            if not file.name.startswith(Path(self._best_path()).name + "."):
                file.unlink()

    def _call(self, count: int) -> dict[str, float]:
        """`count` steps; means over them of the losses and the gradients' norm, and the learning rate."""
        before = time.monotonic()
        with _reading(self.train_files):
            outputs = self.train_steps(self.train_iterator, tf.constant(count))
        sums = {name: float(value) for name, value in outputs.items()}
        self.step_seconds.append((time.monotonic() - before) / count)
        self.num_boxes_dropped += int(sums.pop("num_dropped"))
        numbers = {name: value / count for name, value in sums.items()}
        numbers["learning_rate"] = float(self.optimizer.learning_rate)
        if not math.isfinite(numbers["loss"]):
            raise InputError(
                f"The training loss became {numbers['loss']} between steps {self.step - count} and {self.step} at a "
                f"learning rate of {numbers['learning_rate']:.3g}; lower train.optimizer.learning_rate, warm up "
                "for longer, or set train.gradient_clipping."
            )
        self._log("train", numbers)
        return numbers

    def _train_steps(self, iterator: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        sums = dict.fromkeys((*_SUMMED, *self.detector.loss_names), tf.constant(0.0))
        for _ in tf.range(count):
            per_replica = self.strategy.run(self._replica_step, args=(next(iterator),))
            step = {name: self.strategy.reduce("SUM", value, axis=None) for name, value in per_replica.items()}
            sums = {name: sums[name] + step[name] for name in sums}
        return sums

    def _replica_step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One step; with one replica its losses and gradients are those of the batch."""
        config, variables = self.config.train, self.trained.variables
        values = [variable.value for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)  # alone: what leads only to frozen variables costs nothing
            parts = self.detector.losses(batch, training=True)
            penalties = self.detector.network.losses if config.add_regularization_loss else []
            parts["regularization_loss"] = tf.add_n([tf.zeros([]), *penalties])
            loss = tf.add_n(list(parts.values()))
        gradients = tape.gradient(loss, values)
        gradients = scale_bias_gradients(gradients, variables, config.bias_grad_multiplier)
        gradients, norm = clip_gradients(config.gradient_clipping, gradients)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if self.averaged_weights is not None:
            self.averaged_weights.update(self.optimizer.iterations)
        num_dropped = tf.cast(tf.reduce_sum(batch["num_dropped"]), tf.float32)
        return {"loss": loss, **parts, "gradient_norm": norm, "num_dropped": num_dropped}

    def _evaluate(self) -> CocoMetrics | None:
        """Evaluate the weights, or their average; the best so far are kept, and then the metrics returned."""
        with self._weights_to_evaluate():
            metrics = self._measure()
            value = metrics.value_of(self.config.eval.best_metric)
            is_best = value >= float(self.best_value.numpy())  # of equals the one that trained longer
            if is_best:
                self.best_value.assign(value)
                self.best_step.assign(self.step)
                self.best_checkpoint.write(self._best_path())
        self._log("eval", {name: metrics.value_of(name) for name in ("AP", "AP50", "AP75", "AR100")})
        note = " (best so far)" if is_best else ""
        _LOGGER.info("Step %d, eval split: AP %.3f, AP50 %.3f%s", self.step, metrics.AP, metrics.AP50, note)
        return metrics if is_best else None

    def _weights_to_evaluate(self) -> contextlib.AbstractContextManager[None]:
        """While it is open, the network holds the weights that are evaluated and exported."""
        if self.averaged_weights is not None and self.config.eval.use_moving_averages:
            return self.averaged_weights.in_network()
        return contextlib.nullcontext()

    def _measure(self) -> CocoMetrics:
        """Metrics on the eval split of the weights that are in the network now."""
        with _reading(self.eval_files):
            return evaluate(self.detect, self.eval_dataset, self.detector.label_map)

    def _log(self, kind: str, numbers: dict[str, float]) -> None:
        with self.log_path.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"kind": kind, "step": self.step, **numbers}) + "\n")
        with self.summaries.as_default(step=self.step):
            for name, value in numbers.items():
                tf.summary.scalar(f"{kind}/{name}", value)

    def _result(self, best: CocoMetrics, seconds: float) -> TrainResult:
        step_seconds = statistics.median(self.step_seconds) if self.step_seconds else 0.0
        result = TrainResult(
            detector=self.detector,
            best=best,
            best_step=int(self.best_step.numpy()),
            num_steps=self.step,
            step_seconds=step_seconds,
            images_per_second=self.config.train.batch_size / step_seconds if step_seconds else 0.0,
            seconds=seconds,
            num_boxes_dropped=self.num_boxes_dropped,
            trained=self.trained.parts,
        )
        if self.num_boxes_dropped:
            _LOGGER.warning(
                "%d times a box was left out of a training picture, the smallest first: "
                "train_input.max_number_of_boxes is %d.",
                self.num_boxes_dropped,
                self.config.train_input.max_number_of_boxes,
            )
        self.log_path.with_name(SUMMARY_FILE).write_text(json.dumps(result.summary(), indent=1), encoding="utf-8")
        _LOGGER.info(
            "Trained %d steps in %.0f s: median step %.0f ms, %.1f images/s; best AP %.3f, AP50 %.3f at step %d.",
            result.num_steps,
            seconds,
            1000 * step_seconds,
            result.images_per_second,
            best.AP,
            best.AP50,
            result.best_step,
        )
        return result
