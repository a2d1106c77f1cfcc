import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

from detloom.trainer_module import performance
from detloom.trainer_module.performance import Performance


@pytest.fixture
def ten_calls():
    """Batches of 8: a first call of 30 s, then eight of 20 steps that take 2 s and two that take 4 s."""
    seen = Performance(8, "float32")
    seen.add(20, 30.0, 5.0)
    for seconds in [2.0] * 8 + [4.0] * 2:
        seen.add(20, seconds, input_seconds=0.6)
    return seen


def test_the_median_step_is_that_of_most_steps_and_the_slow_ones_are_the_last_tenths(ten_calls):
    summary = ten_calls.summary()
    assert summary.median_step_seconds == pytest.approx(0.1, rel=0.001)  # 2 s / 20
    assert summary.p90_step_seconds == pytest.approx(0.2, rel=0.001)  # 80 % took 0.1 s; the rest 4 s / 20


def test_throughput_and_waiting_are_over_all_steps_but_those_of_the_first_call(ten_calls):
    summary = ten_calls.summary()
    assert summary.images_per_second == pytest.approx(200 * 8 / 24)  # 8 x 2 s + 2 x 4 s
    assert summary.input_share == pytest.approx(6 / 24)
    assert (summary.num_steps, summary.first_call_seconds) == (220, 30.0)


def test_a_call_answers_with_its_own_speed(ten_calls):
    assert ten_calls.add(10, 5.0, 2.0) == {
        "steps_per_second": pytest.approx(2.0),
        "images_per_second": pytest.approx(16.0),
        "input_share": pytest.approx(0.4),
    }


def test_the_first_call_has_no_speed():
    assert Performance(8, "float32").add(20, 30.0, 5.0) == {}


def test_a_call_that_was_stopped_before_its_first_step_counts_nothing(ten_calls):
    before = ten_calls.summary().num_steps
    assert ten_calls.add(0, 0.1) == {}
    assert ten_calls.summary().num_steps == before


def test_memory_does_not_grow_with_the_number_of_calls():
    seen = Performance(1, "float32")
    sizes = []
    for call in range(20_000):
        seen.add(1, 0.1 + 0.05 * (call % 977) / 977)  # 0.10 to 0.15 s: 203 bins
        if call in (2_000, 19_999):
            sizes.append(sys.getsizeof(seen._steps_by_bin))
    assert sizes[0] == sizes[1]


def test_nothing_measured_is_all_zeros_and_still_a_sentence():
    summary = Performance(8, "float32").summary()
    assert (summary.median_step_seconds, summary.images_per_second, summary.input_share) == (0.0, 0.0, 0.0)
    assert "images/s" not in summary.paragraph()


def test_evaluation_and_checkpoints_are_counted_apart(monkeypatch):
    now = iter([10.0, 13.0, 20.0, 22.5])
    monkeypatch.setattr(performance.time, "monotonic", lambda: next(now))
    seen = Performance(8, "float32")
    for name in ("evaluation", "evaluation"):
        with seen.phase(name):
            pass
    assert seen.summary().phase_seconds == {"evaluation": 5.5}


def test_the_paragraph_says_speed_time_memory_and_precision(ten_calls):
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
        "24.0 s in steps, 30.0 s in the first call, 3 min 5 s evaluating, 500 ms saving checkpoints. "
        "Peak memory: 1.5 GB of host memory, 2 GB of GPU:0. Input-bound: 4 %."
    )


@pytest.mark.parametrize(("share", "is_advised"), [(0.2, False), (0.21, True)])
def test_waiting_for_more_than_a_fifth_of_the_time_brings_advice(ten_calls, share, is_advised):
    summary = dataclasses.replace(ten_calls.summary(), input_share=share)
    assert ("give the host more cores" in summary.paragraph()) is is_advised


def test_the_summary_is_plain_json(ten_calls):
    plain = ten_calls.summary().to_dict()
    assert json.loads(json.dumps(plain)) == plain


def test_peak_memory_of_the_process_is_read_in_bytes(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  512 kB\n")
    assert performance.peak_host_bytes(status) == 512 * 1024


def test_where_the_system_does_not_say_it_peak_memory_is_still_measured(tmp_path):
    assert performance.peak_host_bytes(tmp_path / "absent") > 10_000_000


def test_the_cpu_is_no_device_with_a_memory_of_its_own():
    assert not any(name.startswith("CPU") for name in performance.peak_device_bytes())


def test_an_accelerator_that_counts_no_memory_is_left_out(monkeypatch):
    def memory_info(name):
        if name == "TPU:0":
            raise ValueError("no statistics")
        return {"current": 1, "peak": 2_000}

    devices = [("/device:CPU:0", "CPU"), ("/device:GPU:0", "GPU"), ("/device:TPU:0", "TPU")]
    logical = [SimpleNamespace(name=name, device_type=kind) for name, kind in devices]
    monkeypatch.setattr(performance.tf.config, "list_logical_devices", lambda: logical)
    monkeypatch.setattr(performance.tf.config.experimental, "get_memory_info", memory_info)
    assert performance.peak_device_bytes() == {"GPU:0": 2_000}
