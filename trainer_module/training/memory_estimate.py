"""Estimate the memory of training before the first step."""

import math
from dataclasses import dataclass

import keras
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import MASKS
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.optimizers import AdamOptimizer, AdamWOptimizer, MomentumOptimizer, Optimizer
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.runtime.host_memory import format_bytes, process_bytes, usable_bytes

_BATCHES_IN_FLIGHT = 3  # two are prefetched, one is being assembled
_REFUSED_RATIO = 4  # of need to memory; the measured needs in `activation_memory.py` are 0.6 to 1.2 of the estimate


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of training on a device in bytes, by purpose."""

    device: str
    """"CPU", "GPU" or "TPU"."""
    device_bytes: int | None
    """Memory that training may use there; None if unknown."""
    weights: int
    gradients: int
    optimizer: int
    """Optimizer slots and moving averages of the weights."""
    activations_per_image: int | None
    """For forward and backward pass; None if unknown, as for images of varying size."""
    batch_size: int
    num_parts: int
    """Number of parts of the batch, on different replicas or one after the other; activations of one are kept."""
    shuffle_buffer: int
    """Encoded images; always in host memory."""
    input_per_image: int
    """Decoded images and masks that are prefetched, divided by the batch size; always in host memory."""
    process: int
    """Memory of the process before training, without the weights if they are included."""
    host_bytes: int
    """Host memory that this process may use."""

    @property
    def certain(self) -> int:
        """Memory that does not depend on the batch size."""
        return self.weights + self.gradients + self.optimizer

    @property
    def activations(self) -> int:
        return (self.activations_per_image or 0) * self.batch_size // self.num_parts

    @property
    def input_pipeline(self) -> int:
        return self.shuffle_buffer + self.input_per_image * self.batch_size

    @property
    def total_on_device(self) -> int:
        on_host = self.input_pipeline + self.process if self.device == "CPU" else 0
        return self.certain + self.activations + on_host

    @property
    def fitting_batch_size(self) -> int | None:
        """Largest batch size that fits on the device; None if unknown."""
        if self.device_bytes is None or not self.activations_per_image:
            return None
        per_image = self.activations_per_image / self.num_parts + self.input_per_image * (self.device == "CPU")
        fixed = self.total_on_device - per_image * self.batch_size
        return max(int((self.device_bytes - fixed) / per_image), 0)

    def sentence(self) -> str:
        """Return the estimate and its parts for the log."""
        known = "unknown" if self.activations_per_image is None else format_bytes(self.activations)
        capacity = "unknown" if self.device_bytes is None else format_bytes(self.device_bytes)
        return (
            f"Memory: about {format_bytes(self.total_on_device)} of {capacity} on the {self.device} at batch size "
            f"{self.batch_size} (weights {format_bytes(self.weights)}, gradients {format_bytes(self.gradients)}, "
            f"optimizer {format_bytes(self.optimizer)}, activations {known}); on the host, input pipeline "
            f"{format_bytes(self.input_pipeline)}, process so far {format_bytes(self.process)}."
        )


def estimate_memory(
    config: TrainEvalConfig,
    network: keras.Model,
    *,
    activations_per_image: int | None,
    num_replicas: int,
    mean_record_bytes: float,
    split_bytes: int,
) -> MemoryEstimate:
    """Estimate the memory of one device, which processes its share of the batch.

    Args:
        activations_per_image: of `Detector.activation_bytes_per_image`.
        mean_record_bytes: mean size of a serialized example.
        split_bytes: size of the training split's files.
    """
    weights = sum(_variable_bytes(variable) for variable in network.variables)
    trainable = sum(_variable_bytes(variable) for variable in network.trainable_variables)
    slots = _num_slots(config.train.optimizer) + int(config.train.moving_average is not None)
    device, device_bytes = _device_memory()
    host_bytes, is_on_host = usable_bytes(), device == "CPU"
    reader = config.train_input
    limits = (reader.shuffle_buffer_size * mean_record_bytes, reader.shuffle_buffer_bytes, split_bytes)
    shuffle_bytes = round(min(limits))
    sides = network.inputs[0].shape[1:]
    image_bytes = 0 if None in sides else math.prod(sides) * tf.float32.size
    return MemoryEstimate(
        device=device,
        device_bytes=host_bytes if is_on_host else device_bytes,
        weights=weights,
        gradients=trainable,
        optimizer=slots * trainable,
        activations_per_image=activations_per_image,
        batch_size=config.train.batch_size,
        num_parts=config.train.gradient_accumulation_steps * (1 if is_on_host else num_replicas),  # CPUs share memory
        shuffle_buffer=shuffle_bytes if reader.shuffle else 0,
        input_per_image=_BATCHES_IN_FLIGHT * (image_bytes + _mask_bytes(config)),
        process=max(process_bytes() - weights, 0) if is_on_host else process_bytes(),
        host_bytes=host_bytes,
    )


def check_memory(memory: MemoryEstimate) -> tuple[str, ...]:
    """Return warnings if the estimate exceeds the available memory.

    Raises:
        InputError: if weights, gradients and optimizer alone exceed it, or the estimate exceeds it several times.
    """
    if memory.device_bytes is not None and memory.certain > memory.device_bytes:
        raise InputError(
            f"Memory: got {format_bytes(memory.device_bytes)} on the {memory.device}, required: "
            f"{format_bytes(memory.certain)} for weights, gradients and optimizer alone; use a smaller detector, or "
            "a device with more memory."
        )
    warnings = []
    if memory.device_bytes is not None and memory.total_on_device > memory.device_bytes:
        advice, fitting = "lower train.batch_size or the size of model.image_resizer", memory.fitting_batch_size
        if fitting is not None:
            advice += f" (a batch size of about {fitting} would fit)" if fitting else " (not even one image would fit)"
        text = (
            f"got {format_bytes(memory.device_bytes)} on the {memory.device}, required: about "
            f"{format_bytes(memory.total_on_device)}; {advice}."
        )
        if memory.total_on_device > _REFUSED_RATIO * memory.device_bytes:
            raise InputError(f"Memory: {text}")
        warnings.append(f"Training may run out of memory: {text}")
    on_host = memory.input_pipeline + memory.process
    if memory.device != "CPU" and on_host > memory.host_bytes:
        warnings.append(
            f"The input pipeline may run out of memory: it needs about {format_bytes(on_host)}, and the host has "
            f"{format_bytes(memory.host_bytes)}; lower train_input.shuffle_buffer_size or train.batch_size."
        )
    return tuple(warnings)


def _num_slots(optimizer: Optimizer) -> int:
    """Return the number of slots that the optimizer keeps per weight."""
    match optimizer:
        case MomentumOptimizer():
            return int(optimizer.momentum > 0)
        case AdamOptimizer() | AdamWOptimizer():
            return 2
        case _:  # RMSProp
            return 1 + int(optimizer.momentum > 0)


def _variable_bytes(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def _mask_bytes(config: TrainEvalConfig) -> int:
    """Return the bytes of the masks of one image in a batch; 0 if the detector does not learn masks."""
    family = family_of(config.model)
    if MASKS not in family.ground_truth_columns:
        return 0
    return config.train_input.max_number_of_boxes * math.prod(family.preprocessing.network_hw)


def _device_memory() -> tuple[str, int | None]:
    """Return the kind of training device and, for an accelerator, the memory that TensorFlow may use there."""
    for kind in ("TPU", "GPU"):
        if tf.config.list_logical_devices(kind):
            return kind, _allocator_bytes(kind)
    return "CPU", None


def _allocator_bytes(kind: str) -> int | None:
    """Return the limit of the first such device's allocator."""
    try:
        from tensorflow.python.client import device_lib  # no public name

        limits = [device.memory_limit for device in device_lib.list_local_devices() if device.device_type == kind]
    except (ImportError, AttributeError, tf.errors.OpError):  # changed in a later TensorFlow: report "unknown"
        return None
    return int(limits[0]) if limits and limits[0] > 0 else None
