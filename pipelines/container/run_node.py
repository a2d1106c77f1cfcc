"""Run one task, from the backend's `ExecutorInput` to the `ExecutorOutput` file, with TFX's own container code.

TFX's `kubeflow_v2_run_executor` runs the executor. Its arguments are changed before (types, local paths, the driver's
result) and its output file is changed afterwards; none of its code is copied.
"""

import logging
import platform
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from absl import logging as absl_logging
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.io import fileio
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_run_executor
from tfx.types import value_artifact

import detloom
from detloom.components.fingerprints import source_folders
from detloom.pipelines.container.artifacts import (
    PAGE_TITLES,
    class_of,
    complete_inputs,
    finish_output,
    register_titles,
    title_of,
)
from detloom.pipelines.container.task_storage import SCHEME, Addresses, TaskStorage, file_of, make_parent
from detloom.schemas.reading.redact import escape_lines

if TYPE_CHECKING:
    from detloom.schemas.run_file.run_file import Place

VERTEX_PUSHER = "detloom.components.pusher.vertex.VertexExecutor"  # passes an address to Vertex AI, which has no mount
# An output that the open-source driver adds to every task (driver.go, `provisionOutputs`); no node declares it.
_LOGS = "executor-logs"
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class Task:
    """The task in the backend's command line.

    Attributes:
        executor_class_path: empty for a driver.
        invocation: `ExecutorInput` as JSON.
        inputs_spec: `ComponentInputsSpec` as JSON.
    """

    place: "Place"
    executor_class_path: str
    invocation: str
    inputs_spec: str
    beam_args: Sequence[str]
    is_driver: bool = False


# Changes the task's ExecutorInput before the executor runs, and undoes what it did for the executor afterwards.
Preparation = Callable[[Any, Any, TaskStorage], AbstractContextManager[None]]


def run_node(task: Task, storage: TaskStorage, prepare: Preparation = lambda *_: nullcontext()) -> None:
    """Run a node's executor.

    Args:
        prepare: gets `ExecutorInput`, `ComponentInputsSpec` and the storage.
    """
    if task.executor_class_path == VERTEX_PUSHER:
        storage = replace(storage, is_mounted=False)
    executor_input, inputs_spec = parse_task(task)
    log_start(task, node_name(executor_input, task))
    complete_inputs(executor_input.inputs, inputs_spec)
    if _LOGS in executor_input.outputs.artifacts:
        del executor_input.outputs.artifacts[_LOGS]
    addresses = to_local_paths(executor_input, storage)
    _make_output_folders(executor_input.outputs)
    for value in executor_input.inputs.parameter_values.values():
        if value.string_value.startswith(SCHEME):
            value.string_value = str(file_of(value.string_value))
    with prepare(executor_input, inputs_spec, storage):
        _execute(task, executor_input)
    finish_output(executor_input.outputs.output_file, addresses, _page_keys(executor_input.outputs))


def node_name(executor_input: Any, task: Task) -> str:
    """Return the node's id from the address of an output or the output file, otherwise the executor's path.

    Addresses are ROOT/TASK/RANDOM/OUTPUT on Kubeflow (kubeflow/pipelines, backend/src/v2/driver/driver.go,
    `provisionOutputs`; older releases have the output file in /tmp), and ROOT/PROJECT/JOB/TASK_NUMBER/OUTPUT on Vertex.
    """
    outputs = executor_input.outputs
    uris = [artifact.uri for artifacts in outputs.artifacts.values() for artifact in artifacts.artifacts]
    parts = (uris[0] if uris else outputs.output_file).split("/")
    if len(parts) < 6:  # scheme, empty part, bucket and the three parts
        return task.executor_class_path
    if task.place == "kubeflow":
        return parts[-3]
    return parts[-2].rpartition("_")[0] or parts[-2]


def log_start(task: Task, node: str) -> None:
    """Log the first line of a task."""
    versions = ", ".join(f"{name} {_version_of(name)}" for name in ("tfx", "tensorflow", "apache-beam"))
    _LOGGER.info(
        "%s on %s: detloom %s, %s, Python %s",
        node,
        task.place,
        detloom.__version__,
        versions,
        platform.python_version(),
    )


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # for example tensorflow-cpu, which has another name
        return "(version unknown)"


def parse_task(task: Task) -> tuple[Any, Any]:
    """Return `ExecutorInput` and `ComponentInputsSpec` of a task."""
    register_titles()
    executor_input = pipeline_spec_pb2.ExecutorInput()
    json_format.Parse(task.invocation, executor_input, ignore_unknown_fields=True)  # fields of a newer backend
    inputs_spec = pipeline_spec_pb2.ComponentInputsSpec()
    json_format.Parse(task.inputs_spec, inputs_spec, ignore_unknown_fields=True)
    return executor_input, inputs_spec


def to_local_paths(executor_input: Any, storage: TaskStorage) -> Addresses:
    """Replace the addresses of artifacts and of the output file by local paths; return the addresses."""
    addresses = Addresses()
    for side in (executor_input.inputs, executor_input.outputs):
        for artifacts in side.artifacts.values():
            for artifact in artifacts.artifacts:
                path = storage.local_path(artifact.uri)
                addresses.add(path, artifact.uri)
                artifact.uri = path
    executor_input.outputs.output_file = storage.local_path(executor_input.outputs.output_file)
    return addresses


def _make_output_folders(outputs: Any) -> None:
    """Create folders as TFX's launcher does on one machine; in an object store they would be empty objects."""
    make_parent(outputs.output_file)
    for artifacts in outputs.artifacts.values():
        for artifact in artifacts.artifacts:
            make_parent(artifact.uri)
            is_value = issubclass(class_of(artifact.type), value_artifact.ValueArtifact)
            if not is_value and "://" not in artifact.uri:
                fileio.makedirs(artifact.uri)


def _page_keys(outputs: Any) -> list[str]:
    return [
        key
        for key, artifacts in outputs.artifacts.items()
        if any(title_of(artifact.type) in PAGE_TITLES for artifact in artifacts.artifacts)
    ]


def _execute(task: Task, executor_input: Any) -> None:
    arguments = Namespace(
        executor_class_path=task.executor_class_path,
        json_serialized_invocation_args=json_format.MessageToJson(executor_input),
        json_serialized_inputs_spec_args=task.inputs_spec,
    )
    kubeflow_v2_run_executor.main((arguments, list(task.beam_args)))


_ALSO_SHOWN = "apache_beam.runners.dataflow"  # its lines contain the job and its page


class _TaskLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.startswith("detloom") or record.pathname.startswith(source_folders())
        if not (is_ours or record.levelno >= logging.ERROR or record.name.startswith(_ALSO_SHOWN)):
            return
        # Log collectors of clusters classify all lines on stderr as errors.
        is_problem = record.levelno >= logging.WARNING
        kind = f"{record.levelname.lower()}: " if is_problem else ""
        print(f"{kind}{escape_lines(record.getMessage())}", file=sys.stderr if is_problem else sys.stdout, flush=True)
        if record.exc_info:
            print(logging.Formatter().formatException(record.exc_info), file=sys.stderr, flush=True)


def log_task() -> None:
    """Send all logging of this process to stdout and stderr without prefixes."""
    handler = _TaskLog()
    for name in ("", "absl", "tensorflow", "detloom"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name == "" else []
        logger.propagate = True
    logging.getLogger().setLevel(logging.INFO)
    absl_logging.set_verbosity(absl_logging.INFO)  # not setLevel: TensorFlow saves and restores absl's own verbosity
