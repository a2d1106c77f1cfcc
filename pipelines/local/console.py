"""Log output of a local run: one line per node, our own log lines and errors; TFX's log only with --verbose."""

import logging
import sys
import time
from collections.abc import Callable, Sequence

from absl import logging as absl_logging

from detloom.pipelines.dag.fingerprints import source_folders

_RUNNING, _FINISHED, _CACHED = "Component %s is running.", "Component %s is finished.", "A cached execution %d is used."
_RESOLVED = "[%s] Resolved inputs: %s"  # the inputs are empty if a condition skips the node
_WITHOUT_TRAINING = "SkipNotifier"  # the only node that runs if nothing is trained


class NodeLog(logging.Handler):
    """Print one line per node from the log records of TFX's local runner, and track the current node.

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
        """Start counting again, because the pipeline runs again from its first node."""
        self.current, self._number = None, 0

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ("?",)
        if record.msg == _RUNNING:
            self.current, self._number = str(arguments[0]), self._number + 1
            self._outcome, self._started = "", time.monotonic()
            self._print(f"[{self._number}/{self.num_nodes}] {self.current}")
            self.on_start(self.current)
        elif record.msg == _CACHED:
            self._outcome = "cached"
        elif record.msg == _RESOLVED and len(arguments) == 2 and not arguments[1]:
            is_other_way = self.current == _WITHOUT_TRAINING
            self._outcome = f"skipped: {'there is' if is_other_way else 'no'} reason to train"
        elif record.msg == _FINISHED:
            self.on_finish(str(arguments[0]))
            self._print(f"      {self._outcome or f'done in {time.monotonic() - self._started:.1f} s'}")
        elif (
            record.name == "detloom"
            or record.pathname.startswith(source_folders())
            or record.levelno >= logging.ERROR
            or self._verbose
        ):
            self._print(f"      {record.getMessage()}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


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
        print(f"{kind}{record.getMessage()}", file=sys.stderr, flush=True)


def show_log() -> None:
    """Print detloom's log lines without a prefix, and only the errors of other libraries."""
    logger = logging.getLogger("detloom")
    logger.handlers, logger.propagate = [_PlainLines()], False
    logger.setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row; every column except the last is padded to its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table indented by two spaces."""
    return "\n".join(f"  {line}" for line in format_columns(rows))
