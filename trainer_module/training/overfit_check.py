"""The overfit check: can this detector memorize a few images? If not, longer training will not help.

It tests images, label map, resizing, targets, losses, gradients, post-processing and metrics together. It trains
without augmentation on the images that it is evaluated on. Its schedule is its own: it does not judge the configured
one.
"""

import colorsys
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Monitoring, TrainEvalConfig
from detloom.schemas.model.optimizers import AdamOptimizer, ClipByGlobalNorm, CosineDecayLearningRate
from detloom.trainer_module.data.input_pipeline import build_eval_dataset, build_train_dataset
from detloom.trainer_module.data.records import ExampleFeatures, read_records
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.detectors.preprocess import network_hw
from detloom.trainer_module.evaluation.split_evaluator import (
    Evaluation,
    SplitEvaluator,
    as_training_batch,
    bad_records_as_input_errors,
)
from detloom.trainer_module.runtime.numerics import check_precision, network_precision, precision_of
from detloom.trainer_module.training.preflight import preflight
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.weights.freezing import TrainedVariables
from detloom.trainer_module.weights.restore import find_trained, restore

PASS_AP50 = 0.9
_BATCH_SIZE = 8
_STEPS_A_CALL = 10
_EVALUATE_EVERY = 40
_MOMENTUM = 0.9  # of batch norm: with the usual momentum, statistics would still be near their initial values
_SMALL_BOX_PX = 8  # at the network's input; the finest stride of its anchors is seldom below
NUM_IMAGES = 16
_MAX_SIDE_PX = 640  # of generated images
_SHOWN_LOSSES = 8
_MAX_MADE_CLASSES = 6  # distinguished by color only
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class SelfTestResult:
    """Result of the overfit check.

    Attributes:
        loss_curve: (step, loss), means over a call.
        restored_share: share of the parameters restored from the fine-tuning checkpoint; None without one.
        facts: statistics of the images.
        suggestions: likely causes, one sentence each; empty if the check passed.
    """

    passed: bool
    evaluation: Evaluation
    num_steps: int
    seconds: float
    loss_curve: tuple[tuple[int, float], ...]
    restored_share: float | None
    facts: "ImageFacts"
    suggestions: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        verdict = "passed" if self.passed else "FAILED"
        metrics, (low, median, high) = self.evaluation.metrics, self.facts.box_sides_px
        shown = np.unique(np.linspace(0, len(self.loss_curve) - 1, _SHOWN_LOSSES).astype(int))
        curve = ", ".join(f"{loss:.3g} at {step}" for step, loss in (self.loss_curve[index] for index in shown))
        boxes = ", ".join(f"{name} {count}" for name, count in self.facts.num_boxes_by_class.items())
        restored = "nothing" if self.restored_share is None else f"{self.restored_share:.1%} of the parameters"
        return [
            f"Self-test {verdict}: AP50 {metrics.AP50:.3f} on its {metrics.num_images} training images "
            f"(required: above {PASS_AP50}) after {self.num_steps} steps in {self.seconds:.0f} s.",
            f"  loss      {curve}",
            f"  restored  {restored}",
            f"  boxes     {boxes}",
            f"  box size  shorter side {low:.0f}, {median:.0f}, {high:.0f} px at the network's input (10th, 50th, 90th "
            "percentile)",
            *(f"  check     {sentence}" for sentence in self.suggestions),
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
    """Train on 16 images until AP50 on them is above 0.9, or until the step or time limit.

    Args:
        files: shards; the first images with boxes are used. Without files, images are generated.

    Raises:
        InputError: for what training's preflight rejects, and if no image has a box.
    """
    started = time.monotonic()
    records = first_with_boxes(files) if files else list(make_images(label_map, network_hw(config.model.image_resizer)))
    with tempfile.TemporaryDirectory(prefix="detloom-self-test-") as folder:
        file = str(Path(folder) / "images")
        with tf.io.TFRecordWriter(file) as writer:
            for record in records:
                writer.write(record)
        test = _SelfTest(_overfit_config(config, learning_rate, max_steps, len(records)), label_map, file)
        evaluation, ended = test.train(max_steps, started + max_seconds)
        facts = ImageFacts(records, label_map, config)
        passed = evaluation.metrics.AP50 > PASS_AP50
        suggestions = () if passed else tuple(_find_suggestions(test, evaluation, facts, ended))
    return SelfTestResult(
        passed=passed,
        evaluation=evaluation,
        num_steps=test.num_steps,
        seconds=time.monotonic() - started,
        loss_curve=tuple(test.loss_curve),
        restored_share=test.restored_share,
        facts=facts,
        suggestions=suggestions,
    )


def _overfit_config(config: TrainEvalConfig, learning_rate: float, max_steps: int, num_images: int) -> TrainEvalConfig:
    """Return the configuration of the check: detector, precision and fine-tuning are kept, the rest is replaced."""
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
        batch_size=min(_BATCH_SIZE, num_images),
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
    """A detector that trains on one file."""

    def __init__(self, config: TrainEvalConfig, label_map: LabelMap, file: str) -> None:
        self._config, self._files = config, [file]
        self.num_steps, self.is_finite = 0, True
        self.loss_curve: list[tuple[int, float]] = []
        precision = precision_of(config.train, on_tpu=False)
        check_precision(precision)
        keras.utils.set_random_seed(config.train.seed)
        with network_precision(precision):
            self.detector = build_detector(config.model, label_map)
        for warning in preflight(config, label_map, self.detector, self._files):
            _LOGGER.info("%s", warning)
        self.trained: TrainedVariables = find_trained(config.train, self.detector)
        self.restored_share: float | None = None
        if config.train.fine_tune_checkpoint:
            self.restored_share = restore(config.train, self.detector, self.trained).share
        for layer in self.detector.network.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = min(layer.momentum, _MOMENTUM)
        self._steps = TrainSteps(config.train, self.detector, self.trained, tf.distribute.get_strategy())
        batches = build_train_dataset(config, label_map, self._files, batch_size=config.train.batch_size)
        self._iterator = iter(batches)
        images = build_eval_dataset(config, label_map, self._files, batch_size=config.eval.batch_size)
        self._images = images
        self._evaluate = SplitEvaluator(self.detector, images, self._files)

    def train(self, max_steps: int, until: float) -> tuple[Evaluation, str]:
        """Return the last evaluation and the reason for stopping: "learned", "steps", "time" or "not finite"."""
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
            with bad_records_as_input_errors(self._files):
                result = self._steps.run(self._iterator, min(_STEPS_A_CALL, goal - self.num_steps))
            self.num_steps += result.num_steps
            self.is_finite = result.is_finite
            self.loss_curve.append((self.num_steps, result.numbers["loss"]))

    def count_unmatched(self) -> int:
        """Count boxes that match no anchor or cell even if they are the only box, so that they cannot be learned."""
        num_unmatched = 0
        for batch in self._images:
            seen = as_training_batch(batch)
            for image, row in np.argwhere(seen["class_indices"].numpy() >= 0):
                one = {
                    name: seen[name][image : image + 1, row : row + 1]
                    for name in self.detector.family.ground_truth_columns
                }
                counts = tf.reshape(self.detector.count_matches(one), [-1])
                num_unmatched += float(counts[0]) == 0
        return num_unmatched


# --- report -----------------------------------------------------------------------------------------------------------


class ImageFacts:
    """Statistics of the images, without crowds.

    Attributes:
        box_sides_px: 10th, 50th and 90th percentile of the boxes' shorter sides, at the network's input.
    """

    def __init__(self, records: Sequence[bytes], label_map: LabelMap, config: TrainEvalConfig) -> None:
        boxes_of_records = [boxes_of(record) for record in records]
        boxes_yxyx_rel = np.concatenate([boxes for boxes, _ in boxes_of_records])
        counts = Counter(int(class_id) for _, class_ids in boxes_of_records for class_id in class_ids)
        self.num_boxes_by_class = {
            name: counts[class_id] for class_id, name in label_map.names_by_id if counts[class_id]
        }
        # Slightly too large for images that are resized with their aspect ratio kept.
        sides_px = (boxes_yxyx_rel[:, 2:] - boxes_yxyx_rel[:, :2]) * network_hw(config.model.image_resizer)
        shorter_px = sides_px.min(axis=1)
        low, median, high = np.percentile(shorter_px, [10, 50, 90]).tolist()
        self.box_sides_px = (low, median, high)
        self.num_boxes, self.num_small = len(shorter_px), int((shorter_px < _SMALL_BOX_PX).sum())
        self.max_boxes = max(len(boxes) for boxes, _ in boxes_of_records)
        self.max_allowed = config.train_input.max_number_of_boxes


def _find_suggestions(test: _SelfTest, evaluation: Evaluation, facts: ImageFacts, ended: str) -> Iterator[str]:
    curve = test.loss_curve
    first, last = curve[0][1], curve[-1][1]
    num_trained = sum(part.num_trained_parameters for part in test.trained.parts)
    num_parameters = test.detector.network.count_params()
    if ended == "not finite":
        yield f"the loss became {last} at step {test.num_steps}: check box sizes, the checkpoint and train.precision."
    elif ended == "time" and last < first:
        yield (
            f"the time limit was reached while the loss was still falling ({first:.3g} to {last:.3g}): use a faster or "
            "less busy device, or a smaller model.image_resizer."
        )
        return
    elif not last < 0.5 * first:
        yield (
            f"the loss did not fall ({first:.3g} to {last:.3g}): {num_trained} of {num_parameters} parameters "
            "are trained (train.freeze_variables, train.update_trainable_variables)."
        )
    else:
        yield (
            f"the loss fell ({first:.3g} to {last:.3g}), so check what follows it: model.post_processing, boxes that "
            "are misplaced (detloom inspect), similar images with different labels."
        )
    num_unmatched = test.count_unmatched()
    if num_unmatched:
        yield (
            f"anchors: {num_unmatched} of {facts.num_boxes} boxes match no anchor and are not learned "
            "(model.anchor_generator, model.matcher; detloom validate --config suggests anchors)."
        )
    weak = [row.name for row in evaluation.metrics.per_class if 0 <= row.AP50 < 0.5]
    if weak:
        yield f"the label map and the boxes of {', '.join(weak[:10])}: these classes were not learned."
    if facts.num_small:
        yield (
            f"box sizes: {facts.num_small} of {facts.num_boxes} are below {_SMALL_BOX_PX} px in the network input; "
            "enlarge model.image_resizer."
        )
    if facts.max_boxes > facts.max_allowed:
        yield f"train_input.max_number_of_boxes is {facts.max_allowed}, but an image has {facts.max_boxes} boxes."
    if test.restored_share is not None and test.restored_share < 1:
        yield f"the checkpoint: {test.restored_share:.1%} of the parameters were restored (detloom restore-report)."


def first_with_boxes(files: Sequence[str]) -> list[bytes]:
    """Return the first 16 records that have a box."""
    records: list[bytes] = []
    for serialized in read_records(files).as_numpy_iterator():
        if boxes_of(serialized)[0].size:
            records.append(serialized)
        if len(records) == NUM_IMAGES:
            return records
    if not records:
        raise InputError(f"{Path(files[0]).parent}: got no image with a box, required: at least one for the self-test.")
    return records


def make_images(label_map: LabelMap, image_hw: tuple[int, int], *, as_photographs: bool = False) -> Iterator[bytes]:
    """Generate serialized examples: one to three rectangles on noise, one color for each of the first few classes.

    Args:
        as_photographs: JPEG of this size, which takes about as long to decode as a photograph. Otherwise PNG, whose
            sides have at most 640 pixels.
    """
    random = np.random.default_rng(0)
    scale = 1.0 if as_photographs else min(1.0, _MAX_SIDE_PX / max(image_hw))
    height, width = (round(side * scale) for side in image_hw)
    num_classes = min(label_map.num_classes, _MAX_MADE_CLASSES)
    next_class = 0
    for number in range(NUM_IMAGES):
        pixels = random.integers(96, 160, (height, width, 3)).astype(np.uint8)
        boxes, class_ids = [], []
        for quarter in random.permutation(4)[: 1 + number % 3]:
            size_yx = random.uniform(0.25, 0.45, 2)  # a quarter of the image is 0.5 wide
            begin_yx = np.array(divmod(int(quarter), 2)) / 2 + random.uniform(0, 0.5 - size_yx)
            (top, left), (bottom, right) = (
                np.round(corner * [height, width]).astype(int) for corner in (begin_yx, begin_yx + size_yx)
            )
            rgb = colorsys.hsv_to_rgb(next_class / num_classes, 1, 0.9)
            pixels[top:bottom, left:right] = np.round(np.multiply(rgb, 255))
            boxes.append((top / height, left / width, bottom / height, right / width))
            class_ids.append(label_map.class_ids[next_class])
            next_class = (next_class + 1) % num_classes
        encoded = tf.io.encode_jpeg(pixels, quality=90) if as_photographs else tf.io.encode_png(pixels)
        yield _make_example(f"made-{number}", encoded.numpy(), boxes, class_ids)


def _make_example(name: str, image: bytes, boxes_yxyx_rel: Sequence[Any], class_ids: Sequence[int]) -> bytes:
    example = tf.train.Example()
    feature = example.features.feature
    feature[keys.IMAGE_ENCODED].bytes_list.value.append(image)
    feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(name.encode())
    for side, key in enumerate(keys.BOX_KEYS_YXYX):
        feature[key].float_list.value.extend(box[side] for box in boxes_yxyx_rel)
    feature[keys.CLASS_ID].int64_list.value.extend(class_ids)
    return bytes(example.SerializeToString(deterministic=True))


def boxes_of(serialized: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes [N, 4] and class ids [N] of a record, without crowds; inconsistent columns give no boxes."""
    features = ExampleFeatures(serialized)
    columns = [features.floats(key).astype(np.float64) for key in keys.BOX_KEYS_YXYX]
    class_ids, crowds = features.ints(keys.CLASS_ID), features.ints(keys.IS_CROWD) > 0
    if any(len(column) != len(class_ids) for column in columns):
        return np.zeros([0, 4]), np.zeros([0], int)
    kept = ~crowds if len(crowds) == len(class_ids) else np.ones(len(class_ids), bool)
    return np.stack(columns, axis=-1).reshape(-1, 4)[kept], class_ids[kept]
