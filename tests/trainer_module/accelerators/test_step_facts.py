import json

import numpy as np
import pytest

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.accelerators.chips import parse_accelerator
from detloom.trainer_module.accelerators.hlo import HloFacts
from detloom.trainer_module.accelerators.step_facts import (
    StepFacts,
    examine_as_json,
    examine_step,
    label_map_of,
    training_batch_spec,
)
from detloom.trainer_module.data.input_pipeline import build_train_dataset
from detloom.trainer_module.detectors.families import build_detector

LABEL_MAP = LabelMap.from_names(["red", "green"])
H100, V5E = parse_accelerator("gpu-h100-8"), parse_accelerator("tpu-v5e-8")
COSTS = HloFacts(
    flops=989e9,
    padded_flops=1970e9,
    moved_bytes=3.35e9,
    num_loops=0,
    num_dynamic_dimensions=0,
    num_host_transfers=0,
)


def facts(precision="bfloat16", num_parts=1, **costs):
    part = HloFacts(**{**COSTS.__dict__, **costs})
    return StepFacts(
        precision=precision,
        images=4,
        num_parts=num_parts,
        part=part,
        detection=COSTS,
        gradient_bytes=0,
        memory_bytes=0,
    )


def test_the_time_is_that_of_the_arithmetic_or_of_the_memory():
    """On an H100, the arithmetic of COSTS takes 1 ms in bfloat16, and so does the traffic."""
    assert facts().seconds(H100.chip) == pytest.approx(1e-3)
    assert facts(num_parts=2).seconds(H100.chip) == pytest.approx(2e-3)
    assert facts(precision="float32").seconds(H100.chip) == pytest.approx(2e-3, rel=0.01)
    assert not facts(precision="float32").is_bound_by_memory(H100.chip)
    slow = facts(moved_bytes=6.7e9)
    assert slow.seconds(H100.chip) == pytest.approx(2e-3)
    assert slow.is_bound_by_memory(H100.chip)
    assert slow.images_per_second(H100) == pytest.approx(4 * 8 / 2e-3)


def test_padding_costs_time_on_tpus_only():
    assert facts().seconds(V5E.chip) == pytest.approx(10e-3)  # 1970 of 197,000 GFLOP


def test_the_specification_is_that_of_the_training_data(tiny_config, tmp_path, make_example, write_records):
    shard = str(write_records(tmp_path / "data", [make_example()]))
    dataset = build_train_dataset(tiny_config, LABEL_MAP, [shard], batch_size=tiny_config.train.batch_size)
    found = training_batch_spec(tiny_config, build_detector(tiny_config.model, LABEL_MAP))
    assert {name: (spec.shape, spec.dtype) for name, spec in found.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in dataset.element_spec.items()
    }


def test_the_label_map_has_the_class_with_keypoints(tiny_config):
    keypoints = find_preset("centernet_resnet50_v1_fpn_512x512_kpts").config
    assert label_map_of(keypoints, 2).names_by_id == ((1, "person"), (2, "class 1"))
    assert label_map_of(tiny_config, 2).names_by_id == ((1, "class 0"), (2, "class 1"))


def test_a_batch_that_does_not_fit_the_devices_is_refused(tiny_config):
    with pytest.raises(InputError, match=r"train\.batch_size: got 2 for 8 replicas"):
        examine_step(tiny_config, LABEL_MAP, 8, on_tpu=False)


@pytest.mark.slow
def test_a_step_in_two_parts_on_two_devices(tiny_config, changed):
    config = changed(tiny_config, {"train.batch_size": 8, "train.gradient_accumulation_steps": 2})
    found = json.loads(examine_as_json(to_canonical_json(config), "gpu-h100-2", "2"))
    assert (found["images"], found["precision"]) == (4, "float32")
    for function in ("part", "detection"):
        assert found[function]["num_dynamic_dimensions"] == found[function]["num_host_transfers"] == 0
    # Forward pass, and twice as much for the gradients of inputs and weights, for two images.
    assert found["part"]["flops"] / found["detection"]["flops"] == pytest.approx(2 * 3, rel=0.2)
    network = build_detector(config.model, LABEL_MAP).network
    assert found["gradient_bytes"] == 4 * sum(int(np.prod(each.shape)) for each in network.trainable_variables)
    assert found["images_per_second"] == pytest.approx(4 * 2 / found["seconds"])
    assert found["input_images_per_second"] > 0
