import pytest
import tensorflow as tf

from detloom.trainer_module.runtime import profiling
from detloom.trainer_module.runtime.profiling import ProfilerWindow


class FakeProfiler:
    """Replaces TensorFlow's profiler, which takes seconds to start; `calls` lists the calls."""

    def __init__(self, fails_to=""):
        self.calls, self.fails_to = [], fails_to

    def start(self, log_dir):
        self._note("start")

    def stop(self):
        self._note("stop")

    def _note(self, what):
        self.calls.append(what)
        if what == self.fails_to:
            raise tf.errors.AlreadyExistsError(None, None, "another one\nis at work")


@pytest.fixture
def use_profiler(monkeypatch):
    def use(**settings):
        profiler = FakeProfiler(**settings)
        monkeypatch.setattr(profiling.tf.profiler, "experimental", profiler)
        return profiler

    return use


def recorded_steps(window, profiler, *, first=0, last=20, steps_per_call=8):
    """Simulate a loop that trains from `first` to `last`."""
    step, recorded, calls = first, [], []
    while step < last:
        window.move_to(step)
        count = window.limit(step, min(steps_per_call, last - step))
        if profiler.calls.count("start") > profiler.calls.count("stop"):
            recorded += range(step, step + count)
        calls.append(count)
        step += count
    window.close()
    assert profiler.calls.count("start") == profiler.calls.count("stop")
    return recorded, calls


def test_window_splits_a_host_call(use_profiler, tmp_path):
    recorded, calls = recorded_steps(ProfilerWindow(10, 3, tmp_path), use_profiler())
    assert recorded == [10, 11, 12]
    assert calls == [8, 2, 3, 7]  # 8 + 2 before the window, 3 inside, 7 after it


def test_window_over_several_host_calls_is_recorded(use_profiler, tmp_path):
    recorded, calls = recorded_steps(ProfilerWindow(4, 12, tmp_path), use_profiler())
    assert recorded == list(range(4, 16))
    assert calls == [4, 8, 4, 4]


def test_run_resumed_after_the_window_records_nothing(use_profiler, tmp_path):
    profiler = use_profiler()
    assert recorded_steps(ProfilerWindow(4, 3, tmp_path), profiler, first=7) == ([], [8, 5])
    assert profiler.calls == []


def test_run_resumed_inside_the_window_records_the_rest(use_profiler, tmp_path):
    recorded, _ = recorded_steps(ProfilerWindow(4, 6, tmp_path), use_profiler(), first=7)
    assert recorded == [7, 8, 9]


def test_empty_window_starts_no_profiler(use_profiler, tmp_path):
    profiler = use_profiler()
    assert recorded_steps(ProfilerWindow(0, 0, tmp_path), profiler) == ([], [8, 8, 4])
    assert profiler.calls == []


def test_training_that_ends_inside_the_window_writes_it(use_profiler, tmp_path):
    profiler = use_profiler()
    recorded, _ = recorded_steps(ProfilerWindow(18, 10, tmp_path), profiler)
    assert recorded == [18, 19]
    assert profiler.calls == ["start", "stop"]


def test_rollback_out_of_the_window_ends_it(use_profiler, tmp_path):
    profiler, window = use_profiler(), ProfilerWindow(10, 5, tmp_path)
    for step in (10, 3, 10, 12):
        window.move_to(step)
    assert profiler.calls == ["start", "stop"]


@pytest.mark.parametrize("fails_to", ["start", "stop"])
def test_profiler_error_is_logged_once(use_profiler, tmp_path, caplog, fails_to):
    window = ProfilerWindow(10, 2, tmp_path)
    use_profiler(fails_to=fails_to)
    for step in (10, 12, 10, 12):
        window.move_to(step)
    window.close()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "another one is at work" in warnings[0]


@pytest.mark.slow  # the profiler takes seconds to start
def test_profile_is_written_to_the_plugin_folder_of_tensorboard(tmp_path):
    window, double = ProfilerWindow(1, 2, tmp_path), tf.function(lambda number: number * 2)
    for step in range(4):
        window.move_to(step)
        double(tf.constant(1.0))
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1
