"""What a person sees of a local run: one line a node, our own log lines, errors; TFX's chatter only on request."""

import logging
import os
import sys
import time
from collections.abc import Sequence

from absl import logging as absl_logging

import detloom

_RUNNING, _FINISHED, _CACHED = "Component %s is running.", "Component %s is finished.", "A cached execution %d is used."
_ROOMS = ("components", "pipelines", "schemas", "trainer_module")
_OURS = tuple(os.path.join(folder, room) + os.sep for folder in detloom.__path__ for room in _ROOMS)


class NodeLog(logging.Handler):
    """Turns the log records of TFX's local runner into one line a node; remembers which node runs.

    It reads the format strings of `tfx.orchestration.local.local_dag_runner` and `.portable.launcher`. If a later TFX
    words them differently, the lines are missing and nothing else: the summary comes from ML Metadata.
    """

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.current: str | None = None
        self.num_nodes, self._verbose = 0, verbose
        self._number, self._cached, self._started = 0, False, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == _RUNNING:
            self.current, self._number = (
                str(record.args[0]) if isinstance(record.args, tuple) else "?",
                self._number + 1,
            )
            self._cached, self._started = False, time.monotonic()
            self._print(f"[{self._number}/{self.num_nodes}] {self.current}")
        elif record.msg == _CACHED:
            self._cached = True
        elif record.msg == _FINISHED:
            seconds = time.monotonic() - self._started
            self._print("      answered from the cache" if self._cached else f"      done in {seconds:.1f} s")
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
