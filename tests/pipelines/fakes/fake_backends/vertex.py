"""Vertex AI's services for pipelines and schedules over gRPC, with the generated messages of aiplatform_v1."""

import itertools
import re
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import grpc
from google.cloud.aiplatform_v1.services.pipeline_service import PipelineServiceClient
from google.cloud.aiplatform_v1.services.pipeline_service.transports import PipelineServiceGrpcTransport
from google.cloud.aiplatform_v1.services.schedule_service import ScheduleServiceClient
from google.cloud.aiplatform_v1.services.schedule_service.transports import ScheduleServiceGrpcTransport
from google.cloud.aiplatform_v1.types import pipeline_job, pipeline_service, pipeline_state, schedule, schedule_service
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.backends.vertex_client import VertexApi, vertex_server
from detloom.schemas.run_file.vertex import Vertex

START = datetime(2026, 1, 31, 3, 0, tzinfo=timezone.utc)
NEXT = datetime(2099, 1, 1, 2, 0, tzinfo=timezone.utc)
PARENT = "projects/my-project/locations/us-central1"
SETTINGS = Vertex(project="my-project", region="us-central1", image="x/detloom:1", pipeline_root="gs://bucket/root")
_PACKAGE = "google.cloud.aiplatform.v1"
_JOB_ID = re.compile("[a-z][-a-z0-9]{0,126}")


@dataclass
class FakeVertex:
    """A fake region.

    Attributes:
        jobs, schedules: by resource name, oldest first.
        failures: results of the next calls of a method, such as {"CreatePipelineJob": [(code, message)]}; the code None
            lets a call pass.
        done_anyway: methods whose failing calls are executed nevertheless.
        calls: names of methods, in order.
        deadlines: timeout of each call in seconds.
    """

    jobs: dict[str, Any] = field(default_factory=dict)
    schedules: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, list[tuple[grpc.StatusCode | None, str]]] = field(default_factory=dict)
    done_anyway: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    _schedule_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def __enter__(self) -> "FakeVertex":
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        job, plan = pipeline_job.PipelineJob, schedule.Schedule
        of_pipelines = {
            "CreatePipelineJob": (pipeline_service.CreatePipelineJobRequest, job, self._create_job),
            "GetPipelineJob": (pipeline_service.GetPipelineJobRequest, job, self._get_job),
            "ListPipelineJobs": (
                pipeline_service.ListPipelineJobsRequest,
                pipeline_service.ListPipelineJobsResponse,
                self._list_jobs,
            ),
        }
        of_schedules = {
            "CreateSchedule": (schedule_service.CreateScheduleRequest, plan, self._create_schedule),
            "ListSchedules": (
                schedule_service.ListSchedulesRequest,
                schedule_service.ListSchedulesResponse,
                self._list_schedules,
            ),
            "PauseSchedule": (schedule_service.PauseScheduleRequest, None, self._pause),
            "ResumeSchedule": (schedule_service.ResumeScheduleRequest, None, self._resume),
            "DeleteSchedule": (schedule_service.DeleteScheduleRequest, operations_pb2.Operation, self._delete),
        }
        of_operations = {"GetOperation": (operations_pb2.GetOperationRequest, operations_pb2.Operation, self._done)}
        for service, methods in (
            (f"{_PACKAGE}.PipelineService", of_pipelines),
            (f"{_PACKAGE}.ScheduleService", of_schedules),
            ("google.longrunning.Operations", of_operations),
        ):
            handlers = {name: self._handler(name, *rest) for name, rest in methods.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._server.stop(None)

    def api(self, settings: Vertex = SETTINGS) -> VertexApi:
        """Return the API as `connect_vertex` does, without credentials."""
        return VertexApi(
            server=vertex_server(settings),
            pipelines=PipelineServiceClient(transport=PipelineServiceGrpcTransport(channel=self._channel)),
            schedules=ScheduleServiceClient(transport=ScheduleServiceGrpcTransport(channel=self._channel)),
        )

    def fail(self, method: str, code: grpc.StatusCode | None, message: str = "") -> None:
        self.failures.setdefault(method, []).append((code, message))

    def add_job(self, job_id: str, pipeline: str = "cells", state: str = "RUNNING", **values: Any) -> Any:
        created = START + timedelta(hours=len(self.jobs))
        values.setdefault("pipeline_spec", {"pipelineInfo": {"name": pipeline}})
        found = pipeline_job.PipelineJob(
            name=f"{PARENT}/pipelineJobs/{job_id}",
            state=pipeline_state.PipelineState[f"PIPELINE_STATE_{state}"],
            create_time=created,
            **{"display_name": job_id, "start_time": created, **values},
        )
        self.jobs[found.name] = found
        return found

    def _handler(self, name: str, request: Any, answer: Any, function: Any) -> Any:
        def call(message: Any, context: grpc.ServicerContext) -> Any:
            self.calls.append(name)
            self.deadlines.append(context.time_remaining())
            pending = self.failures.get(name, [])
            code, said = pending.pop(0) if pending else (None, "")
            if code is None:
                return function(message, context)
            if name in self.done_anyway:
                function(message, context)
            return context.abort(code, said)

        is_plus = hasattr(request, "deserialize")
        serialize = (
            (lambda message: message.SerializeToString())
            if answer in (None, operations_pb2.Operation)
            else answer.serialize
        )
        deserialize = request.deserialize if is_plus else request.FromString
        return grpc.unary_unary_rpc_method_handler(call, deserialize, serialize)

    def _create_job(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert request.parent == PARENT
        assert _JOB_ID.fullmatch(request.pipeline_job_id), request.pipeline_job_id
        _check_job(request.pipeline_job)
        name = f"{PARENT}/pipelineJobs/{request.pipeline_job_id}"
        if name in self.jobs:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"PipelineJob {name} already exists.")
        request.pipeline_job.name = name
        request.pipeline_job.state = pipeline_state.PipelineState.PIPELINE_STATE_PENDING
        request.pipeline_job.create_time = START + timedelta(hours=len(self.jobs))
        self.jobs[name] = request.pipeline_job
        return request.pipeline_job

    def _get_job(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.name not in self.jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"The PipelineJob {request.name} does not exist.")
        return self.jobs[request.name]

    def _list_jobs(self, request: Any, context: grpc.ServicerContext) -> Any:
        key, _, value = request.filter.partition("=")
        assert request.order_by == "create_time desc"
        found = [job for job in self.jobs.values() if _value(job, key) == value.strip('"')]
        found.sort(key=lambda job: job.create_time, reverse=True)
        first = int(request.page_token or 0)
        page = [_masked(job, request.read_mask.paths) for job in found[first : first + request.page_size]]
        rest = first + request.page_size < len(found)
        token = str(first + request.page_size) if rest else ""
        return pipeline_service.ListPipelineJobsResponse(pipeline_jobs=page, next_page_token=token)

    def _create_schedule(self, request: Any, context: grpc.ServicerContext) -> Any:
        plan = request.schedule
        assert request.parent == plan.create_pipeline_job_request.parent == PARENT
        assert plan.max_concurrent_run_count >= 1
        _check_job(plan.create_pipeline_job_request.pipeline_job)
        _check_strictly(plan)
        plan.name = f"{PARENT}/schedules/{next(self._schedule_ids)}"
        plan.state, plan.next_run_time = schedule.Schedule.State.ACTIVE, NEXT
        plan.create_time = START + timedelta(hours=int(plan.name[-4:]))
        self.schedules[plan.name] = plan
        return plan

    def _list_schedules(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert request.filter == "create_pipeline_job_request:*"
        first = int(request.page_token or 0)
        found = sorted(self.schedules.values(), key=lambda each: each.create_time, reverse=True)
        token = str(first + 2) if first + 2 < len(found) else ""  # two per page
        return schedule_service.ListSchedulesResponse(schedules=found[first : first + 2], next_page_token=token)

    def _pause(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._one(request.name, context).state = schedule.Schedule.State.PAUSED
        return empty_pb2.Empty()

    def _resume(self, request: Any, context: grpc.ServicerContext) -> Any:
        found = self._one(request.name, context)
        found.state, found.catch_up = schedule.Schedule.State.ACTIVE, request.catch_up
        return empty_pb2.Empty()

    def _delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._one(request.name, context)
        del self.schedules[request.name]
        return operations_pb2.Operation(name=f"{PARENT}/operations/7")

    def _done(self, request: Any, context: grpc.ServicerContext) -> Any:
        operation = operations_pb2.Operation(name=request.name, done=True)
        operation.response.Pack(empty_pb2.Empty())
        return operation

    def _one(self, name: str, context: grpc.ServicerContext) -> Any:
        if name not in self.schedules:
            context.abort(grpc.StatusCode.NOT_FOUND, f"The Schedule {name} does not exist.")
        return self.schedules[name]


def _check_job(job: Any) -> None:
    """Assert that the protobuf messages know all fields of a job."""
    _check_strictly(job)
    plain = json_format.MessageToDict(type(job).pb(job).pipeline_spec)
    json_format.ParseDict(plain, pipeline_spec_pb2.PipelineSpec())
    assert job.runtime_config.gcs_output_directory.startswith("gs://")


def _check_strictly(message: Any) -> None:
    plain = json_format.MessageToDict(type(message).pb(message))
    again = json_format.ParseDict(plain, type(message).pb(type(message)()))
    assert again == type(message).pb(message)


def _value(job: Any, key: str) -> str:
    if key == "pipeline_name":
        return str(json_format.MessageToDict(type(job).pb(job).pipeline_spec)["pipelineInfo"]["name"])
    return str(getattr(job, key))


def _masked(job: Any, paths: Any) -> Any:
    return pipeline_job.PipelineJob(**{path: getattr(job, path) for path in paths if getattr(job, path)})
