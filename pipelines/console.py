"""What a person sees of a local run: one line a node, our own log lines, errors; TFX's chatter only on request."""

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence

from absl import logging as absl_logging

import detloom

_RUNNING, _FINISHED, _CACHED = "Component %s is running.", "Component %s is finished.", "A cached execution %d is used."
_RESOLVED = "[%s] Resolved inputs: %s"  # nothing where a condition leaves the node out
_WITHOUT_TRAINING = "SkipNotifier"  # the one node whose condition is that nothing is trained
_ROOMS = ("components", "pipelines", "schemas", "trainer_module")
_OURS = tuple(os.path.join(folder, room) + os.sep for folder in detloom.__path__ for room in _ROOMS)


class NodeLog(logging.Handler):
    """Turns the log records of TFX's local runner into one line a node; remembers which node runs.

    It reads the format strings of `tfx.orchestration.local.local_dag_runner` and, under `.portable`, `launcher` and
    `resolver_node_handler`. If a later TFX words them differently, the lines and the time limits are missing and
    nothing else: the summary comes from ML Metadata.

    Attributes:
        current: node that runs, or ran last; None before the first.
        num_nodes: how many the run has.
        on_start, on_finish: called with its id when a node begins, and when it has ended without an error.
    """

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.current: str | None = None
        self.num_nodes = 0
        self.on_start: Callable[[str], None] = lambda node: None
        self.on_finish: Callable[[str], None] = lambda node: None
        self._verbose = verbose
        self._number, self._outcome, self._started = 0, "", 0.0

    def restart(self) -> None:
        """The nodes are run from the first again."""
        self.current, self._number = None, 0

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ("?",)
        if record.msg == _RUNNING:
            self.current, self._number = str(arguments[0]), self._number + 1
            self._outcome, self._started = "", time.monotonic()
            self._print(f"[{self._number}/{self.num_nodes}] {self.current}")
            self.on_start(self.current)
        elif record.msg == _CACHED:
            self._outcome = "answered from the cache"
        elif record.msg == _RESOLVED and len(arguments) == 2 and not arguments[1]:
            is_other_way = self.current == _WITHOUT_TRAINING
            self._outcome = f"skipped: {'there is' if is_other_way else 'no'} reason to train"
        elif record.msg == _FINISHED:
            self.on_finish(str(arguments[0]))
            self._print(f"      {self._outcome or f'done in {time.monotonic() - self._started:.1f} s'}")
        elif (
            record.name == "detloom"
            or record.pathname.startswith(_OURS)
            or record.levelno >= logging.ERROR
            or self._verbose
        ):
            self._print(f"      {record.getMessage()}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def log_nodes(verbose: bool) -> NodeLog:
    """Send all logging of this process through a `NodeLog`."""
    handler = NodeLog(verbose)
    for name in ("", "absl", "tensorflow", "detloom"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name == "" else []
        logger.propagate = True
    logging.getLogger().setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.INFO)  # not setLevel: TensorFlow saves and restores absl's own idea of it
    return handler


class _PlainLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        print(f"{kind}{record.getMessage()}", file=sys.stderr, flush=True)  # looked up now: a bar may stand there


def show_log() -> None:
    """Print our own log lines as they are, and others' errors."""
    logger = logging.getLogger("detloom")
    logger.handlers, logger.propagate = [_PlainLines()], False
    logger.setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row; each column but the last as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """The columns as text, indented by two."""
    return "\n".join(f"  {line}" for line in format_columns(rows))
