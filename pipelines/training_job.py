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

from google.api_core.exceptions import GoogleAPIError
from google.api_core.retry import Retry
from google.auth.exceptions import GoogleAuthError
from google.cloud.aiplatform_v1.types import CustomJob, JobState
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
from detloom.schemas.redact import redact
from detloom.trainer_module.preemption import Preempted

_SECONDS_BETWEEN_LOOKS = 30.0
_SECONDS_UNSEEN = 3600.0  # that a job may run while nobody can look at it; a training takes hours
_CANCEL_SECONDS = 20.0  # less than a node is given to end: GRACE_SECONDS of container/time_limit.py, as of a pod
_FAILED_LOOK = (GoogleAPIError, GoogleAuthError, OSError)
_LOGGER = logging.getLogger("detloom")


class _JobClient(VertexJobClient):
    """Puts our program into the job; its arguments stay those that TFX makes. Knows all states that are an end."""

    JOB_STATES_FAILED = (
        *VertexJobClient.JOB_STATES_FAILED,
        JobState.JOB_STATE_EXPIRED,
        JobState.JOB_STATE_PARTIALLY_SUCCEEDED,  # a machine of several did not, so that there may be no model
    )
    JOB_STATES_COMPLETED = (JobState.JOB_STATE_SUCCEEDED, *JOB_STATES_FAILED)

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
        self._client.cancel_custom_job(
            name=self.get_job_name(), retry=Retry(timeout=_CANCEL_SECONDS), timeout=_CANCEL_SECONDS / 2
        )


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
        with _launched(client, project, training_job):
            job = _wait(client)
        if client.get_job_state(job) in client.JOB_STATES_FAILED:
            raise RuntimeError(f"{client.get_job_name()}: ended as {job.state.name}: {job.error.message}")


class TunerExecutor(TrainerExecutor):
    """The same for the stock Tuner."""

    in_the_job = StockTunerExecutor


@contextlib.contextmanager
def _launched(client: _JobClient, project: str, training_job: dict[str, Any]) -> Iterator[None]:
    """A job that is cancelled if the body does not end by itself: it would go on and cost money.

    SIGTERM, which ends a node by its time limit or with its pipeline, is one reason. It waits while the job is being
    launched: until then there is no name to cancel.
    """
    told: int | None = None
    is_cancelling = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        is_first, told = told is None, number
        if is_first and client.get_job_name() and not is_cancelling:
            sys.exit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # elsewhere Python allows no handlers
    previous = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        client.launch_job(project, training_job)
        if told is not None:
            sys.exit(128 + told)
        _LOGGER.info("Training runs as %s.", client.get_job_name())
        yield
    except BaseException:
        is_cancelling = True
        if client.get_job_name():
            _cancel(client)
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, previous)


def _cancel(client: _JobClient) -> None:
    """Without an error of its own, which would hide the reason."""
    name = client.get_job_name()
    try:
        client.cancel()
        _LOGGER.warning("%s is cancelled: the node that waited for it ends.", name)
    except _FAILED_LOOK as error:
        _LOGGER.error("%s goes on, and costs money: it could not be cancelled (%s).", name, redact(str(error)))


def _wait(client: VertexJobClient) -> CustomJob:
    """The job when it has ended; a look at it may fail for `_SECONDS_UNSEEN`."""
    seen = time.monotonic()
    while True:
        try:
            job = client.get_job()
            seen = time.monotonic()
            if client.get_job_state(job) in client.JOB_STATES_COMPLETED:
                return job
        except _FAILED_LOOK as error:
            if time.monotonic() - seen > _SECONDS_UNSEEN:
                raise
            said = redact(str(error))
            _LOGGER.warning("%s: could not be looked at (%s); tried again.", client.get_job_name(), said)
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
