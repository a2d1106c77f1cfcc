"""One process of `benchmarks/accelerator.py`: its devices, its detector, and training steps on any of the devices."""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tools.device_parity import BOUNDS, BOUNDS_WITH_PROPOSALS, Bounds, arithmetic_of

from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.load_config import build_config, load_tree
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.overrides import merge, parse_set
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.runtime.numerics import check_precision, network_precision, precision_of
from detloom.trainer_module.runtime.strategies import build_strategy
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.training.step_time import generated_batches
from detloom.trainer_module.weights.restore import find_trained

NUM_CLASSES = 90
STORED_HW = (480, 640)  # of the images; those of COCO are of this size
SMALL_STORED_HW = (96, 128)
SMALL_NUM_CPUS = 2
_DEVICES_OF_PRESET = 8  # the presets' batches are for about this many devices
_KERNEL_GAIN = 2.0  # of He et al. (arXiv:1502.01852), for ReLU


class BuiltStep:
    """A training step on some devices, and the detections there.

    Attributes:
        first_seconds: time of the first step, with its compilation; 0 before it.
    """

    def __init__(self, session: "Session", strategy: tf.distribute.Strategy, precision: str, *, jit: bool) -> None:
        config = session.config
        self.count = strategy.num_replicas_in_sync
        train = replace(config.train, precision=precision, jit_compile=jit, batch_size=session.images * self.count)
        keras.utils.set_random_seed(train.seed)
        with strategy.scope():
            with network_precision(precision):
                self.detector = build_detector(config.model, session.label_map)
            trained = find_trained(train, self.detector)
        self.strategy, self._batch = strategy, session.batch
        self.first_seconds = 0.0
        self.steps = TrainSteps(train, self.detector, trained, strategy)
        rows = tf.data.Dataset.from_tensors(session.batch).repeat()  # each replica gets the same images
        self.batches = iter(strategy.distribute_datasets_from_function(lambda _: rows))

    def values(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.detector.network.variables]

    def assign(self, values: list[np.ndarray]) -> None:
        """Set weights, moving statistics and seeds to those of another object."""
        for variable, value in zip(self.detector.network.variables, values, strict=True):
            variable.assign(value)

    def numbers(self, values: list[np.ndarray]) -> dict[str, float]:
        """Return losses and gradient norms of a step from the given variables; the first call compiles the step.

        Raises:
            RuntimeError: if they are not finite.
        """
        self.assign(values)
        started = time.perf_counter()
        result = self.steps.run(self.batches, 1)
        self.first_seconds = self.first_seconds or time.perf_counter() - started
        if not result.is_finite:
            raise RuntimeError(f"the step is not finite: {result.numbers}")
        return result.numbers

    def detections(self, values: list[np.ndarray]) -> dict[str, np.ndarray]:
        self.assign(values)

        def detect(images: tf.Tensor, true_hw: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.detector.detect(self.detector.preprocessing.normalize_padded(images, true_hw), true_hw)

        arguments = self._batch[IMAGE], self._batch[TRUE_HW]
        found = tf.function(lambda *each: self.strategy.run(detect, args=each), autograph=False)(*arguments)
        return {name: self.strategy.experimental_local_results(value)[0].numpy() for name, value in found.items()}


class Session:
    """Devices and detector of a process; created before any other use of TensorFlow.

    Args:
        preset: ignored with `--small`.
        args: the options of the benchmark.
    """

    def __init__(self, preset: str, args: argparse.Namespace) -> None:
        self.preset, self.args = preset, args
        if args.small:
            (cpu,) = tf.config.list_physical_devices("CPU")
            cpus = [tf.config.LogicalDeviceConfiguration()] * SMALL_NUM_CPUS
            tf.config.set_logical_device_configuration(cpu, cpus)
        tf.config.experimental.enable_tensor_float_32_execution(not args.without_tensor_float)
        strategy = build_strategy()
        self._resolver = strategy.cluster_resolver if isinstance(strategy, tf.distribute.TPUStrategy) else None
        if self._resolver is not None:
            self._topology = tf.tpu.experimental.initialize_tpu_system(self._resolver)
        names = {kind: [each.name for each in tf.config.list_logical_devices(kind)] for kind in ("TPU", "GPU", "CPU")}
        self.kind = next(kind for kind, found in names.items() if found)
        self.devices = names[self.kind]
        self.label_map = LabelMap.from_names([f"class {number}" for number in range(NUM_CLASSES)])
        self.stored_hw = SMALL_STORED_HW if args.small else STORED_HW
        self._built: dict[bool, BuiltStep] = {}

    @cached_property
    def precision(self) -> str:
        precision = precision_of(self.config.train, on_tpu=self.kind == "TPU")
        check_precision(precision)
        return precision

    @cached_property
    def device_name(self) -> str:
        """The vendor's name of the device, or "" if it is unknown."""
        if self.kind == "TPU":
            return os.environ.get("TPU_ACCELERATOR_TYPE", "")
        gpus = tf.config.list_physical_devices("GPU") if self.kind == "GPU" else []
        return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")) if gpus else ""

    @cached_property
    def config(self) -> TrainEvalConfig:
        """The preset with the batch of one device."""
        config = _small_config() if self.args.small else find_preset(self.preset).config
        default = config.train.batch_size if self.args.small else config.train.batch_size // _DEVICES_OF_PRESET
        train = replace(
            config.train,
            batch_size=self.args.batch_size or max(default, 1),
            gradient_accumulation_steps=1,
            monitoring=replace(config.train.monitoring, gradient_norms=True),
            precision=self.args.precision or config.train.precision,
        )
        return replace(config, train=train, model=replace(config.model, num_classes=self.label_map.num_classes))

    @property
    def images(self) -> int:
        """Images of a step on each device."""
        return self.config.train.batch_size

    @cached_property
    def batch(self) -> dict[str, np.ndarray]:
        with self.generated_batches() as batches:
            return {name: value.numpy() for name, value in next(batches).items()}

    def generated_batches(self) -> AbstractContextManager[Iterator[dict[str, tf.Tensor]]]:
        """Provide training batches of generated images."""
        return generated_batches(self.config, self.label_map, self.stored_hw)

    def images_uint8(self) -> np.ndarray:
        return np.clip(np.rint(self.batch[IMAGE]), 0, 255).astype(np.uint8)

    @cached_property
    def reference(self) -> BuiltStep:
        """The step on the CPU in float32; its weights give clearly different scores."""
        built = BuiltStep(self, tf.distribute.OneDeviceStrategy("/cpu:0"), "float32", jit=False)
        _spread_scores(built.detector, self.batch)
        return built

    @cached_property
    def values(self) -> list[np.ndarray]:
        """The variables that all sides of a comparison start from."""
        return self.reference.values()

    @property
    def variants(self) -> tuple[bool, ...]:
        """Values of `jit`: without and with XLA."""
        return (False,) if self.args.without_xla else (False, True)

    def bounds(self, precision: str) -> tuple[str, Bounds]:
        """Return the arithmetic of the device with a network's precision, and the bounds for it."""
        arithmetic = arithmetic_of(self.kind, precision, has_tensor_float=not self.args.without_tensor_float)
        table = BOUNDS_WITH_PROPOSALS if isinstance(self.config.model, FasterRcnn) else BOUNDS
        return arithmetic, table[arithmetic]

    def step_on_device(self, *, jit: bool) -> BuiltStep:
        """Return the step on the first device; it is built once."""
        if jit not in self._built:
            self._built[jit] = BuiltStep(self, self.strategy(1), self.precision, jit=jit)
        return self._built[jit]

    def strategy(self, count: int) -> tf.distribute.Strategy:
        """Return a strategy for the first devices."""
        if self._resolver is not None:  # not tested on a TPU
            assignment = tf.tpu.experimental.DeviceAssignment.build(self._topology, num_replicas=count)
            return tf.distribute.TPUStrategy(self._resolver, experimental_device_assignment=assignment)
        if count == 1:
            return tf.distribute.OneDeviceStrategy(self.devices[0])
        return tf.distribute.MirroredStrategy(self.devices[:count])


def _small_config() -> TrainEvalConfig:
    """Return a configuration with one pyramid level, which XLA compiles on two CPU cores in 15 s."""
    settings = (
        "model.feature_extractor={depth_multiplier: 0.1, min_depth: 8}",
        "model.feature_extractor.neck={max_level: 3, additional_layer_depth: 160}",
        "model.anchor_generator={max_level: 3, aspect_ratios: [1.0], scales_per_octave: 1}",
        "model={image_resizer: {height: 64, width: 64}, box_predictor: {depth: 16, num_layers_before_predictor: 1}}",
        "train={batch_size: 4, augmentations: [{type: RandomHorizontalFlip}]}",
        "train_input.max_number_of_boxes=8",
    )
    tree, _ = load_tree("ssd_mobilenet_v2_fpnlite_320x320", Path())
    return build_config(merge(tree, *map(parse_set, settings)))


def _spread_scores(detector: Detector, batch: dict[str, np.ndarray]) -> None:
    """Set kernels and moving statistics so that activations vary about as much as in a trained network.

    The presets' initial kernels are small: all scores nearly tie, and rounding would change the choice of detections.
    """
    random = np.random.default_rng(0)
    for variable in detector.network.trainable_variables:
        if "kernel" in variable.path:
            is_depthwise = "depthwise" in variable.path
            inputs = np.prod(variable.shape[:2] if is_depthwise else variable.shape[:-1])
            variable.assign(random.normal(0, np.sqrt(_KERNEL_GAIN / inputs), variable.shape))
    tensors = {name: tf.constant(value) for name, value in batch.items()}
    tensors[IMAGE] = detector.preprocessing.normalize_padded(tensors[IMAGE], tensors[TRUE_HW])
    norms = [layer for layer in detector.network.layers if isinstance(layer, FusedBatchNorm)]
    before = [norm.use_moving_statistics for norm in norms]
    for norm in norms:
        norm.use_moving_statistics = False
    with keras.StatelessScope() as scope:
        detector.forward(tensors, training=True)
    for norm, value in zip(norms, before, strict=True):
        norm.use_moving_statistics = value
        for variable, smallest in ((norm.moving_mean, -np.inf), (norm.moving_variance, 0.0)):
            new, old = scope.get_current_value(variable), variable.numpy()
            if new is not None:
                variable.assign(tf.maximum((new - norm.momentum * old) / (1 - norm.momentum), smallest))
