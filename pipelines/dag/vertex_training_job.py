"""Training in a custom job of Vertex AI: the executors that start the job, and the program that runs in it.

TFX's own executor (tfx/extensions/google_cloud_ai_platform/trainer/executor.py) differs in one point: its job runs
`tfx.scripts.run_executor`, which does not check that the job's image holds the code the pipeline was compiled for, and
sets no folder for temporary files, which the Tuner needs. We have never run this on Vertex AI.

The job's machines see Cloud Storage under /gcs, as the pipeline's containers do, and receive the paths of the
pipeline's node.
"""

import argparse
import contextlib
import hashlib
import itertools
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
from tfx.utils import import_utils, json_utils, name_utils

from detloom.components.artifact_types import Artifacts
from detloom.components.fingerprints import check_code
from detloom.components.retrain.reuse import Reusing
from detloom.pipelines.dag.vertex_training import CODE_VARIABLE, LINE_VARIABLE
from detloom.pipelines.tfx_line import check_line
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.vertex import MOUNT
from detloom.trainer_module.run_state.run_folder import TRAINING_DIR_VARIABLE
from detloom.trainer_module.runtime.preemption import Preempted

_POLL_SECONDS = 30.0
_MAX_UNSEEN_SECONDS = 3600.0  # a job may run this long although its state cannot be read; training takes hours
# Less than a node's time to shut down: GRACE_SECONDS in container/time_limit.py, equal to a pod's.
_CANCEL_SECONDS = 20.0
_REQUEST_ERRORS = (GoogleAPIError, GoogleAuthError, OSError)
_TASK_LABEL = "detloom_task"
_LOGGER = logging.getLogger("detloom")


class _JobClient(VertexJobClient):
    """A client that replaces the job's program, keeps TFX's arguments, and knows all final states."""

    JOB_STATES_FAILED = (
        *VertexJobClient.JOB_STATES_FAILED,
        JobState.JOB_STATE_EXPIRED,
        JobState.JOB_STATE_PARTIALLY_SUCCEEDED,  # not every machine succeeded, so the model may be missing
    )
    JOB_STATES_COMPLETED = (JobState.JOB_STATE_SUCCEEDED, *JOB_STATES_FAILED)

    def generate_container_command(
        self,
        input_dict: Artifacts,
        output_dict: Artifacts,
        exec_properties: dict[str, Any],
        executor_class_path: str,
    ) -> list[str]:
        command = super().generate_container_command(input_dict, output_dict, exec_properties, executor_class_path)
        assert command[:3] == ["python", "-m", "tfx.scripts.run_executor"], command[:3]
        return ["python", "-m", "detloom.pipelines.dag.vertex_training_job", *command[3:]]

    def launch_job(self, project: str, training_job: dict[str, Any]) -> None:
        """Launch the job, unless that of an earlier attempt of the node continues or has succeeded."""
        request = {
            "parent": f"projects/{project}/locations/{self._region}",
            "filter": f"labels.{_TASK_LABEL}={training_job['labels'][_TASK_LABEL]}",
        }
        lost = (*self.JOB_STATES_FAILED, JobState.JOB_STATE_CANCELLING)
        jobs = self._client.list_custom_jobs(request=request, retry=Retry())
        earlier = next((job for job in jobs if job.state not in lost), None)
        if earlier is None:
            super().launch_job(project, training_job)
            return
        _LOGGER.info("An earlier attempt of this node has launched a job; this attempt waits for it.")
        self._job_name = earlier.name

    def cancel(self) -> None:
        self._client.cancel_custom_job(
            name=self.get_job_name(), retry=Retry(timeout=_CANCEL_SECONDS), timeout=_CANCEL_SECONDS / 2
        )


class _JobExecutor(BaseExecutor):
    """An executor that runs the stock Trainer's executor in the job of `custom_config` and waits until it ends."""

    in_the_job: type[BaseExecutor] = GenericExecutor

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        custom_config = json_utils.loads(exec_properties[standard_component_specs.CUSTOM_CONFIG_KEY])
        job = dict(custom_config[TRAINING_ARGS_KEY])
        project = job.pop("project")
        client = _JobClient(custom_config[VERTEX_REGION_KEY])
        path = name_utils.get_full_name(self.in_the_job)
        training_job = client.create_training_job(input_dict, output_dict, exec_properties, path, job, None, None)
        training_job["labels"][_TASK_LABEL] = _task_hash(output_dict)
        with _launched(client, project, training_job):
            job = _wait(client)
        if client.get_job_state(job) in client.JOB_STATES_FAILED:
            raise RuntimeError(f"{client.get_job_name()}: ended as {job.state.name}: {job.error.message}")


class TrainerExecutor(Reusing, _JobExecutor):
    """Starts no job if the decision names a model that is reused."""


class TunerExecutor(TrainerExecutor):
    """An executor that runs the stock Tuner's executor in a custom job."""

    in_the_job = StockTunerExecutor


@contextlib.contextmanager
def _launched(client: _JobClient, project: str, training_job: dict[str, Any]) -> Iterator[None]:
    """Launch a job; cancel it if the body raises, because it would continue and cost money.

    SIGTERM, which ends a node at its time limit or with its pipeline, raises SystemExit. It is deferred during the
    launch, because until then the job has no name to cancel.
    """
    received: int | None = None
    is_cancelling = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal received
        is_first, received = received is None, number
        if is_first and client.get_job_name() and not is_cancelling:
            sys.exit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # elsewhere Python allows no handlers
    previous = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        client.launch_job(project, training_job)
        if received is not None:
            sys.exit(128 + received)
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


def _task_hash(output_dict: Artifacts) -> str:
    """Return 32 hex digits that are equal for the attempts of one task, which have the same output folders."""
    folders = sorted(artifact.uri for artifacts in output_dict.values() for artifact in artifacts)
    return hashlib.sha256("\0".join(folders).encode()).hexdigest()[:32]


def _cancel(client: _JobClient) -> None:
    """Cancel the job; log an error instead of raising it, because it would hide the original one."""
    name = client.get_job_name()
    try:
        client.cancel()
        _LOGGER.warning("%s is cancelled, because the node that waits for it ends.", name)
    except _REQUEST_ERRORS as error:
        _LOGGER.error("%s could not be cancelled (%s); it continues and costs money.", name, redact(str(error)))


def _wait(client: VertexJobClient) -> CustomJob:
    """Return the job once it has ended; tolerate failing requests for `_MAX_UNSEEN_SECONDS`."""
    seen = time.monotonic()
    while True:
        try:
            job = client.get_job()
            seen = time.monotonic()
            if client.get_job_state(job) in client.JOB_STATES_COMPLETED:
                return job
        except _REQUEST_ERRORS as error:
            if time.monotonic() - seen > _MAX_UNSEEN_SECONDS:
                raise
            message = redact(str(error))
            _LOGGER.warning("%s: its state could not be read (%s); trying again.", client.get_job_name(), message)
        time.sleep(_POLL_SECONDS)


def check_image() -> None:
    """Raise InputError unless this image holds the code and the TFX line that the pipeline was compiled for."""
    if line := os.environ.get(LINE_VARIABLE):
        check_line(line)
    if code := os.environ.get(CODE_VARIABLE):
        check_code(code)


def check_mounted(folder: str) -> None:
    """Raise InputError for a folder in a bucket that is not mounted, or not writable: the model would be lost."""
    if not folder.startswith(MOUNT):
        return
    try:
        if not _is_mounted(MOUNT + folder.removeprefix(MOUNT).partition("/")[0]):
            raise InputError(
                f"{folder}: no bucket is mounted at {MOUNT} in this container. Vertex AI mounts none on machines of "
                "some types; choose another vertex.training.machine_type."
            )
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):  # the pipeline's node has made the folder of the model
            pass
    except OSError as error:
        raise InputError(
            f"{folder}: user {os.getuid()} cannot write there ({error.strerror}). Build the image of vertex.training "
            "with RUN_AS=0, and allow the job's service account to write to the bucket."
        ) from error


def _is_mounted(bucket: str) -> bool:
    """Return whether a folder is on another file system; `os.path.ismount` says no if this user may not enter it."""
    try:
        return os.stat(bucket).st_dev != os.stat("/").st_dev
    except FileNotFoundError:
        return False


def run_executor(arguments: argparse.Namespace) -> None:
    """Run the executor in the arguments, as `tfx.scripts.run_executor` does."""
    executor_class = cast(type[BaseExecutor], import_utils.import_class_by_path(arguments.executor_class_path))
    outputs = artifact_utils.parse_artifact_dict(arguments.outputs)
    folders = [artifact.uri for artifact in itertools.chain.from_iterable(outputs.values())]
    for folder in (*folders, os.environ.get(TRAINING_DIR_VARIABLE, "")):
        check_mounted(folder)
    with tempfile.TemporaryDirectory(prefix="detloom-job-", ignore_cleanup_errors=True) as temporary:
        executor = executor_class(executor_class.Context(tmp_dir=temporary, unique_id="job"))
        executor.Do(
            artifact_utils.parse_artifact_dict(arguments.inputs),
            outputs,
            json.loads(arguments.exec_properties),
        )


def main(argv: Sequence[str]) -> None:
    """Run the program of the job."""
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
