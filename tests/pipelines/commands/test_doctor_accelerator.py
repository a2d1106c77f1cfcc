import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from detloom.pipelines.commands import doctor_accelerator
from detloom.pipelines.commands.doctor import doctor
from detloom.pipelines.commands.doctor_accelerator import check_accelerator, describe_step
from detloom.pipelines.commands.findings import Probe
from detloom.schemas.errors import InputError
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.accelerators.chips import parse_accelerator

COSTS = {"flops": 2e9, "moved_bytes": 1e9, "num_dynamic_dimensions": 0, "num_host_transfers": 0}
GOOD = {
    "precision": "bfloat16",
    "images": 4,
    "part": COSTS,
    "detection": COSTS,
    "wasted_share": 0.3,
    "gradient_bytes": 10_000_000,
    "memory_bytes": 8e9,
    "seconds": 2e-3,
    "is_bound_by_memory": True,
    "images_per_second": 16_000.0,
    "input_images_per_second": 20_000.0,
}
TPU, GPU = parse_accelerator("tpu-v5e-8"), parse_accelerator("gpu-t4-1")


def statuses(step, accelerator=TPU):
    return {each.name.removeprefix(f"{accelerator.name} "): each.status for each in describe_step(step, accelerator)}


def test_a_step_that_fits_has_no_warnings():
    assert set(statuses(GOOD).values()) == {"ok"}
    assert list(statuses(GOOD)) == ["shapes", "memory", "padding", "precision", "step", "input"]
    assert list(statuses(GOOD, GPU)) == ["shapes", "memory", "step", "input"]


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [
        ({"part": {**COSTS, "num_dynamic_dimensions": 1}}, "shapes", "error"),
        ({"detection": {**COSTS, "num_host_transfers": 2}}, "shapes", "error"),
        ({"memory_bytes": 17e9}, "memory", "error"),  # of 17.2 GB, a tenth is reserved
        ({"wasted_share": 0.8}, "padding", "warning"),
        ({"precision": "float32"}, "precision", "warning"),
        ({"input_images_per_second": 1000.0}, "input", "warning"),
        ({"input_images_per_second": None}, "input", "ok"),
    ],
)
def test_each_number_decides_one_finding(change, name, status):
    found = statuses({**GOOD, **change})
    assert found.pop(name) == status
    assert set(found.values()) == {"ok"}


def test_findings_name_the_number_that_decides():
    found = {each.name: each for each in describe_step({**GOOD, "memory_bytes": 17e9}, TPU)}
    assert found["tpu-v5e-8 memory"].found == "about 17.0 of 17 GB on each device, with 4 images"
    assert found["tpu-v5e-8 memory"].wanted == "at most 15.5 GB"
    assert found["tpu-v5e-8 step"].found == (
        "at least 2 ms, limited by memory traffic: 2 GFLOP and 1 GB in bfloat16; devices exchange 10 MB of gradients"
    )
    assert found["tpu-v5e-8 input"].found == "the devices take at most 16,000 images/s, this machine reads 20,000"


def test_a_step_that_cannot_be_converted_is_an_error(monkeypatch):
    failed = Probe({}, "converting the step failed (InputError: train.batch_size: got 3)")
    monkeypatch.setattr(doctor_accelerator, "run_probe", lambda *arguments, **options: failed)
    (finding,) = check_accelerator(SimpleNamespace(config=find_preset("ssd_mobilenet_v2_320x320").config), TPU)
    assert (finding.status, finding.found) == ("error", failed.failure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--accelerator", "tpu-v5e-8"], "got no RUN_FILE"), (["--accelerator", "x"], "gpu-h100")],
)
def test_accelerators_need_a_run_and_a_known_name(arguments, message):
    result = CliRunner().invoke(doctor, arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.slow
def test_the_step_of_a_run_is_examined_in_a_process(tmp_path):
    run = tmp_path / "run.yaml"
    run.write_text(
        "name: colours\ndata: {path: 'embedded:digits', format: coco, split_by_ratio: {}}\n"
        "model:\n  image_resizer: {height: 64, width: 64}\n  feature_extractor: {depth_multiplier: 0.1}\n"
        "train: {batch_size: 4, augmentations: []}\n"
    )
    result = CliRunner().invoke(doctor, [str(run), "--accelerator", "gpu-h100-2", "--json"])
    findings = {each["name"]: each for each in json.loads(result.stdout)}
    for name in ("shapes", "memory", "step"):
        assert findings[f"gpu-h100-2 {name}"]["status"] == "ok", findings
    assert "with 2 images" in findings["gpu-h100-2 memory"]["found"]
