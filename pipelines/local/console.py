"""Log output of a local run: one line per node, our own log lines and errors; TFX's log only with --verbose."""

import logging
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Literal

from absl import logging as absl_logging

from detloom.components.fingerprints import source_folders
from detloom.components.storage.local_copy import with_addresses
from detloom.schemas.reading.redact import escape, escape_lines

NodeEnd = Literal["done", "cached", "skipped", "failed"]
_WITHOUT_TRAINING = "SkipNotifier"  # the only node that runs if nothing is trained


class NodeLog(logging.Handler):
    """Print one line per node and our own log records, and track the current node; see `observe_nodes`.

    Attributes:
        current: node that runs, or ran last; None before the first.
        num_nodes: how many the run has.
    """

    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.current: str | None = None
        self.num_nodes = 0
        self._verbose = verbose
        self._number, self._started = 0, 0.0

    def restart(self) -> None:
        """Start counting again, because the pipeline runs again from its first node."""
        self.current, self._number = None, 0

    def begin(self, node: str) -> None:
        """Print that a node begins."""
        self.current, self._number, self._started = node, self._number + 1, time.monotonic()
        self._print(f"[{self._number}/{self.num_nodes}] {node}")

    def end(self, node: str, end: NodeEnd) -> None:
        """Print how a node has ended."""
        match end:
            case "done":
                line = f"done in {time.monotonic() - self._started:.1f} s"
            case "skipped":
                line = f"skipped: {'there is' if node == _WITHOUT_TRAINING else 'no'} reason to train"
            case _:
                line = end
        self._print(f"      {line}")

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name == "detloom" or record.pathname.startswith(source_folders())
        if is_ours or record.levelno >= logging.ERROR or self._verbose:
            self._print(f"      {record.getMessage()}")

    def _print(self, line: str) -> None:
        print(escape_lines(with_addresses(line)), file=sys.stderr, flush=True)


def log_nodes(verbose: bool) -> NodeLog:
    """Route all logging of this process through a `NodeLog`."""
    handler = NodeLog(verbose)
    for name in ("", "absl", "tensorflow", "detloom"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name == "" else []
        logger.propagate = True
    logging.getLogger().setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.INFO)  # not setLevel: TensorFlow saves and restores absl's own verbosity
    return handler


class _PlainLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        # sys.stderr is looked up per call: a progress bar may replace it
        print(escape_lines(f"{kind}{record.getMessage()}"), file=sys.stderr, flush=True)


def show_log() -> None:
    """Print detloom's log lines without a prefix, and only the errors of other libraries."""
    logger = logging.getLogger("detloom")
    logger.handlers, logger.propagate = [_PlainLines()], False
    logger.setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def format_next(*words: object) -> str:
    """Return the last line of a command: the command line to type next."""
    return f"Next: {escape(shlex.join(with_addresses(str(word)) for word in words))}"


def format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row; every column except the last is padded to its longest cell.

    Control characters in cells are escaped, as in all lines of this module: names come from data.
    """
    escaped = [[escape(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    padded = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in escaped)
    return ["  ".join(cells).rstrip() for cells in padded]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table indented by two spaces."""
    return "\n".join(f"  {line}" for line in format_columns(rows))
