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


@pytest.mark.parametrize(
    ("window", "first", "recorded", "calls"),
    [
        ((10, 3), 0, [10, 11, 12], [8, 2, 3, 7]),  # 8 + 2 before the window, 3 inside, 7 after it
        ((4, 12), 0, list(range(4, 16)), [4, 8, 4, 4]),
        ((4, 3), 7, [], [8, 5]),  # resumed after the window
        ((4, 6), 7, [7, 8, 9], [3, 8, 2]),  # resumed inside
        ((0, 0), 0, [], [8, 8, 4]),
        ((18, 10), 0, [18, 19], [8, 8, 2, 2]),  # training ends inside
    ],
)
def test_the_window_is_recorded_once(use_profiler, tmp_path, window, first, recorded, calls):
    profiler = use_profiler()
    assert recorded_steps(ProfilerWindow(*window, tmp_path), profiler, first=first) == (recorded, calls)
    assert profiler.calls == (["start", "stop"] if recorded else [])


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
