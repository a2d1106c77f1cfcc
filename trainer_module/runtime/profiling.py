"""Profile a range of steps with TensorFlow's profiler, for TensorBoard."""

import logging
from pathlib import Path

import tensorflow as tf

_LOGGER = logging.getLogger("detloom")


class ProfilerWindow:
    """Profiles steps `first_step` to `first_step + num_steps` once, counted over all resumes.

    The loop calls `limit` so that no host call crosses the start or end of the window, and `move_to` before each call.
    An error of the profiler is logged as a warning and never ends training.
    """

    def __init__(self, first_step: int, num_steps: int, log_dir: Path) -> None:
        self._begin, self._end, self._log_dir = first_step, first_step + num_steps, log_dir
        self._is_recording, self._is_done = False, num_steps == 0

    def limit(self, step: int, count: int) -> int:
        """Return how many of the `count` steps after `step` may run before the start or end of the window."""
        borders = [] if self._is_done else [self._begin, self._end]
        return min([count, *(border - step for border in borders if border > step)])

    def move_to(self, step: int) -> None:
        """Start or stop the profiler before the step after `step`."""
        if self._is_recording and not self._begin <= step < self._end:
            self._stop()
        elif not self._is_recording and not self._is_done and self._begin <= step < self._end:
            self._start()

    def close(self) -> None:
        """Write the recorded steps if training ends inside the window."""
        if self._is_recording:
            self._stop()

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(str(self._log_dir))
        except tf.errors.OpError as error:  # such as another active profiler
            self._give_up(error)
        else:
            self._is_recording = True

    def _stop(self) -> None:
        self._is_recording, self._is_done = False, True
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            self._give_up(error)
        else:
            _LOGGER.info("Profiled steps up to %d; open %s with TensorBoard.", self._end, self._log_dir)

    def _give_up(self, error: tf.errors.OpError) -> None:
        self._is_done = True
        _LOGGER.warning("TensorFlow's profiler failed, training continues: %s", " ".join(error.message.split())[:300])
