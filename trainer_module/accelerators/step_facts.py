"""The costs of a training step on accelerators that this machine does not have.

The step of one device is converted to HLO, on a CPU and without running it. Its time is bounded by the roofline model
(Williams et al., 2009): the arithmetic at the peak rate, or the memory traffic, whichever takes longer.
"""

import json
from dataclasses import asdict, dataclass, replace

import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.accelerators.chips import Accelerator, Chip, parse_accelerator
from detloom.trainer_module.accelerators.hlo import HloFacts, facts_of_hlo
from detloom.trainer_module.data.input_pipeline import per_replica_batch_size
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.runtime.numerics import network_precision, precision_of
from detloom.trainer_module.training.memory_estimate import estimate_memory
from detloom.trainer_module.training.optimizers import AveragedWeights, build_optimizer
from detloom.trainer_module.training.step import TrainSteps
from detloom.trainer_module.training.step_time import measure_input_rate
from detloom.trainer_module.weights.freezing import choose_trained


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Costs on one device.

    Attributes:
        precision: of the network.
        images: of a step, on this device.
        num_parts: parts of these images that are computed one after the other.
        part: costs of a part: forward and backward pass and the update.
        detection: costs of the detections in one image.
        gradient_bytes: that a device exchanges with the others in each step.
        memory_bytes: of weights, gradients, optimizer and the activations of a part.
    """

    precision: str
    images: int
    num_parts: int
    part: HloFacts
    detection: HloFacts
    gradient_bytes: int
    memory_bytes: int

    def seconds(self, chip: Chip) -> float:
        """Return the shortest possible time of a step."""
        return self.num_parts * max(self._seconds_of_part(chip))

    def is_bound_by_memory(self, chip: Chip) -> bool:
        """Return True if the memory traffic takes longer than the arithmetic."""
        arithmetic, traffic = self._seconds_of_part(chip)
        return traffic > arithmetic

    def images_per_second(self, accelerator: Accelerator) -> float:
        """Return the largest possible rate of all devices together; their exchange of gradients is not included."""
        return self.images * accelerator.num_devices / self.seconds(accelerator.chip)

    def _seconds_of_part(self, chip: Chip) -> tuple[float, float]:
        peak = chip.float32_flops if self.precision == "float32" else chip.bfloat16_flops
        flops = self.part.padded_flops if chip.kind == "TPU" else self.part.flops
        return flops / peak, self.part.moved_bytes / chip.memory_bytes_per_second


_STORED_HW = (480, 640)  # of the images for measuring the input; those of COCO are of this size


def examine_as_json(config_json: str, accelerator_name: str, num_classes: str) -> str:
    """Return the numbers of `detloom doctor --accelerator`, for a process of its own."""
    config, accelerator = from_json(TrainEvalConfig, config_json), parse_accelerator(accelerator_name)
    label_map = label_map_of(config, int(num_classes))
    facts = examine_step(config, label_map, accelerator.num_devices, on_tpu=accelerator.chip.kind == "TPU")
    is_measured = not set(truth.OPTIONAL_COLUMNS) & set(family_of(config.model).ground_truth_columns)
    return json.dumps(
        {
            "precision": facts.precision,
            "images": facts.images,
            "part": asdict(facts.part),
            "detection": asdict(facts.detection),
            "wasted_share": facts.part.wasted_share,
            "gradient_bytes": facts.gradient_bytes,
            "memory_bytes": facts.memory_bytes,
            "seconds": facts.seconds(accelerator.chip),
            "is_bound_by_memory": facts.is_bound_by_memory(accelerator.chip),
            "images_per_second": facts.images_per_second(accelerator),
            "input_images_per_second": measure_input_rate(config, label_map, _STORED_HW) if is_measured else None,
        }
    )


def examine_step(config: TrainEvalConfig, label_map: LabelMap, num_devices: int, *, on_tpu: bool) -> StepFacts:
    """Convert training step and detection to HLO and return their costs.

    Raises:
        InputError: if the batch cannot be divided among the devices, or the settings contradict each other.
    """
    images = per_replica_batch_size(config, num_devices)
    num_parts = config.train.gradient_accumulation_steps
    part_size = images // num_parts
    precision = precision_of(config.train, on_tpu=on_tpu)
    train = replace(config.train, precision=precision, batch_size=part_size, gradient_accumulation_steps=1)
    one_part = replace(config, train=train)
    with network_precision(precision):
        detector = build_detector(config.model, label_map)
    trained = choose_trained(train, detector.network)
    optimizer = build_optimizer(train.optimizer)
    optimizer.build(trained.variables)
    averages = AveragedWeights(train.moving_average, trained.variables) if train.moving_average else None
    steps = TrainSteps(train, detector, trained, optimizer, averages, tf.distribute.get_strategy())
    memory = estimate_memory(
        one_part,
        detector.network,
        activations_per_image=detector.activation_bytes_per_image(),
        num_replicas=1,
        mean_record_bytes=0,
        split_bytes=0,
    )
    return StepFacts(
        precision=precision,
        images=images,
        num_parts=num_parts,
        part=facts_of_hlo(steps.hlo(training_batch_spec(one_part, detector))),
        detection=facts_of_hlo(_hlo_of_detection(detector)),
        gradient_bytes=sum(4 * variable.value.shape.num_elements() for variable in trained.variables),
        memory_bytes=memory.certain + memory.activations,
    )


def label_map_of(config: TrainEvalConfig, num_classes: int) -> LabelMap:
    """Return a label map with this number of classes, one of which is the class that has keypoints, if any."""
    names = [f"class {number}" for number in range(num_classes)]
    keypoints = family_of(config.model).keypoints
    return LabelMap.from_names([keypoints.class_name, *names[1:]] if keypoints else names)


def training_batch_spec(config: TrainEvalConfig, detector: Detector) -> dict[str, tf.TensorSpec]:
    """Return the shapes of a batch of `build_train_dataset`."""
    height, width = detector.preprocessing.network_hw
    size, rows = config.train.batch_size, config.train_input.max_number_of_boxes
    points = detector.family.keypoints
    shapes = {
        truth.BOXES: ([4], tf.float32),
        truth.CLASSES: ([], tf.int32),
        truth.WEIGHTS: ([], tf.float32),
        truth.MASKS: ([height, width], tf.uint8),
        truth.KEYPOINTS: ([len(points.names) if points else 0, 2], tf.float32),
    }
    columns = {name: shapes[name] for name in detector.family.ground_truth_columns}
    return {
        truth.IMAGE: tf.TensorSpec([size, height, width, 3], tf.as_dtype(config.train_input.image_type)),
        truth.TRUE_HW: tf.TensorSpec([size, 2], tf.int32),
        truth.NUM_DROPPED: tf.TensorSpec([size], tf.int32),
        **{name: tf.TensorSpec([size, rows, *shape], dtype) for name, (shape, dtype) in columns.items()},
    }


def _hlo_of_detection(detector: Detector) -> str:
    height, width = detector.preprocessing.network_hw
    detect = tf.function(detector.detect, jit_compile=True, autograph=False)
    shapes = tf.TensorSpec([1, height, width, 3], tf.float32), tf.TensorSpec([1, 2], tf.int32)
    text: str = detect.experimental_get_compiler_ir(*shapes)(stage="hlo")
    return text
