"""The command of compiled tasks: python -m detloom.pipelines.container.entrypoint.

It runs a node's executor with the arguments of the backend: TFX's arguments, preceded by our own. A user's mistake ends
with one sentence on stderr. `example_gen_entrypoint.py` is the command of DetectionExampleGen, which has a driver.

This module imports nothing heavy, so that a wrong image is refused at once, and the process can still fork.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from detloom.components.beam_job import cancel_unfinished_jobs, explain_job_failure
from detloom.components.fingerprints import CODE_FLAG, check_code
from detloom.pipelines.container.task_storage import TaskStorage
from detloom.pipelines.container.time_limit import run_limited
from detloom.pipelines.dag.packed_settings import INPUT_TYPES_FLAG, unpack_task
from detloom.pipelines.tfx_line import LINE_FLAG, check_line
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import GPUS_VARIABLE

if TYPE_CHECKING:
    from detloom.pipelines.container.run_node import Task

_FAILED = 1


def main(arguments: Sequence[str], run_task: "Callable[[Task, TaskStorage], None] | None" = None) -> int:
    """Run a task and return the exit code.

    Args:
        run_task: None runs the executor.
    """
    flags, beam_args = parse_flags(arguments)
    protect_files()
    try:
        check_line(flags.tfx)
        check_code(flags.code)
    except InputError as error:
        return _fail(str(error))
    if flags.time_limit_seconds is not None:
        return run_limited(lambda: _run(flags, beam_args, run_task), flags.time_limit_seconds)
    return _run(flags, beam_args, run_task)


def parse_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse our flags and TFX's; the remaining arguments are for Beam."""
    parser = argparse.ArgumentParser(prog="detloom.pipelines.container.entrypoint", allow_abbrev=False)
    parser.add_argument("--place", required=True, choices=("kubeflow", "vertex"))
    parser.add_argument(LINE_FLAG, required=True, help="the TFX line that compiled the task")
    parser.add_argument(CODE_FLAG, required=True, help="the task's modules and their fingerprint when it was compiled")
    parser.add_argument("--time_limit_seconds", type=_seconds, help="end the node after this time")
    parser.add_argument("--driver", action="store_true", help="run the driver instead of the executor")
    parser.add_argument("--executor_class_path", default="")
    parser.add_argument("--json_serialized_invocation_args", required=True, help="ExecutorInput")
    inputs_spec = parser.add_mutually_exclusive_group(required=True)
    inputs_spec.add_argument("--json_serialized_inputs_spec_args", help="ComponentInputsSpec")
    inputs_spec.add_argument(INPUT_TYPES_FLAG, help="ComponentInputsSpec in the form of packed_settings")
    flags, beam_args = parser.parse_known_args(arguments)
    if not flags.driver and not flags.executor_class_path:
        parser.error("--executor_class_path or --driver is needed")
    return flags, beam_args


def _run(
    flags: argparse.Namespace, beam_args: Sequence[str], run_task: "Callable[[Task, TaskStorage], None] | None"
) -> int:
    from detloom.pipelines.container.run_node import Task, log_task, run_node

    log_task()
    storage = TaskStorage.of_container(os.environ, beam_args)
    try:
        if GPUS_VARIABLE in os.environ:
            from detloom.trainer_module.runtime.strategies import check_gpus

            check_gpus(os.environ)
        invocation, inputs_spec = flags.json_serialized_invocation_args, flags.json_serialized_inputs_spec_args
        if inputs_spec is None:
            invocation, inputs_spec = unpack_task(invocation, flags.input_types)
        task = Task(
            place=flags.place,
            executor_class_path=flags.executor_class_path,
            invocation=invocation,
            inputs_spec=inputs_spec,
            beam_args=beam_args,
            is_driver=flags.driver,
        )
        with explain_job_failure(), cancel_unfinished_jobs():
            (run_task or run_node)(task, storage)
    except Exception as error:
        return explain(error)
    return 0


def protect_files() -> None:
    """Let only user and group write to new files. Argo starts containers with a umask of 0, on volumes of many pods."""
    os.umask(os.umask(0) | 0o002)


def explain(error: Exception) -> int:
    """Print a user's mistake or the interruption of a training run; raise all other errors again."""
    from detloom.trainer_module.runtime.preemption import Preempted

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InputError | Preempted) and not _is_denied(cause):
        cause = cause.__cause__
    match cause:
        case InputError():
            return _fail(str(cause))
        case Preempted():
            print(cause, file=sys.stderr, flush=True)
            return 128 + cause.signal_number  # same convention as in shells
        case Exception():
            return _fail(
                f"user {os.getuid()} lacks a permission ({cause}). A volume may belong to another user; make the "
                "folder for this one first (docs/kubeflow.md, 'A cluster')."
            )
    raise error


def _is_denied(cause: BaseException) -> bool:
    """Return whether a file system denied access, to Python or to TensorFlow, which is not imported for this."""
    return isinstance(cause, PermissionError) or type(cause).__name__ == "PermissionDeniedError"


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    return _FAILED


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"got {text}, allowed: above 0")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
