"""The overfit test: can this detector learn a few pictures by heart? If not, no long training will help.

Pictures, label map, resizing, targets, losses, gradients, post-processing and metrics have to agree for it. It trains
without augmentation on the pictures that it is measured on, with a schedule of its own: what it says is whether all of
that fits together, not whether the configuration's schedule is good.
"""

import logging
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.config import Monitoring, TrainEvalConfig
from detloom.schemas.label_map import LabelMap
from detloom.schemas.optimizer_config import AdamOptimizer, ClipByGlobalNorm, CosineDecayLearningRate
from detloom.trainer_module.checkpoints.restore import find_trained, restore
from detloom.trainer_module.detector import Detector, build_detector
from detloom.trainer_module.evaluate import Evaluation, Evaluator, as_training_batch, naming_bad_records
from detloom.trainer_module.freezing import TrainedVariables
from detloom.trainer_module.input_pipeline import build_eval_dataset, build_train_dataset
from detloom.trainer_module.optimizers import build_optimizer
from detloom.trainer_module.precision import network_precision, refuse_without_accelerator
from detloom.trainer_module.preflight import preflight
from detloom.trainer_module.preprocess import network_hw
from detloom.trainer_module.self_test_pictures import boxes_of, first_with_boxes, make_pictures
from detloom.trainer_module.train_step import TrainSteps

PASS_AP50 = 0.9
_BATCH_SIZE = 8
_STEPS_A_CALL = 10
_EVALUATE_EVERY = 40
_MOMENTUM = 0.9  # of batch norm's statistics: those of real trainings are still what they began with after these steps
_SMALL_BOX_PX = 8  # at the network's input; the finest stride of its anchors is seldom below
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class SelfTestResult:
    """What came of it.

    Attributes:
        loss_curve: (step, loss), means over a call.
        restored_share: of the parameters, from the fine-tuning checkpoint; None without one.
        num_boxes_by_class: in the pictures, without crowds.
        box_sides_px: 10th, 50th and 90th percentile of the boxes' shorter sides, at the network's input.
        to_look_at: sentences; empty if it passed.
    """

    passed: bool
    evaluation: Evaluation
    num_steps: int
    seconds: float
    loss_curve: tuple[tuple[int, float], ...]
    restored_share: float | None
    num_boxes_by_class: dict[str, int]
    box_sides_px: tuple[float, float, float]
    to_look_at: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people."""
        verdict = "passed" if self.passed else "FAILED"
        metrics, (low, median, high) = self.evaluation.metrics, self.box_sides_px
        curve = ", ".join(f"{loss:.3g} at {step}" for step, loss in _thinned(self.loss_curve))
        boxes = ", ".join(f"{name} {count}" for name, count in self.num_boxes_by_class.items())
        restored = "nothing" if self.restored_share is None else f"{self.restored_share:.1%} of the parameters"
        return [
            f"Self-test {verdict}: AP50 {metrics.AP50:.3f} on the {metrics.num_images} pictures that it was trained on "
            f"(needed: above {PASS_AP50}), after {self.num_steps} steps in {self.seconds:.0f} s.",
            f"  loss      {curve}",
            f"  restored  {restored}",
            f"  boxes     {boxes}",
            f"  box size  shorter side {low:.0f}, {median:.0f}, {high:.0f} px at the network's input (10th, 50th, 90th "
            "percentile)",
            *(f"  look at   {sentence}" for sentence in self.to_look_at),
        ]


def run_self_test(
    config: TrainEvalConfig,
    label_map: LabelMap,
    files: Sequence[str] = (),
    *,
    learning_rate: float = 1e-3,
    max_steps: int = 480,
    max_seconds: float = 600.0,
) -> SelfTestResult:
    """Train on 16 pictures until AP50 on them is above 0.9, or steps or time are over.

    Args:
        files: shards to take the pictures from, the first that have boxes; without any, pictures are made.

    Raises:
        InputError: as training, for what its preflight refuses, and if no picture has a box.
    """
    started = time.monotonic()
    records = (
        first_with_boxes(files) if files else list(make_pictures(label_map, network_hw(config.model.image_resizer)))
    )
    with tempfile.TemporaryDirectory(prefix="detloom-self-test-") as folder:
        file = str(Path(folder) / "pictures")
        with tf.io.TFRecordWriter(file) as writer:
            for record in records:
                writer.write(record)
        test = _SelfTest(_overfit_config(config, learning_rate, max_steps, len(records)), label_map, file)
        evaluation, ended = test.train(max_steps, started + max_seconds)
        facts = _Facts(records, label_map, config)
        passed = evaluation.metrics.AP50 > PASS_AP50
        to_look_at = () if passed else tuple(_to_look_at(test, evaluation, facts, ended))
    return SelfTestResult(
        passed=passed,
        evaluation=evaluation,
        num_steps=test.num_steps,
        seconds=time.monotonic() - started,
        loss_curve=tuple(test.loss_curve),
        restored_share=test.restored_share,
        num_boxes_by_class=facts.num_boxes_by_class,
        box_sides_px=facts.box_sides_px,
        to_look_at=to_look_at,
    )


def _overfit_config(
    config: TrainEvalConfig, learning_rate: float, max_steps: int, num_pictures: int
) -> TrainEvalConfig:
    """The same detector, precision and fine-tuning; all else as the test wants it."""
    rate = CosineDecayLearningRate(
        learning_rate_base=learning_rate,
        total_steps=max_steps,
        warmup_learning_rate=0.1 * learning_rate,
        warmup_steps=min(20, max_steps // 4),
    )
    train = replace(
        config.train,
        num_steps=max_steps,
        optimizer=AdamOptimizer(learning_rate=rate),
        batch_size=min(_BATCH_SIZE, num_pictures),
        gradient_accumulation_steps=1,
        learning_rate_batch_size=None,
        scale_learning_rate=False,
        augmentations=(),
        last_steps_without_mixing=0,
        gradient_clipping=ClipByGlobalNorm(norm=10.0),
        moving_average=None,
        early_stopping=None,
        monitoring=Monitoring(),
    )
    return replace(
        config,
        train=train,
        eval=replace(config.eval, batch_size=_BATCH_SIZE, use_moving_averages=False, best_metric="AP"),
        train_input=replace(config.train_input, shuffle=True, sample_1_of_n_examples=1, class_balance=0.0),
        eval_input=replace(config.eval_input, sample_1_of_n_examples=1),
    )


class _SelfTest:
    """A detector in training on one file."""

    def __init__(self, config: TrainEvalConfig, label_map: LabelMap, file: str) -> None:
        self._config, self._files = config, [file]
        self.num_steps, self.is_finite = 0, True
        self.loss_curve: list[tuple[int, float]] = []
        refuse_without_accelerator(config.train.precision)
        keras.utils.set_random_seed(config.train.seed)
        with network_precision(config.train.precision):
            self.detector = build_detector(config.model, label_map)
        for warning in preflight(config, label_map, self.detector, self._files):
            _LOGGER.info("%s", warning)
        self.trained: TrainedVariables = find_trained(config.train, self.detector)
        self.restored_share: float | None = None
        if config.train.fine_tune_checkpoint:
            self.restored_share = restore(config.train, self.detector, self.trained).share
        _hurry_batch_norm(self.detector)
        optimizer = build_optimizer(config.train.optimizer)
        optimizer.build(self.trained.variables)
        strategy = tf.distribute.get_strategy()
        self._steps = TrainSteps(config.train, self.detector, self.trained, optimizer, None, strategy)
        batches = build_train_dataset(config, label_map, self._files, batch_size=config.train.batch_size)
        self._iterator = iter(batches)
        pictures = build_eval_dataset(config, label_map, self._files, batch_size=config.eval.batch_size)
        self._pictures = pictures
        self._evaluate = Evaluator(self.detector, pictures, self._files, with_losses=False)

    def train(self, max_steps: int, until: float) -> tuple[Evaluation, str]:
        """The last evaluation, and why it was the last: "learned", "steps", "time" or "not finite"."""
        while True:
            self._take_steps(min(_EVALUATE_EVERY, max_steps - self.num_steps))
            evaluation = self._evaluate()
            _LOGGER.info("Self-test, step %d: %s", self.num_steps, evaluation.sentence())
            if evaluation.metrics.AP50 > PASS_AP50:
                return evaluation, "learned"
            if not self.is_finite:
                return evaluation, "not finite"
            if self.num_steps >= max_steps:
                return evaluation, "steps"
            if time.monotonic() > until:
                return evaluation, "time"

    def _take_steps(self, count: int) -> None:
        goal = self.num_steps + count
        while self.num_steps < goal and self.is_finite:
            with naming_bad_records(self._files):
                result = self._steps.run(self._iterator, min(_STEPS_A_CALL, goal - self.num_steps))
            self.num_steps += result.num_steps
            self.is_finite = result.is_finite
            self.loss_curve.append((self.num_steps, result.numbers["loss"]))

    def count_unmatched(self) -> int:
        """Boxes of which training learns nothing, since no anchor or cell is theirs even if they are alone."""
        num_unmatched = 0
        for batch in self._pictures:
            seen = as_training_batch(batch)
            for picture, place in np.argwhere(seen["class_indices"].numpy() >= 0):
                one = {
                    name: seen[name][picture : picture + 1, place : place + 1]
                    for name in ("boxes_yxyx_rel", "class_indices", "box_weights")
                }
                num_unmatched += float(self.detector.count_matches(one)) == 0
        return num_unmatched


def _hurry_batch_norm(detector: Detector) -> None:
    for layer in detector.network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = min(layer.momentum, _MOMENTUM)


# --- what it says -----------------------------------------------------------------------------------------------------


class _Facts:
    """About the pictures."""

    def __init__(self, records: Sequence[bytes], label_map: LabelMap, config: TrainEvalConfig) -> None:
        found = [boxes_of(record) for record in records]
        boxes_yxyx_rel = np.concatenate([boxes for boxes, _ in found])
        counts = Counter(int(class_id) for _, class_ids in found for class_id in class_ids)
        self.num_boxes_by_class = {
            name: counts[class_id] for class_id, name in label_map.names_by_id if counts[class_id]
        }
        # Of a picture that keeps its shape it is a little less.
        sides_px = (boxes_yxyx_rel[:, 2:] - boxes_yxyx_rel[:, :2]) * network_hw(config.model.image_resizer)
        shorter_px = sides_px.min(axis=1)
        low, median, high = np.percentile(shorter_px, [10, 50, 90]).tolist()
        self.box_sides_px = (low, median, high)
        self.num_boxes, self.num_small = len(shorter_px), int((shorter_px < _SMALL_BOX_PX).sum())
        self.max_boxes = max(len(boxes) for boxes, _ in found)
        self.max_allowed = config.train_input.max_number_of_boxes


def _to_look_at(test: _SelfTest, evaluation: Evaluation, facts: _Facts, ended: str) -> Iterator[str]:
    curve = test.loss_curve
    first, last = curve[0][1], curve[-1][1]
    num_trained = sum(part.num_trained_parameters for part in test.trained.parts)
    num_parameters = test.detector.network.count_params()
    if ended == "not finite":
        yield f"the loss, which became {last} at step {test.num_steps}: box sizes, the checkpoint, train.precision."
    elif ended == "time" and last < first:
        yield (
            f"the time, which was over while the loss still fell ({first:.3g} to {last:.3g}): run it on a faster or "
            "less busy device, or with a smaller model.image_resizer."
        )
        return
    elif not last < 0.5 * first:
        yield (
            f"the loss, which did not fall ({first:.3g} to {last:.3g}): {num_trained} of {num_parameters} parameters "
            "are trained (train.freeze_variables, train.update_trainable_variables)."
        )
    else:
        yield (
            f"what lies behind the loss, which fell ({first:.3g} to {last:.3g}): model.post_processing, boxes that are "
            "not where the pictures show them (detloom inspect), pictures that are alike and labelled otherwise."
        )
    num_unmatched = test.count_unmatched()
    if num_unmatched:
        yield (
            f"anchors: {num_unmatched} of {facts.num_boxes} boxes match none of them, so that they are not learned "
            "(model.anchor_generator, model.matcher; detloom validate --config suggests anchors)."
        )
    weak = [row.name for row in evaluation.metrics.per_class if 0 <= row.AP50 < 0.5]
    if weak:
        yield f"the label map and the boxes of {', '.join(weak[:10])}, which it did not learn."
    if facts.num_small:
        yield (
            f"box sizes: {facts.num_small} of {facts.num_boxes} are below {_SMALL_BOX_PX} px at the network's input; "
            "enlarge model.image_resizer."
        )
    if facts.max_boxes > facts.max_allowed:
        yield f"train_input.max_number_of_boxes, which is {facts.max_allowed}: a picture has {facts.max_boxes} boxes."
    if test.restored_share is not None and test.restored_share < 1:
        yield f"the checkpoint: {test.restored_share:.1%} of the parameters were restored (detloom restore-report)."


def _thinned(curve: Sequence[tuple[int, float]], count: int = 8) -> list[tuple[int, float]]:
    places = np.unique(np.linspace(0, len(curve) - 1, count).astype(int))
    return [curve[place] for place in places]
