import dataclasses
from types import SimpleNamespace

import pytest

from detloom.trainer_module.run_state import train_result
from detloom.trainer_module.run_state.train_result import Performance


@pytest.fixture
def ten_calls():
    """Batches of 8: a first call of 30 s, then eight calls of 20 steps that take 2 s and two that take 4 s."""
    seen = Performance(8, "float32")
    seen.add(20, 30.0, 5.0)
    for seconds in [2.0] * 8 + [4.0] * 2:
        seen.add(20, seconds, input_seconds=0.6)
    return seen


def test_summary_excludes_the_first_call(ten_calls):
    summary = ten_calls.summary()
    assert summary.median_step_seconds == pytest.approx(0.1)  # 2 s / 20
    assert summary.p90_step_seconds == pytest.approx(0.2)  # 80 % took 0.1 s; the rest 4 s / 20

    assert summary.images_per_second == pytest.approx(200 * 8 / 24)  # 8 x 2 s + 2 x 4 s
    assert summary.input_share == pytest.approx(6 / 24)
    assert (summary.num_steps, summary.first_call_seconds) == (220, 30.0)


def test_add_returns_the_speed_of_the_call(ten_calls):
    assert ten_calls.add(10, 5.0, 2.0) == {
        "steps_per_second": pytest.approx(2.0),
        "images_per_second": pytest.approx(16.0),
        "input_share": pytest.approx(0.4),
    }
    assert ten_calls.add(0, 0.1) == {}
    assert ten_calls.summary().num_steps == 230


def test_empty_summary_has_zeros_and_a_paragraph():
    performance = Performance(8, "float32")
    summary = performance.summary()
    assert performance.add(20, 30.0, 5.0) == {}  # the first call
    assert (summary.median_step_seconds, summary.images_per_second, summary.input_share) == (0.0, 0.0, 0.0)
    assert "images/s" not in summary.paragraph()


def test_phases_are_counted_separately(monkeypatch):
    now = iter([10.0, 13.0, 20.0, 22.5])
    monkeypatch.setattr(train_result.time, "monotonic", lambda: next(now))
    seen = Performance(8, "float32")
    for name in ("evaluation", "evaluation"):
        with seen.phase(name):
            pass
    assert seen.summary().phase_seconds == {"evaluation": 5.5}


@pytest.mark.parametrize(
    ("evaluation_seconds", "advice"),
    [
        ([300.0, 30.0], "56 % of the time: set eval.evaluate_every to 1000 (now 200)"),  # 30 / (30 + 200 x 0.12)
        ([300.0, 5.0], None),
        ([300.0], None),  # with the compilation
        ([1.0, 30.0, 30.0], None),  # said before
    ],
)
def test_advice_is_given_if_the_second_evaluation_takes_a_fifth_of_the_time(ten_calls, evaluation_seconds, advice):
    """A step takes 24 s / 200 = 0.12 s."""
    ten_calls._seconds_of_phases["evaluation"] = evaluation_seconds
    config = SimpleNamespace(
        evaluation_interval=200, train=SimpleNamespace(num_steps=4000), eval=SimpleNamespace(batch_size=1)
    )
    said = ten_calls.evaluation_advice(config)
    assert (said is None) if advice is None else (advice in said)


def test_paragraph_names_speed_time_memory_and_precision(ten_calls):
    summary = dataclasses.replace(
        ten_calls.summary(),
        phase_seconds={"evaluation": 185.0, "checkpoints": 0.5},
        peak_host_bytes=1_500_000_000,
        peak_device_bytes={"GPU:0": 2_000_000_000},
        input_share=0.04,
        precision="bfloat16",
    )
    assert summary.paragraph() == (
        "66.7 images/s at batch 8 in bfloat16: a step took 100 ms (median; 90 % at most 200 ms). "
        "24 s in steps, 30 s in the first call, 3 min 5 s evaluating, 500 ms saving checkpoints. "
        "Peak memory: 1.5 GB of host memory, 2 GB of GPU:0. Input-bound: 4 %."
    )


@pytest.mark.parametrize(("share", "is_advised"), [(0.2, False), (0.21, True)])
def test_advice_is_given_above_a_fifth_of_waiting_time(ten_calls, share, is_advised):
    summary = dataclasses.replace(ten_calls.summary(), input_share=share)
    assert (summary.advice() is not None) is is_advised


def test_peak_memory_of_the_process_is_in_bytes(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  512 kB\n")
    assert train_result.peak_host_bytes(status) == 512 * 1024
    assert train_result.peak_host_bytes(tmp_path / "absent") > 10_000_000


def test_accelerator_without_memory_counter_is_left_out(monkeypatch):
    def memory_info(name):
        if name == "TPU:0":
            raise ValueError("no statistics")
        return {"current": 1, "peak": 2_000}

    devices = [("/device:CPU:0", "CPU"), ("/device:GPU:0", "GPU"), ("/device:TPU:0", "TPU")]
    logical = [SimpleNamespace(name=name, device_type=kind) for name, kind in devices]
    monkeypatch.setattr(train_result.tf.config, "list_logical_devices", lambda: logical)
    monkeypatch.setattr(train_result.tf.config.experimental, "get_memory_info", memory_info)
    assert train_result.peak_device_bytes() == {"GPU:0": 2_000}
