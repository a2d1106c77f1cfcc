"""Progress of long work: a bar with ETA and rate on a terminal, periodic log lines elsewhere."""

import collections
import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_LOG_EVERY_SECONDS = 20.0
_SHOWN_INPUT_SHARE = 0.05  # a smaller share of time spent waiting for data is not shown
_RATE_WINDOW = 20  # number of `advance` calls that the rate covers; start-up costs soon drop out
_LOGGER = logging.getLogger("detloom")


class Reporter:
    """Counts completed work; created by `show_progress` or `log_progress`."""

    def __init__(
        self,
        what: str,
        total: int | None,
        unit: str,
        units_each: float,
        bar: Progress | None,
        *,
        logs_end: bool = True,
    ) -> None:
        """Args: `total` is None if it is unknown; `logs_end` logs a line when the total is reached."""
        self._what, self._total, self._unit, self._units_each, self._bar = what, total, unit, units_each, bar
        self._logs_end = logs_end
        self._task = bar.add_task(what, total=total, eta="", numbers="") if bar else None
        self._done = 0  # completed work, including that of earlier processes
        self._num_worked = 0  # work of this process: more than `_done` after a rollback, less after a resume
        self._paused_seconds = 0.0
        self._logged = time.monotonic()
        self._history: collections.deque[tuple[float, int]] = collections.deque(maxlen=_RATE_WINDOW)

    def start_at(self, done: int) -> None:
        """Set the completed work, after a resume or a rollback. It does not count for the rate."""
        self._done = done
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of the block, such as an evaluation, from the rate; the ETA expects more such pauses."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - started

    def advance(self, count: int = 1, *, input_share: float | None = None, **numbers: float | str) -> None:
        """Report completed work; `numbers` are shown after the rate, in the order given, texts as they are.

        The rate starts at the end of the first call, which traces a TensorFlow function and can take longer than all
        others.

        Args:
            input_share: share of the time since the last call spent waiting for data.
        """
        self._done += count
        self._num_worked += count
        now = time.monotonic()
        values = [
            f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"
            for name, value in numbers.items()
        ]
        if input_share is not None and input_share >= _SHOWN_INPUT_SHARE:
            values.append(f"input-bound: {100 * input_share:.0f} %")
        rate, eta = self._rate(now), ""
        if rate:
            values.insert(0, f"{rate * self._units_each:.1f} {self._unit}/s")
            eta = f"ETA {timedelta(seconds=round(self._seconds_left(rate)))}" if self._total is not None else ""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, eta=eta, numbers="  ".join(values))
        elif now - self._logged >= _LOG_EVERY_SECONDS or (self._logs_end and self._done == self._total):
            self._logged = now
            of_total = "" if self._total is None else f"/{self._total}"
            line = [f"{self._what} {self._done}{of_total}", *values, *filter(None, [eta])]
            _LOGGER.info("%s", "  ".join(line))

    def _rate(self, now: float) -> float:
        """Return the rate over the last calls; 0 after the first call."""
        seconds = now - self._paused_seconds
        rate = 0.0
        if self._history:
            since, worked_then = self._history[0]
            rate = (self._num_worked - worked_then) / max(seconds - since, 1e-9)
        self._history.append((seconds, self._num_worked))
        return rate

    def _seconds_left(self, rate: float) -> float:
        """Estimate the remaining time, assuming as much pause per step as so far."""
        assert self._total is not None
        return max(self._total - self._done, 0) * (1 / rate + self._paused_seconds / max(self._num_worked, 1))


@contextlib.contextmanager
def show_progress(what: str, total: int, *, unit: str, units_each: float = 1.0) -> Iterator[Reporter]:
    """Report `total` steps, each of `units_each` units: `with show_progress("Training", 500, unit="images") as p`."""
    if not sys.stderr.isatty():
        yield Reporter(what, total, unit, units_each, None)
        return
    with build_bar(Console(stderr=True)) as bar:
        yield Reporter(what, total, unit, units_each, bar)


def log_progress(what: str, total: int | None, *, unit: str) -> Reporter:
    """Report by log lines only, for work during which a bar may be shown already.

    Args:
        total: None if it is unknown.
    """
    return Reporter(what, total, unit, 1.0, None, logs_end=False)


def build_bar(console: Console) -> Progress:
    """Build a progress bar whose tasks have the fields `eta` and `numbers`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    return _BarOverNumbers(*columns, console=console)


class _BarOverNumbers(Progress):
    """Shows the numbers on a second line, truncated at its end: on narrow terminals both do not fit on one line."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["numbers"]:
                yield Text(f"  {task.fields['numbers']}", overflow="ellipsis", no_wrap=True)
