"""What a person sees of something long: a bar with ETA and rate on a terminal, one log line a period elsewhere."""

import collections
import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LOG_EVERY_SECONDS = 20.0
_RATE_WINDOW = 20  # calls of `advance` that the shown rate looks back on; a start-up cost leaves it soon
_LOGGER = logging.getLogger("detloom")


class Reporter:
    """Counts what is done; made by `show_progress`."""

    def __init__(self, what: str, total: int, unit: str, units_each: float, bar: Progress | None) -> None:
        self._what, self._total, self._unit, self._units_each, self._bar = what, total, unit, units_each, bar
        self._task = bar.add_task(what, total=total, numbers="") if bar else None
        self._done = 0
        self._logged = time.monotonic()
        self._history: collections.deque[tuple[float, int]] = collections.deque(maxlen=_RATE_WINDOW)

    def start_at(self, done: int) -> None:
        """Work done before, by a run that this one resumes; it does not count for the rate."""
        self._done = done

    def advance(self, count: int = 1, **numbers: float) -> None:
        """`numbers` are shown beside the rate, in the order given. The rate counts from the first call's end on.

        The first call of a TensorFlow function traces its graph, which can take longer than all that follow.
        """
        self._done += count
        now = time.monotonic()
        values = [f"{name} {value:.4g}" for name, value in numbers.items()]
        rate = 0.0
        if self._history:
            since, done_then = self._history[0]
            rate = (self._done - done_then) / max(now - since, 1e-9)
            values.insert(0, f"{rate * self._units_each:.1f} {self._unit}/s")
        self._history.append((now, self._done))
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, numbers="  ".join(values))
        elif now - self._logged >= _LOG_EVERY_SECONDS or self._done >= self._total:
            self._logged = now
            if rate:
                minutes, seconds = divmod(round((self._total - self._done) / rate), 60)
                values.append(f"ETA {minutes}:{seconds:02d}")
            _LOGGER.info("%s", "  ".join([f"{self._what} {self._done}/{self._total}", *values]))


@contextlib.contextmanager
def show_progress(what: str, total: int, *, unit: str, units_each: float = 1.0) -> Iterator[Reporter]:
    """Report `total` steps, each of `units_each` units: `with show_progress("Training", 500, unit="images") as p`."""
    if not sys.stderr.isatty():
        yield Reporter(what, total, unit, units_each, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
    )
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[numbers]}"), console=Console(stderr=True)
    ) as bar:
        yield Reporter(what, total, unit, units_each, bar)
