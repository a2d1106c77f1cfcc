"""What a task's log shows: our own lines, others' errors, and where Dataflow's pages are. TFX's lines are left out.

They list all parameters of the node, which are long and nobody reads.
"""

import logging
import os
import sys

from absl import logging as absl_logging

import detloom
from detloom.pipelines.package_fingerprint import LAYERS

_OURS = tuple(os.path.join(folder, layer) + os.sep for folder in detloom.__path__ for layer in LAYERS)
_ALSO_SHOWN = "apache_beam.runners.dataflow"  # its lines name the job and its page


class _TaskLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.startswith("detloom") or record.pathname.startswith(_OURS)
        if not (is_ours or record.levelno >= logging.ERROR or record.name.startswith(_ALSO_SHOWN)):
            return
        # Clusters' log collectors take what is on stderr for errors.
        is_problem = record.levelno >= logging.WARNING
        kind = f"{record.levelname.lower()}: " if is_problem else ""
        print(f"{kind}{record.getMessage()}", file=sys.stderr if is_problem else sys.stdout, flush=True)
        if record.exc_info:
            print(logging.Formatter().formatException(record.exc_info), file=sys.stderr, flush=True)


def log_task() -> None:
    """Send all logging of this process to stdout and stderr, plainly."""
    handler = _TaskLog()
    for name in ("", "absl", "tensorflow", "detloom"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name == "" else []
        logger.propagate = True
    logging.getLogger().setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.INFO)  # not setLevel: TensorFlow saves and restores absl's own idea of it
