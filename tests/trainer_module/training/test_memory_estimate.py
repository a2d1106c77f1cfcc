import math
from dataclasses import replace

import keras
import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.optimizers import (
    AdamOptimizer,
    ConstantLearningRate,
    MomentumOptimizer,
    MovingAverage,
    Optimizer,
    RmsPropOptimizer,
)
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.training import memory_estimate
from detloom.trainer_module.training.memory_estimate import MemoryEstimate, check_memory, estimate_memory
from detloom.trainer_module.training.optimizers import build_optimizer

RATE = ConstantLearningRate()
GIB = 2**30


def config(**train: object) -> TrainEvalConfig:
    preset = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    return replace(preset, train=replace(preset.train, **train))


def convolution() -> keras.Model:
    """Return a 1x1 convolution from 3 to 5 channels: 3 * 5 + 5 = 20 weights."""
    image = keras.Input((4, 6, 3))
    return keras.Model(image, keras.layers.Conv2D(5, 1)(image))


def estimate(config: TrainEvalConfig, network: keras.Model, **data: float) -> MemoryEstimate:
    data = {"mean_record_bytes": 100.0, "split_bytes": 10**9, **data}
    return estimate_memory(config, network, activations_per_image=845, num_replicas=1, **data)


def made(**changes: object) -> MemoryEstimate:
    values = {
        "weights": GIB,
        "gradients": GIB,
        "optimizer": GIB,
        "activations_per_image": GIB,
        "batch_size": 8,
        "num_parts": 1,
    }
    host = {"shuffle_buffer": GIB, "input_per_image": 0, "process": GIB, "host_bytes": 64 * GIB}
    return MemoryEstimate(**{"device": "CPU", "device_bytes": 64 * GIB, **values, **host, **changes})


@pytest.mark.parametrize(
    ("optimizer", "average", "num_slots"),
    [
        (MomentumOptimizer(learning_rate=RATE), None, 1),
        (MomentumOptimizer(learning_rate=RATE), MovingAverage(), 2),
        (MomentumOptimizer(learning_rate=RATE, momentum=0.0), None, 0),
        (RmsPropOptimizer(learning_rate=RATE), None, 2),
        (RmsPropOptimizer(learning_rate=RATE, momentum=0.0), None, 1),
        (AdamOptimizer(learning_rate=RATE), None, 2),
    ],
)
def test_weights_gradients_and_slots_are_counted(optimizer: Optimizer, average: MovingAverage | None, num_slots: int):
    network, built = convolution(), build_optimizer(optimizer)
    memory = estimate(config(optimizer=optimizer, moving_average=average), network)
    built.build(network.trainable_variables)
    sizes = [math.prod(variable.shape) for variable in built.variables]  # also of the step and the rate
    assert sum(size for size in sizes if size > 1) == (num_slots - int(average is not None)) * 20
    # 20 weights of 4 bytes
    assert (memory.weights, memory.gradients, memory.optimizer) == (80, 80, num_slots * 80)
    assert memory.certain == 160 + num_slots * 80


@pytest.mark.parametrize(
    ("reader", "split_bytes", "buffer"),
    [
        ({}, 10**9, 2048 * 1000),  # the zoo's buffer has 2048 records
        ({}, 50_000, 50_000),  # limited by the size of the split
        ({"shuffle_buffer_bytes": 70_000}, 10**9, 70_000),
        ({"shuffle": False}, 10**9, 0),
    ],
)
def test_input_pipeline_holds_the_shuffle_buffer_and_three_batches(reader, split_bytes, buffer):
    settings = config(batch_size=10)
    settings = replace(settings, train_input=replace(settings.train_input, **reader))
    memory = estimate(settings, convolution(), mean_record_bytes=1000.0, split_bytes=split_bytes)
    assert memory.input_pipeline == buffer + 3 * 10 * 72 * 4  # 3 batches of 10 images of 4 * 6 * 3 float32
    assert memory.activations == 8450


def test_cpu_training_shares_the_host_memory(monkeypatch):
    monkeypatch.setattr(memory_estimate, "usable_bytes", lambda: 7 * GIB)
    memory = estimate(config(), convolution())
    assert (memory.device, memory.device_bytes, memory.host_bytes) == ("CPU", 7 * GIB, 7 * GIB)
    assert memory.total_on_device > memory.certain + memory.activations


def test_sentence_names_all_parts():
    # 3 certain, 8 activations, 1 input pipeline and 1 process: 13 GiB = 14 GB
    assert made().sentence() == (
        "Memory: about 14 GB of 68.7 GB on the CPU at batch size 8 (weights 1.07 GB, gradients 1.07 GB, optimizer "
        "1.07 GB, activations 8.59 GB); on the host, input pipeline 1.07 GB, process so far 1.07 GB."
    )


def test_batch_that_does_not_fit_gives_a_warning_with_the_largest_that_does():
    # 13 GiB are required; of 10 GiB, 5 are used by other parts, and an image uses 1.
    (warning,) = check_memory(made(device_bytes=10 * GIB))
    assert "train.batch_size" in warning
    assert "batch size of about 5" in warning


def test_images_that_fit_are_counted_with_their_share_of_the_input_pipeline():
    # 4 GiB of weights, gradients, optimizer and shuffle buffer and 1 GiB of process leave 59 GiB; an image needs 1 + 3.
    memory = made(input_per_image=3 * GIB, batch_size=20)
    assert memory.fitting_batch_size == 14
    assert made(input_per_image=3 * GIB, batch_size=20, device="GPU").fitting_batch_size == 61


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_per_image": 3 * GIB, "batch_size": 10**9}, r"got 68\.7 GB.* train\.batch_size .*about 14 "),
        ({"device_bytes": 2 * GIB}, r"got 2\.15 GB on the CPU, required: 3\.22 GB"),  # the weights do not fit
    ],
)
def test_need_of_several_times_the_memory_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        check_memory(made(**changes))
    assert "not even one image" in check_memory(made(device_bytes=5 * GIB))[0]


def test_activations_of_one_part_of_the_batch_are_counted():
    assert made(num_parts=4).activations == 2 * GIB
    assert made(num_parts=4, device="GPU").fitting_batch_size == 4 * 61
    assert estimate(config(batch_size=8, gradient_accumulation_steps=2), convolution()).activations == 4 * 845


def test_accelerator_memory_excludes_the_input_pipeline():
    assert check_memory(made()) == ()
    assert made(device="GPU").total_on_device == 11 * GIB
    assert check_memory(made(device="GPU", device_bytes=11 * GIB)) == ()
    unknown = made(device="TPU", device_bytes=None, activations_per_image=None)
    assert check_memory(unknown) == ()
    assert "of unknown on the TPU" in unknown.sentence()
    assert "activations unknown" in unknown.sentence()


def test_host_memory_is_checked_in_addition_to_an_accelerator():
    (warning,) = check_memory(made(device="GPU", host_bytes=GIB))
    assert "lower train_input.shuffle_buffer_size" in warning
