"""The driver of DetectionExampleGen on clusters, which selects a span's folders and lists their content.

On one machine TFX runs a component's driver. Vertex AI runs a command for it before it checks its cache
(`lifecycle.preCacheCheck`; TFX compiles that only for its own ExampleGens, see
tfx/orchestration/kubeflow/v2/file_based_example_gen/driver.py), and the executor reads the result from the output
file. Open-source Kubeflow Pipelines does not run that command; there the driver runs in the executor's process.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.components.example_gen import driver as tfx_driver
from tfx.components.example_gen import utils
from tfx.dsl.io import fileio
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils
from tfx.types import artifact_utils, standard_component_specs

from detloom.components.example_gen.component import EXAMPLES_KEY
from detloom.components.example_gen.driver import DATA_FOLDERS_KEY, Driver
from detloom.pipelines.container.artifacts import finish_output, read_output, write_output
from detloom.pipelines.container.run_node import Task, log_start, node_name, parse_task, to_local_paths
from detloom.pipelines.container.task_storage import TaskStorage
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import EMBEDDED_DIGITS

_INPUT_BASE = standard_component_specs.INPUT_BASE_KEY
_RESULT_KEYS = (
    utils.SPAN_PROPERTY_NAME,
    utils.VERSION_PROPERTY_NAME,
    utils.FINGERPRINT_PROPERTY_NAME,
    standard_component_specs.INPUT_CONFIG_KEY,
    DATA_FOLDERS_KEY,
)


def run_driver_task(task: Task, storage: TaskStorage) -> None:
    """Write the driver's result to the output file."""
    executor_input, inputs_spec = parse_task(task)
    log_start(task, f"driver of {node_name(executor_input, task)}")
    addresses = to_local_paths(executor_input, storage)
    with local_data(executor_input.inputs, storage):
        output = run_driver(executor_input, inputs_spec)
    path = executor_input.outputs.output_file
    write_output(path, output)
    finish_output(path, addresses, page_keys=())


@contextlib.contextmanager
def with_driver(executor_input: Any, inputs_spec: Any, storage: TaskStorage) -> Iterator[None]:
    """Apply the driver's result, earlier or new, and keep the data available for the executor; a `Preparation`."""
    with local_data(executor_input.inputs, storage):
        result = read_earlier_result(executor_input) or run_driver(executor_input, inputs_spec)
        apply(result, executor_input)
        yield


@contextlib.contextmanager
def local_data(inputs: Any, storage: TaskStorage) -> Iterator[None]:
    """Replace the data's address by a local folder in the parameters of `ExecutorInput.Inputs`.

    Demo data is generated, and removed at the end.

    Raises:
        InputError: if the bucket is not mounted here.
    """
    parameter = inputs.parameter_values[_INPUT_BASE]
    address = parameter.string_value
    if address == EMBEDDED_DIGITS:
        from detloom.pipelines.samples.demo_data import write_embedded_digits  # late: scikit-learn

        with tempfile.TemporaryDirectory(prefix="detloom-data-") as folder:
            parameter.string_value = os.path.join(folder, "digits")
            write_embedded_digits(Path(parameter.string_value))
            for path in Path(parameter.string_value).rglob("*"):
                os.utime(path, (0, 0))  # so that generated data always has the same fingerprint
            yield
        return
    bucket = storage.bucket_folder(address)
    if bucket is not None and not os.path.isdir(bucket):
        raise InputError(
            f"data.path: {address} is not mounted at {bucket}; on Kubeflow use a folder on a volume "
            "(kubeflow.volumes), on Vertex AI allow the service account to read the bucket."
        )
    parameter.string_value = storage.local_path(address)
    yield


def read_earlier_result(executor_input: Any) -> Any | None:
    """Return the driver's result in the output file, where Vertex AI and TFX's container code look for it, if any."""
    path = executor_input.outputs.output_file
    output = read_output(path) if fileio.exists(path) else None
    return output if output is not None and DATA_FOLDERS_KEY in output.parameter_values else None


def run_driver(executor_input: Any, inputs_spec: Any) -> Any:
    """Run the driver.

    Returns:
        `ExecutorOutput` with the resolved parameters, and the examples artifact with span, version and fingerprint as
        custom properties, as on one machine.
    """
    properties = kubeflow_v2_entrypoint_utils.parse_execution_properties(
        executor_input.inputs.parameter_values, executor_input.inputs.parameters, inputs_spec
    )
    resolved = Driver(None).resolve_exec_properties(properties, None, None)
    output = pipeline_spec_pb2.ExecutorOutput()
    for key in _RESULT_KEYS:
        value = resolved[key]
        if isinstance(value, str):
            output.parameter_values[key].string_value = value
        elif value is not None:  # there is no version if the path contains none
            output.parameter_values[key].number_value = value
    names: dict[int, str] = {}
    outputs = kubeflow_v2_entrypoint_utils.parse_raw_artifact_dict(executor_input.outputs.artifacts, names)
    examples = artifact_utils.get_single_instance(outputs[EXAMPLES_KEY])
    tfx_driver.update_output_artifact(resolved, examples.mlmd_artifact)
    runtime_artifact = kubeflow_v2_entrypoint_utils.to_runtime_artifact(examples, names)
    output.artifacts[EXAMPLES_KEY].artifacts.append(runtime_artifact)
    return output


def apply(output: Any, executor_input: Any) -> None:
    """Apply the driver's result to the task's parameters and output artifact, as Vertex AI does."""
    for key, value in output.parameter_values.items():
        executor_input.inputs.parameter_values[key].CopyFrom(value)
    examples = executor_input.outputs.artifacts[EXAMPLES_KEY].artifacts[0]
    examples.metadata.CopyFrom(output.artifacts[EXAMPLES_KEY].artifacts[0].metadata)
