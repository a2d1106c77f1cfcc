"""A window of steps that TensorFlow's profiler records, for TensorBoard."""

import logging
from pathlib import Path

import tensorflow as tf

_LOGGER = logging.getLogger("detloom")


class ProfilerWindow:
    """Records steps `first_step` up to `first_step + num_steps`, once, counting over all resumes.

    The loop asks `limit` how far a host call may go, so that a window in the middle of one is cut out of it, and calls
    `move_to` before each. A profiler that fails is a warning: it never ends a training.
    """

    def __init__(self, first_step: int, num_steps: int, log_dir: Path) -> None:
        self._begin, self._end, self._log_dir = first_step, first_step + num_steps, log_dir
        self._is_recording, self._is_done = False, num_steps == 0

    def limit(self, step: int, count: int) -> int:
        """How many of the `count` steps after `step` the next call may run: none across a border of the window."""
        borders = [] if self._is_done else [self._begin, self._end]
        return min([count, *(border - step for border in borders if border > step)])

    def move_to(self, step: int) -> None:
        """Say that the next step is the one after `step`; starts and stops the profiler."""
        if self._is_recording and not self._begin <= step < self._end:
            self._stop()
        elif not self._is_recording and not self._is_done and self._begin <= step < self._end:
            self._start()

    def close(self) -> None:
        """Write what was recorded so far, where training ends inside the window."""
        if self._is_recording:
            self._stop()

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(str(self._log_dir))
        except tf.errors.OpError as error:  # such as another profiler at work
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
            _LOGGER.info("Steps up to %d were profiled; see %s with TensorBoard.", self._end, self._log_dir)

    def _give_up(self, error: tf.errors.OpError) -> None:
        self._is_done = True
        _LOGGER.warning("TensorFlow's profiler failed, training goes on: %s", " ".join(error.message.split())[:300])
