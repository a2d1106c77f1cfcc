"""Exit codes that mean something more exact for a command; docs/command_line.md has their general meanings."""

from collections.abc import Mapping

from detloom.schemas.errors import ExitCode

_DECIDED = "the run ended with a decision: pushed, not blessed, or nothing trained without a reason"
_SAVED = "the training state was saved; the same command resumes it"
_RUN: Mapping[ExitCode, str] = {
    ExitCode.DONE: _DECIDED,
    ExitCode.FAILED: "the run failed",
    ExitCode.BUSY: "another run uses the workspace; nothing was run",
    ExitCode.INTERRUPTED: f"Ctrl-C; {_SAVED}",
    ExitCode.TERMINATED: f"SIGTERM; {_SAVED}",
}
_WAIT: Mapping[ExitCode, str] = {
    ExitCode.FAILED: "with --wait: the run failed",
    ExitCode.INTERRUPTED: "with --wait: Ctrl-C; the run continues",
}
_PUSH: Mapping[ExitCode, str] = {ExitCode.BUSY: "another push into the folder did not finish within --wait"}

OF_COMMANDS: Mapping[str, Mapping[ExitCode, str]] = {
    "run": _RUN,
    "demo": _RUN,
    "doctor": {ExitCode.FAILED: "a check reports an error"},
    "ingest": {
        ExitCode.FAILED: "the data cannot be read, or too much of it was rejected; the report is written then",
        ExitCode.BUSY: "another ingestion writes the output folder",
    },
    "validate": {
        ExitCode.FAILED: "a check of severity `fail` does not pass",
        ExitCode.BUSY: "another validation writes the output folder",
    },
    "config check": {ExitCode.FAILED: "a file does not load"},
    "config diff": {
        ExitCode.DONE: "no difference",
        ExitCode.FAILED: "the configurations differ",
        ExitCode.USAGE: "a file does not load, or the command line is wrong",
    },
    "restore-report": {ExitCode.FAILED: "training would refuse the checkpoint"},
    "train": {
        ExitCode.FAILED: "the training run failed; with --self-test, the detector cannot overfit 16 images",
        ExitCode.BUSY: "another training run uses the output folder",
        ExitCode.INTERRUPTED: f"Ctrl-C; {_SAVED}",
        ExitCode.TERMINATED: f"SIGTERM; {_SAVED}",
    },
    "evaluate": {
        ExitCode.DONE: "the evaluation is complete, even if the model is not blessed",
        ExitCode.BUSY: "another evaluation writes the output folder",
    },
    "predict": {ExitCode.FAILED: "no image could be read; with --strict, an image could not be read"},
    "push": _PUSH,
    "rollback": _PUSH,
    "verify": {ExitCode.FAILED: "a file is missing, changed or was added, or a version has no manifest"},
    "image-check": {ExitCode.FAILED: "a check reports an error"},
    "submit": _WAIT,
    "status": _WAIT,
}
