"""One task, from the backend's `ExecutorInput` to the `ExecutorOutput` file, by way of TFX's own container code.

TFX's `kubeflow_v2_run_executor` runs the executor. Its arguments are changed before (types, local paths, the driver's
answer) and the file that it writes is changed after; nothing of it is copied.
"""

import logging
import platform
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.io import fileio
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_run_executor
from tfx.types import value_artifact

import detloom
from detloom.pipelines.container.executor_output import PAGE_TITLES, finish_output, write_output
from detloom.pipelines.container.input_types import class_of, complete_inputs, register_titles, title_of
from detloom.pipelines.container.package_files import SCHEME, file_of
from detloom.pipelines.container.storage import Addresses, Storage, make_parent
from detloom.schemas.run_file import Place

EXAMPLE_GEN = "detloom.components.example_gen.executor.Executor"  # the one with a driver
VERTEX_PUSHER = "detloom.components.pusher.vertex.VertexExecutor"  # names its output to Vertex AI, which has no mount
_LOGS = "executor-logs"  # the open-source driver adds it to a task's outputs (driver.go, `provisionOutputs`); no node's
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the backend says on the command line.

    Attributes:
        executor_class_path: empty for a driver.
        invocation: `ExecutorInput` as JSON.
        inputs_spec: `ComponentInputsSpec` as JSON.
    """

    place: Place
    executor_class_path: str
    invocation: str
    inputs_spec: str
    beam_args: Sequence[str]


def run_node(task: Task, storage: Storage) -> None:
    """Run a node's executor."""
    if task.executor_class_path == VERTEX_PUSHER:
        storage = replace(storage, is_mounted=False)
    executor_input, inputs_spec = _parse(task)
    log_start(task, node_name(executor_input, task))
    complete_inputs(executor_input.inputs, inputs_spec)
    if _LOGS in executor_input.outputs.artifacts:
        del executor_input.outputs.artifacts[_LOGS]
    addresses = _to_local_paths(executor_input, storage)
    _make_output_folders(executor_input.outputs)
    _use_package_files(executor_input.inputs)
    if task.executor_class_path == EXAMPLE_GEN:
        from detloom.pipelines.container import example_gen_driver as driver  # late: Beam, and half of the package

        with driver.local_data(executor_input.inputs, storage):
            answer = driver.earlier_answer(executor_input) or driver.answer(executor_input, inputs_spec)
            driver.apply(answer, executor_input)
            _execute(task, executor_input)
    else:
        _execute(task, executor_input)
    finish_output(executor_input.outputs.output_file, addresses, _page_keys(executor_input.outputs))


def run_driver(task: Task, storage: Storage) -> None:
    """Write the answer of DetectionExampleGen's driver into the output file."""
    from detloom.pipelines.container import example_gen_driver as driver

    executor_input, inputs_spec = _parse(task)
    log_start(task, f"driver of {node_name(executor_input, task)}")
    addresses = _to_local_paths(executor_input, storage)
    with driver.local_data(executor_input.inputs, storage):
        output = driver.answer(executor_input, inputs_spec)
    path = executor_input.outputs.output_file
    write_output(path, output)
    finish_output(path, addresses, page_keys=())


def node_name(executor_input: Any, task: Task) -> str:
    """The node's id, from the address of an output or of the output file; the executor's path where it is not there.

    Addresses are ROOT/TASK/RANDOM/OUTPUT on Kubeflow (kubeflow/pipelines, backend/src/v2/driver/driver.go,
    `provisionOutputs`; older releases have the output file in /tmp), and ROOT/PROJECT/JOB/TASK_NUMBER/OUTPUT on Vertex.
    """
    outputs = executor_input.outputs
    uris = [artifact.uri for artifacts in outputs.artifacts.values() for artifact in artifacts.artifacts]
    parts = (uris[0] if uris else outputs.output_file).split("/")
    if len(parts) < 6:  # scheme, nothing, bucket and the three
        return task.executor_class_path
    return parts[-3] if task.place == "kubeflow" else parts[-2].rpartition("_")[0] or parts[-2]


def log_start(task: Task, node: str) -> None:
    """The first line of a task's log."""
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
    except metadata.PackageNotFoundError:  # such as tensorflow-cpu under another name
        return "(version unknown)"


def _parse(task: Task) -> tuple[Any, Any]:
    register_titles()
    executor_input = pipeline_spec_pb2.ExecutorInput()
    json_format.Parse(task.invocation, executor_input, ignore_unknown_fields=True)  # of a newer backend
    inputs_spec = pipeline_spec_pb2.ComponentInputsSpec()
    json_format.Parse(task.inputs_spec, inputs_spec, ignore_unknown_fields=True)
    return executor_input, inputs_spec


def _to_local_paths(executor_input: Any, storage: Storage) -> Addresses:
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
    """As TFX's launcher does on one machine; not in an object store, where folders would be empty objects."""
    make_parent(outputs.output_file)
    for artifacts in outputs.artifacts.values():
        for artifact in artifacts.artifacts:
            make_parent(artifact.uri)
            is_value = issubclass(class_of(artifact.type), value_artifact.ValueArtifact)
            if not is_value and "://" not in artifact.uri:
                fileio.makedirs(artifact.uri)


def _use_package_files(inputs: Any) -> None:
    for value in inputs.parameter_values.values():
        if value.string_value.startswith(SCHEME):
            value.string_value = str(file_of(value.string_value))


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
