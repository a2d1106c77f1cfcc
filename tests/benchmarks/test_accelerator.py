"""The benchmark of accelerators: comparison with bounds, the page, processes that end too soon, a small run."""

import json
import math
import subprocess
import sys
from pathlib import Path

import accelerator
import numpy as np
import pytest
from tools.accelerator_page import TITLES, format_page, has_failed, needed_images_per_second
from tools.device_parity import BOUNDS, BOUNDS_WITH_PROPOSALS, Bounds, arithmetic_of, check_parity, compare_numbers
from tools.resumed_training import compare_variables

NUMBERS = {
    "loss": 2.0,
    "class_loss": 1.5,
    "box_loss": 0.5,
    "gradient_norm": 5.0,
    "gradient_norm/a": 3.0,
    "gradient_norm/b": 4.0,
    "learning_rate": 0.1,
}


# --- parity -----------------------------------------------------------------------------------------------------------


def test_equal_numbers_have_no_difference():
    assert compare_numbers(NUMBERS, NUMBERS) == {"losses": 0.0, "gradients": 0.0}


def test_differences_are_relative_to_the_loss_and_to_the_whole_gradient():
    found = {**NUMBERS, "box_loss": 0.51, "gradient_norm/b": 4.5, "learning_rate": 9.0}
    differences = compare_numbers(NUMBERS, found)
    assert differences["losses"] == pytest.approx(0.01 / 0.5)
    assert differences["gradients"] == pytest.approx(0.5 / 5)


def test_a_loss_near_zero_is_compared_with_a_share_of_the_total():
    reference, found = ({**NUMBERS, "tiny_loss": value} for value in (1e-9, 2e-9))
    assert compare_numbers(reference, found)["losses"] == pytest.approx(1e-9 / 2e-3)


@pytest.mark.parametrize("name", ["class_loss", "gradient_norm/a"])
def test_a_value_that_is_no_number_is_infinitely_different(name):
    differences = compare_numbers(NUMBERS, {**NUMBERS, name: math.nan})
    assert math.inf in differences.values()
    assert not check_parity(BOUNDS["bfloat16"], differences)["passed"]


@pytest.mark.parametrize(
    ("losses", "gradients", "matched", "passed"),
    [
        (0.1, 0.2, 0.9, True),
        (0.1, 0.2, None, True),
        (0.11, 0.2, 0.9, False),
        (0.1, 0.21, 0.9, False),
        (0.1, 0.2, 0.89, False),
    ],
)
def test_every_bound_can_fail(losses, gradients, matched, passed):
    bounds = Bounds(losses=0.1, gradients=0.2, detections=0.3, min_matched=0.9)
    assert check_parity(bounds, {"losses": losses, "gradients": gradients}, matched)["passed"] is passed


@pytest.mark.parametrize(
    ("kind", "precision", "has_tensor_float", "arithmetic"),
    [
        ("CPU", "float32", True, "float32"),
        ("GPU", "float32", False, "float32"),
        ("GPU", "float32", True, "TensorFloat-32"),
        ("GPU", "float16", True, "float16"),
        ("TPU", "float32", True, "bfloat16"),
    ],
)
def test_bounds_follow_the_arithmetic_of_the_device(kind, precision, has_tensor_float, arithmetic):
    assert arithmetic_of(kind, precision, has_tensor_float=has_tensor_float) == arithmetic
    assert arithmetic in BOUNDS
    assert BOUNDS.keys() == BOUNDS_WITH_PROPOSALS.keys()


def test_a_different_or_missing_variable_is_reported_after_resuming():
    one = {"a": np.zeros(2), "b": np.ones(2)}
    assert compare_variables(one, {**one})["status"] == "passed"
    found = compare_variables(one, {"a": np.array([0, 1e-45])})
    assert (found["status"], found["num_different"], found["num_variables"]) == ("failed", 2, 2)


# --- page -------------------------------------------------------------------------------------------------------------


def parity(losses):
    differences = {"losses": losses, "gradients": 0.0}
    row = check_parity(BOUNDS["TensorFloat-32"], differences, 1.0)
    status = "passed" if row["passed"] else "failed"
    return {"status": status, "cause": "", "rows": [{"arithmetic": "TensorFloat-32", "xla": False, **row}]}


def test_a_failed_parity_is_on_the_page_with_its_bound():
    results = {"parity": {"good": parity(0.001), "bad": parity(0.5)}}
    assert has_failed(results)
    assert not has_failed({"parity": {"good": parity(0.001)}})
    lines = format_page(results).splitlines()
    assert "| Parity with the CPU | passed | **failed** |" in lines
    (row,) = (line for line in lines if line.startswith("| bad |"))
    assert "5.0e-01 (0.03)" in row
    assert row.endswith("| **failed** |")


def test_parity_of_two_processes_fails_if_one_of_them_does():
    passed, failed = parity(0.001), {"status": "failed", "cause": "no result", "seconds": 1.0}
    both = accelerator.merge_parity(failed, passed)
    assert (both["status"], both["cause"], both["rows"]) == ("failed", "no result", passed["rows"])
    assert accelerator.merge_parity(passed, passed)["status"] == "passed"


@pytest.mark.parametrize("section", TITLES)
def test_a_failed_section_is_reported_and_hides_no_other(section):
    preset = "" if section in ("machine", "resume") else "net"
    page = format_page({section: {preset: {"status": "failed", "cause": "ValueError: <a|b>"}}})
    assert all(f"## {title}\n" in page for title in TITLES.values())
    assert "failed:** ValueError: &lt;a\\|b>" in page
    assert page.count("Did not run.") == len(TITLES) - 1


def test_the_input_is_compared_with_all_devices():
    step, scaling = ({"rows": [{"images_per_second": rate} for rate in rates]} for rates in ((10, 20), (20, 39)))
    assert needed_images_per_second({"step": {"net": step}}, "net") == 20
    assert needed_images_per_second({"step": {"net": step}, "scaling": {"net": scaling}}, "net") == 39
    assert needed_images_per_second({}, "net") is None


# --- processes --------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, pathlib, sys, time
settings, folder, *sections = sys.argv[1:]
for section in sections:
    if section == settings:
        print("broken", file=sys.stderr)
        sys.exit(3)
    if section == "slow":
        time.sleep(60)
    pathlib.Path(folder, f"{section}.json").write_text(json.dumps({"status": "passed"}))
"""


def run_child(folder, broken, sections, seconds=60):
    child = accelerator.Child((sys.executable, "-c", SCRIPT), broken, folder)
    return dict(child.run(sections, seconds))


def test_a_section_that_ends_its_process_fails_and_the_next_ones_run(tmp_path):
    found = run_child(tmp_path, "b", ["a", "b", "c"])
    assert {name: result["status"] for name, result in found.items()} == {"a": "passed", "b": "failed", "c": "passed"}
    assert "exit code 3: broken" in found["b"]["cause"]


def test_a_section_without_a_result_in_time_fails(tmp_path):
    """It waits three seconds: a busy machine may need one to start the process of the next section."""
    found = run_child(tmp_path, "", ["slow", "a"], seconds=3)
    assert {name: result["status"] for name, result in found.items()} == {"slow": "failed", "a": "passed"}
    assert "no result after 3 s" in found["slow"]["cause"]


def test_the_exit_code_is_1_if_parity_fails_and_the_other_sections_run(tmp_path, monkeypatch, capsys):
    def run(child, sections):
        for section in sections:
            yield section, parity(0.5) if section == "parity" else {"status": "skipped", "cause": "not run here"}

    monkeypatch.setattr(accelerator.Child, "run", run)
    monkeypatch.setattr(accelerator, "resume", lambda *_: {"status": "skipped", "cause": "not run here"})
    monkeypatch.setattr(sys, "argv", ["accelerator.py", "--preset", "efficientdet_d0", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        accelerator.main()
    assert end.value.code == 1
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert not results["passed"]
    assert list(results["sections"]) == list(TITLES)
    rows = results["sections"]["parity"]["efficientdet_d0"]["rows"]
    assert [row["passed"] for row in rows] == [False, False]  # without and with TensorFloat-32
    assert "| Parity with the CPU | **failed** |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--preset", "no_preset"),
        ("--preset", "mask_rcnn_inception_resnet_v2_1024x1024"),  # generated images have no masks
        ("--chip", "h100"),
    ],
)
def test_names_that_cannot_be_measured_are_refused_before_anything_runs(option, value, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["accelerator.py", option, value])
    with pytest.raises(SystemExit) as end:
        accelerator.main()
    assert end.value.code == 2
    assert value in capsys.readouterr().err


@pytest.mark.nightly
def test_a_small_run_on_cpu_devices(tmp_path):
    """About two minutes: six processes start TensorFlow or train, and XLA compiles a step."""
    script = Path(accelerator.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--small", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "failed" not in page
    assert "Did not run." not in page
    assert "| devices | 2 CPU" in page
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    sections = results["sections"]
    assert results["passed"]
    assert list(sections) == list(TITLES)
    with_xla = sections["parity"]["tiny"]["rows"][1]
    assert with_xla["xla"]
    assert with_xla["passed"]
    assert 0 < with_xla["losses"] < 1e-4  # XLA rounds differently
    assert sections["parity"]["tiny"]["rows"][0]["matched"] == 1
    assert [row["devices"] for row in sections["scaling"]["tiny"]["rows"]] == [1, 2]
    assert sections["resume"][""]["num_variables"] > 100
