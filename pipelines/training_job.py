"""Training in a custom job of Vertex AI: the executors that start one, and the program that runs in it.

TFX's own (tfx/extensions/google_cloud_ai_platform/trainer/executor.py) does the same with one difference: in the job it
starts `tfx.scripts.run_executor`, which knows neither whether the job's image holds the code that the pipeline was
compiled for, nor where an executor may keep temporary files, which the Tuner needs. Never run by us on Vertex AI.

The job's machines see Cloud Storage below /gcs, as the pipeline's containers do, and get the paths that the pipeline's
node had.
"""

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, cast

from tfx.components.trainer.executor import GenericExecutor
from tfx.components.tuner.executor import Executor as StockTunerExecutor
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.extensions.google_cloud_ai_platform.constants import VERTEX_REGION_KEY
from tfx.extensions.google_cloud_ai_platform.trainer.executor import TRAINING_ARGS_KEY
from tfx.extensions.google_cloud_ai_platform.training_clients import VertexJobClient
from tfx.scripts.run_executor import parse_flags
from tfx.types import artifact_utils, standard_component_specs
from tfx.types.artifact import Artifact
from tfx.utils import import_utils, json_utils, name_utils

from detloom.pipelines.compile.vertex_training import FINGERPRINT_VARIABLE
from detloom.pipelines.package_fingerprint import package_fingerprint
from detloom.schemas.errors import InputError
from detloom.trainer_module.preemption import Preempted

_SECONDS_BETWEEN_LOOKS = 30.0
_LOGGER = logging.getLogger("detloom")


class _JobClient(VertexJobClient):
    """Puts our program into the job; its arguments stay those that TFX makes."""

    def generate_container_command(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
        executor_class_path: str,
    ) -> list[str]:
        command = super().generate_container_command(input_dict, output_dict, exec_properties, executor_class_path)
        assert command[:3] == ["python", "-m", "tfx.scripts.run_executor"], command[:3]
        return ["python", "-m", "detloom.pipelines.training_job", *command[3:]]

    def cancel(self) -> None:
        self._client.cancel_custom_job(name=self.get_job_name())


class TrainerExecutor(BaseExecutor):
    """Starts the stock Trainer's executor in the job that `custom_config` describes, and waits for its end."""

    in_the_job: type[BaseExecutor] = GenericExecutor

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        custom_config = json_utils.loads(exec_properties[standard_component_specs.CUSTOM_CONFIG_KEY])
        job = dict(custom_config[TRAINING_ARGS_KEY])
        project = job.pop("project")
        client = _JobClient(custom_config[VERTEX_REGION_KEY])
        path = name_utils.get_full_name(self.in_the_job)
        training_job = client.create_training_job(input_dict, output_dict, exec_properties, path, job, None, None)
        client.launch_job(project, training_job)
        _LOGGER.info("Training runs as %s.", client.get_job_name())
        with _cancelled_on_sigterm(client):
            _wait(client)


class TunerExecutor(TrainerExecutor):
    """The same for the stock Tuner."""

    in_the_job = StockTunerExecutor


@contextlib.contextmanager
def _cancelled_on_sigterm(client: _JobClient) -> Iterator[None]:
    """A node that is ended, by its time limit or with its pipeline, ends the job: it would go on and cost money."""

    def cancel(number: int, frame: FrameType | None) -> None:
        _LOGGER.warning("%s is cancelled: the node that waits for it was told to end.", client.get_job_name())
        client.cancel()
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _wait(client: VertexJobClient) -> None:
    """Until the job has ended.

    Raises:
        RuntimeError: if it failed, with what Vertex AI says.
    """
    while True:
        job = client.get_job()
        state = client.get_job_state(job)
        if state in client.JOB_STATES_FAILED:
            raise RuntimeError(f"{client.get_job_name()}: ended as {state.name}: {job.error.message}")
        if state in client.JOB_STATES_COMPLETED:
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def check_image() -> None:
    """Raise InputError unless this image holds the code that the pipeline was compiled for."""
    wanted, found = os.environ.get(FINGERPRINT_VARIABLE, ""), package_fingerprint()
    if wanted and wanted != found:
        raise InputError(
            f"{FINGERPRINT_VARIABLE}: the pipeline was compiled for the code {wanted}, but this image holds {found}; "
            "build the image of vertex.training from the same code, or compile the run file again."
        )


def run_executor(arguments: argparse.Namespace) -> None:
    """Run the executor that the arguments name, as `tfx.scripts.run_executor` does."""
    executor_class = cast(type[BaseExecutor], import_utils.import_class_by_path(arguments.executor_class_path))
    with tempfile.TemporaryDirectory(prefix="detloom-job-", ignore_cleanup_errors=True) as folder:
        executor = executor_class(executor_class.Context(tmp_dir=folder, unique_id="job"))
        executor.Do(
            artifact_utils.parse_artifact_dict(arguments.inputs),
            artifact_utils.parse_artifact_dict(arguments.outputs),
            json.loads(arguments.exec_properties),
        )


def main(argv: Sequence[str]) -> None:
    """The job's program."""
    logging.basicConfig(level=logging.INFO)
    try:
        check_image()
        run_executor(parse_flags(list(argv))[0])
    except Preempted as preempted:
        sys.exit(128 + preempted.signal_number)
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv)
