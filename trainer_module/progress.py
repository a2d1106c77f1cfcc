"""What a person sees of something long: a bar with ETA and rate on a terminal, one log line a period elsewhere."""

import collections
import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_LOG_EVERY_SECONDS = 20.0
_RATE_WINDOW = 20  # calls of `advance` that the shown rate looks back on; a start-up cost leaves it soon
_LOGGER = logging.getLogger("detloom")


class Reporter:
    """Counts what is done; made by `show_progress`."""

    def __init__(self, what: str, total: int, unit: str, units_each: float, bar: Progress | None) -> None:
        self._what, self._total, self._unit, self._units_each, self._bar = what, total, unit, units_each, bar
        self._task = bar.add_task(what, total=total, eta="", numbers="") if bar else None
        self._done = 0  # where the work stands
        self._num_worked = 0  # what this process did for it: more after a rollback, less after a resume
        self._paused_seconds = 0.0
        self._logged = time.monotonic()
        self._history: collections.deque[tuple[float, int]] = collections.deque(maxlen=_RATE_WINDOW)

    def start_at(self, done: int) -> None:
        """Where the work stands now: what a run did that this one resumes, or what is left after going back.

        It does not count for the rate.
        """
        self._done = done
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time inside the block, such as an evaluation's, does not count for the rate; the ETA expects more of it."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - started

    def advance(self, count: int = 1, *, input_share: float | None = None, **numbers: float) -> None:
        """`numbers` are shown beside the rate, in the order given. The rate counts from the first call's end on.

        The first call of a TensorFlow function traces its graph, which can take longer than all that follow.

        Args:
            input_share: of the time since the last call, what was spent waiting for data.
        """
        self._done += count
        self._num_worked += count
        now = time.monotonic()
        values = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items()]
        if input_share is not None:
            values.append(f"input-bound: {100 * input_share:.0f} %")
        rate, eta = self._rate(now), ""
        if rate:
            values.insert(0, f"{rate * self._units_each:.1f} {self._unit}/s")
            eta = f"ETA {format_clock(self._seconds_left(rate))}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, eta=eta, numbers="  ".join(values))
        elif now - self._logged >= _LOG_EVERY_SECONDS or self._done >= self._total:
            self._logged = now
            line = [f"{self._what} {self._done}/{self._total}", *values, *filter(None, [eta])]
            _LOGGER.info("%s", "  ".join(line))

    def _rate(self, now: float) -> float:
        """Steps a second over the last calls; 0 where only one is known."""
        seconds = now - self._paused_seconds
        rate = 0.0
        if self._history:
            since, worked_then = self._history[0]
            rate = (self._num_worked - worked_then) / max(seconds - since, 1e-9)
        self._history.append((seconds, self._num_worked))
        return rate

    def _seconds_left(self, rate: float) -> float:
        """What the rest takes, with as many pauses a step as there were so far."""
        return max(self._total - self._done, 0) * (1 / rate + self._paused_seconds / max(self._num_worked, 1))


@contextlib.contextmanager
def show_progress(what: str, total: int, *, unit: str, units_each: float = 1.0) -> Iterator[Reporter]:
    """Report `total` steps, each of `units_each` units: `with show_progress("Training", 500, unit="images") as p`."""
    if not sys.stderr.isatty():
        yield Reporter(what, total, unit, units_each, None)
        return
    with build_bar(Console(stderr=True)) as bar:
        yield Reporter(what, total, unit, units_each, bar)


def build_bar(console: Console) -> Progress:
    """Its tasks have the fields `eta` and `numbers`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    return _BarOverNumbers(*columns, console=console)


class _BarOverNumbers(Progress):
    """The numbers have a line of their own, cut off at its end: beside them, narrow terminals leave no bar."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["numbers"]:
                yield Text(f"  {task.fields['numbers']}", overflow="ellipsis", no_wrap=True)


def format_clock(seconds: float) -> str:
    """As clocks show it: "0:20", "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
