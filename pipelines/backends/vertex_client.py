"""Runs and schedules on Vertex AI Pipelines through its v1 API."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import google.auth
from google.api_core.client_options import ClientOptions
from google.cloud.aiplatform_v1.services.pipeline_service import PipelineServiceClient
from google.cloud.aiplatform_v1.services.schedule_service import ScheduleServiceClient
from google.cloud.aiplatform_v1.types import pipeline_job as job_types
from google.cloud.aiplatform_v1.types import pipeline_service, schedule_service
from google.cloud.aiplatform_v1.types import schedule as schedule_types
from google.protobuf import field_mask_pb2, json_format

from detloom.pipelines.backends.api_errors import ApiError, Kind, Server, shorten_message, translate_errors
from detloom.pipelines.backends.compiled_job import CompiledJob
from detloom.pipelines.backends.run_status import (
    RunState,
    RunStatus,
    ScheduleState,
    ScheduleStatus,
    TaskState,
    TaskStatus,
    fill_in,
    planned_tasks,
    start_of,
)
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.run_file import RunFile
from detloom.schemas.run_file.schedule import Schedule
from detloom.schemas.run_file.vertex import Vertex

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True, kw_only=True)
class VertexApi:
    """The services of one region.

    The generated clients are used directly: aiplatform.PipelineJob.submit would create a missing bucket, and its
    `enable_caching=True` would enable the cache for tasks that must not use it (googleapis/python-aiplatform,
    google/cloud/aiplatform/pipeline_jobs.py).
    """

    server: Server
    pipelines: Any
    schedules: Any


def vertex_server(settings: Vertex) -> Server:
    """Return the server's name and next steps, for messages."""
    account = f" and 'Service Account User' on {settings.service_account}" if settings.service_account else ""
    steps: dict[Kind, str] = {
        "signed out": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
        "forbidden": f"ask for the role 'Vertex AI User' on the project {settings.project}{account}",
        "quota": f"wait and try again, or ask for more quota in {settings.region}",
        "not found": "check the id, vertex.project and vertex.region",
        "unreachable": "check vertex.region, the network and proxies",
        "tls": "check proxies that inspect TLS; GRPC_DEFAULT_SSL_ROOTS_FILE_PATH sets other authorities",
    }
    return Server(name=f"Vertex AI in {settings.region} (project {settings.project})", next_steps=steps)


def connect_vertex(settings: Vertex) -> VertexApi:
    """Connect with Application Default Credentials.

    Raises:
        ApiError: if there are no credentials.
    """
    server = vertex_server(settings)
    with translate_errors(server, "sign in"):
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    options = ClientOptions(api_endpoint=f"{settings.region}-aiplatform.googleapis.com")
    return VertexApi(
        server=server,
        pipelines=PipelineServiceClient(credentials=credentials, client_options=options),
        schedules=ScheduleServiceClient(credentials=credentials, client_options=options),
    )


_CONSOLE = "https://console.cloud.google.com/vertex-ai/locations"
_TIMEOUT_SECONDS = 60.0
# The fields needed in a list, because specs are large; googleapis/python-aiplatform reads the same fields
# (google/cloud/aiplatform/constants/pipeline.py, _READ_MASK_FIELDS).
_LISTED = ("name", "state", "display_name", "create_time", "start_time", "end_time")
_RUN_STATES: dict[str, RunState] = {
    "PIPELINE_STATE_QUEUED": "pending",
    "PIPELINE_STATE_PENDING": "pending",
    "PIPELINE_STATE_RUNNING": "running",
    "PIPELINE_STATE_SUCCEEDED": "succeeded",
    "PIPELINE_STATE_FAILED": "failed",
    "PIPELINE_STATE_CANCELLING": "running",
    "PIPELINE_STATE_CANCELLED": "cancelled",
    "PIPELINE_STATE_PAUSED": "paused",
}
_TASK_STATES: dict[str, TaskState] = {  # SKIPPED: "due to cache hit" (types/pipeline_job.py)
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "CANCEL_PENDING": "running",
    "CANCELLING": "running",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "SKIPPED": "cached",
    "NOT_TRIGGERED": "skipped",
}
_SCHEDULE_STATES: dict[str, ScheduleState] = {"ACTIVE": "active", "PAUSED": "paused", "COMPLETED": "completed"}


class VertexBackend:
    """The runs and schedules of a pipeline in a project and region."""

    def __init__(self, settings: Vertex, pipeline_name: str, api: VertexApi) -> None:
        self._settings, self._pipeline_name, self._api = settings, pipeline_name, api
        self._parent = f"projects/{settings.project}/locations/{settings.region}"

    def warnings(self, run: RunFile) -> list[str]:
        return []

    def submit(self, job: CompiledJob, name: str) -> RunStatus:
        request = pipeline_service.CreatePipelineJobRequest(
            parent=self._parent, pipeline_job=self._job_message(job, name), pipeline_job_id=name
        )
        return self._run_status(
            self._call(self._api.pipelines.create_pipeline_job, f"submit the run '{name}'", request)
        )

    def find_run(self, name: str) -> RunStatus | None:
        try:
            return self.get_run(name)
        except ApiError as error:
            if error.kind == "not found":
                return None
            raise

    def get_run(self, run_id: str) -> RunStatus:
        request = pipeline_service.GetPipelineJobRequest(name=f"{self._parent}/pipelineJobs/{_last(run_id)}")
        found = self._call(self._api.pipelines.get_pipeline_job, f"read the run '{run_id}'", request)
        return self._run_status(found, with_tasks=True)

    def latest_runs(self, limit: int) -> list[RunStatus]:
        return self._list_runs(f'pipeline_name="{self._pipeline_name}"', limit)

    def create_schedule(self, job: CompiledJob, schedule: Schedule, name: str) -> ScheduleStatus:
        message = schedule_types.Schedule(
            display_name=name,
            cron=f"TZ={schedule.timezone} {schedule.cron}",
            start_time=start_of(schedule),
            end_time=schedule.end_time,
            max_concurrent_run_count=schedule.max_concurrency,
            allow_queueing=schedule.catch_up,
            create_pipeline_job_request=pipeline_service.CreatePipelineJobRequest(
                parent=self._parent, pipeline_job=self._job_message(job, name)
            ),
        )
        request = schedule_service.CreateScheduleRequest(parent=self._parent, schedule=message)
        return self._schedule_status(self._call(self._api.schedules.create_schedule, "create the schedule", request))

    def list_schedules(self) -> list[ScheduleStatus]:
        return [self._schedule_status(each) for each in self._schedules()]

    def own_schedules(self) -> list[ScheduleStatus]:
        found = []
        for each in self._schedules():
            if self._is_ours(each):
                runs = self._list_runs(f"schedule_name={each.name}", 1)
                found.append(self._schedule_status(each, runs[0] if runs else None))
        return found

    def pause_schedule(self, schedule_id: str) -> None:
        request = schedule_service.PauseScheduleRequest(name=self._schedule_name(schedule_id))
        self._call(self._api.schedules.pause_schedule, "pause the schedule", request)

    def resume_schedule(self, schedule_id: str, *, catch_up: bool) -> None:
        request = schedule_service.ResumeScheduleRequest(name=self._schedule_name(schedule_id), catch_up=catch_up)
        self._call(self._api.schedules.resume_schedule, "resume the schedule", request)

    def delete_schedule(self, schedule_id: str) -> None:
        request = schedule_service.DeleteScheduleRequest(name=self._schedule_name(schedule_id))
        with translate_errors(self._api.server, "delete the schedule"):
            operation = _send(self._api.schedules.delete_schedule, request)
            operation.result(timeout=_TIMEOUT_SECONDS)

    def _call(self, method: Callable[..., Any], action: str, request: Any) -> Any:
        with translate_errors(self._api.server, action):
            return _send(method, request)

    def _list_runs(self, query: str, limit: int) -> list[RunStatus]:
        request = pipeline_service.ListPipelineJobsRequest(
            parent=self._parent,
            filter=query,
            page_size=limit,
            order_by="create_time desc",
            read_mask=field_mask_pb2.FieldMask(paths=_LISTED),
        )
        with translate_errors(self._api.server, "read the runs"):
            found = _send(self._api.pipelines.list_pipeline_jobs, request)
            return [self._run_status(job) for job in itertools.islice(found, limit)]

    def _schedules(self) -> list[Any]:
        """Return the schedules of pipelines, newest first."""
        request = schedule_service.ListSchedulesRequest(
            parent=self._parent, filter="create_pipeline_job_request:*", order_by="create_time desc"
        )
        with translate_errors(self._api.server, "read the schedules"):
            return list(_send(self._api.schedules.list_schedules, request))

    def _job_message(self, job: CompiledJob, name: str) -> Any:
        plain: dict[str, Any] = {
            "displayName": name,
            "pipelineSpec": job.spec,
            "labels": {**job.labels, **(self._settings.labels or {})},
            "runtimeConfig": {"gcsOutputDirectory": self._settings.pipeline_root, **job.runtime_config},
        }
        if self._settings.service_account:
            plain["serviceAccount"] = self._settings.service_account
        if self._settings.network:
            plain["network"] = self._settings.network
        if self._settings.encryption_key:
            plain["encryptionSpec"] = {"kmsKeyName": self._settings.encryption_key}
        message = job_types.PipelineJob()
        try:
            json_format.ParseDict(plain, job_types.PipelineJob.pb(message))
        except json_format.ParseError as error:
            raise InputError(
                f"the compiled job is not a PipelineJob of Vertex AI ({shorten_message(str(error))})."
            ) from None
        return message

    def _is_ours(self, schedule: Any) -> bool:
        spec = _plain_spec(schedule.create_pipeline_job_request.pipeline_job)
        if not spec:
            return bool(schedule.display_name.startswith(self._pipeline_name))
        return bool(spec.get("pipelineInfo", {}).get("name") == self._pipeline_name)

    def _run_status(self, job: Any, with_tasks: bool = False) -> RunStatus:
        run_id = _last(job.name)
        state = _RUN_STATES.get(job.state.name, "unknown")
        planned = planned_tasks(_plain_spec(job)) if with_tasks else ()
        details = job.job_detail.task_details if with_tasks else ()
        return RunStatus(
            run_id=run_id,
            name=job.display_name or run_id,
            state=state,
            link=f"{_CONSOLE}/{self._settings.region}/pipelines/runs/{run_id}?project={self._settings.project}",
            created=job.create_time,
            started=job.start_time or job.create_time,
            ended=job.end_time,
            error=self._error_of(job),
            tasks=fill_in(planned, {detail.task_name: self._task_status(detail) for detail in details}, state),
        )

    def _task_status(self, detail: Any) -> TaskStatus:
        state = _TASK_STATES.get(detail.state.name, "unknown")
        is_failed = state == "failed"
        return TaskStatus(
            name=detail.task_name,
            state=state,
            started=detail.start_time or detail.create_time,
            ended=detail.end_time,
            error=self._error_of(detail) if is_failed else "",
        )

    def _error_of(self, item: Any) -> str:
        return shorten_message(item.error.message, self._api.server.secrets)

    def _schedule_status(self, schedule: Any, last_run: RunStatus | None = None) -> ScheduleStatus:
        schedule_id = _last(schedule.name)
        state = _SCHEDULE_STATES.get(schedule.state.name, "unknown")
        return ScheduleStatus(
            schedule_id=schedule_id,
            name=schedule.display_name,
            state=state,
            cron=schedule.cron,
            link=f"{_CONSOLE}/{self._settings.region}/pipelines/schedules/{schedule_id}?project={self._settings.project}",
            next_time=schedule.next_run_time if state == "active" else None,
            last_run=last_run,
        )

    def _schedule_name(self, schedule_id: str) -> str:
        return f"{self._parent}/schedules/{schedule_id}"


def _send(method: Callable[..., Any], request: Any) -> Any:
    """Send a request once, with a timeout: the generated clients have none of their own (transports/base.py)."""
    return method(request=request, retry=None, timeout=_TIMEOUT_SECONDS)


def _last(resource_name: str) -> str:
    return resource_name.rpartition("/")[2]


def _plain_spec(job: Any) -> dict[str, Any]:
    """Return the pipeline spec of a job as plain data."""
    spec: dict[str, Any] = json_format.MessageToDict(type(job).pb(job).pipeline_spec)
    return spec
