"""A fake of Kubeflow Pipelines' API v2beta1 over HTTP; requests and responses are models of kfp_server_api.

Refusals follow kubeflow/pipelines: backend/src/apiserver/server/api_converter.go (toModelJob: cron,
max concurrency), backend/src/common/util/error.go (codes), grpc-gateway's JSON of errors.
"""

import base64
import json
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import kfp_server_api
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

START = datetime(2026, 1, 31, 3, 0, tzinfo=timezone.utc)
_MODELS = kfp_server_api.ApiClient()


@dataclass
class Answer:
    """A response that replaces the usual one.

    Attributes:
        drop: close the connection instead of answering.
        after: execute the request first.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    drop: bool = False
    after: bool = False


def error(status: int, message: str) -> Answer:
    """Return an error in the format of grpc-gateway."""
    return Answer(status, json.dumps({"error": message, "code": 2, "message": message, "details": []}).encode())


@dataclass
class FakeKubeflow:
    """A fake cluster.

    Attributes:
        host: address of the API.
        requests: method, path and headers (names in lower case), in order.
        next_answers: replacement responses by method and path, such as ("POST", "/runs").
        logs: by id of the node.
        workflows: Argo's workflow of a run, by its id.
        knows_propagation: False for servers before 2.16.
        ended_runs: ids of runs whose workflows were deleted.
    """

    token: str = ""
    experiments: list[Any] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)
    recurring: list[Any] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    next_answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    workflows: dict[str, dict[str, Any]] = field(default_factory=dict)
    knows_propagation: bool = True
    ended_runs: list[str] = field(default_factory=list)
    host: str = ""

    def __enter__(self) -> "FakeKubeflow":
        fake = self

        class Handler(_Handler):
            cluster = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer_next(self, method: str, path: str, *answers: Answer) -> None:
        self.next_answers.setdefault((method, path), []).extend(answers)

    def count(self, method: str, path: str) -> int:
        return sum(each[0] == method and each[1].startswith(path) for each in self.requests)

    def add_run(self, name: str, pipeline: str = "cells", **values: Any) -> Any:
        """Add a run that starts an hour after the previous one."""
        experiment = self.experiments[0].experiment_id if self.experiments else self._make_experiment("Default")
        created = START + timedelta(hours=len(self.runs))
        defaults = {
            "run_id": str(uuid.uuid4()),
            "experiment_id": experiment,
            "created_at": created,
            "scheduled_at": created,
            "finished_at": datetime(1970, 1, 1, tzinfo=timezone.utc),
            "state": "RUNNING",
            "pipeline_spec": {"pipelineInfo": {"name": pipeline}},
        }
        run = kfp_server_api.V2beta1Run(display_name=name, **{**defaults, **values})
        self.runs.append(run)
        return run

    def _make_experiment(self, name: str) -> str:
        experiment_id = str(uuid.uuid4())
        self.experiments.append(kfp_server_api.V2beta1Experiment(experiment_id=experiment_id, display_name=name))
        return experiment_id

    # Handlers of the routes below.

    def list_experiments(self, query: dict[str, str], _: bytes) -> Any:
        found = _filtered(self.experiments, query)
        return kfp_server_api.V2beta1ListExperimentsResponse(experiments=found or None)

    def create_experiment(self, _: dict[str, str], body: bytes) -> Any:
        experiment = _read(body, "V2beta1Experiment")
        experiment.experiment_id = str(uuid.uuid4())
        self.experiments.append(experiment)
        return experiment

    def list_runs(self, query: dict[str, str], _: bytes) -> Any:
        runs, token = _page([run for run in self.runs if run.experiment_id == query["experiment_id"]], query)
        return kfp_server_api.V2beta1ListRunsResponse(runs=runs or None, next_page_token=token)

    def create_run(self, _: dict[str, str], body: bytes) -> Any:
        asked = _read(body, "V2beta1Run")
        _check_source(asked.pipeline_spec)
        return self.add_run(
            asked.display_name,
            experiment_id=asked.experiment_id,
            pipeline_spec=asked.pipeline_spec,
            service_account=asked.service_account,
            runtime_config=asked.runtime_config,
            state="PENDING",
        )

    def get_run(self, _: dict[str, str], body: bytes, run_id: str) -> Any:
        return _one(self.runs, "run_id", run_id)

    def list_recurring_runs(self, query: dict[str, str], _: bytes) -> Any:
        found, token = _page(self.recurring, query)
        return kfp_server_api.V2beta1ListRecurringRunsResponse(recurring_runs=found or None, next_page_token=token)

    def create_recurring_run(self, _: dict[str, str], body: bytes) -> Any:
        asked = _read(body, "V2beta1RecurringRun")
        _check_source(asked.pipeline_spec)
        if not 1 <= int(asked.max_concurrency) <= 10:
            raise _Refused(400, "Max concurrency of a recurring run must be at least 1 and at most 10.")
        if not 5 <= len(asked.trigger.cron_schedule.cron.split()) <= 6 or "TZ=" in asked.trigger.cron_schedule.cron:
            raise _Refused(400, "Schedule cron is not a supported format")
        asked.recurring_run_id, asked.status = str(uuid.uuid4()), "ENABLED"
        asked.created_at = START + timedelta(hours=len(self.recurring))
        self.recurring.append(asked)
        return asked

    def enable(self, _: dict[str, str], body: bytes, recurring_run_id: str) -> Any:
        _one(self.recurring, "recurring_run_id", recurring_run_id).status = "ENABLED"
        return {}

    def disable(self, _: dict[str, str], body: bytes, recurring_run_id: str) -> Any:
        _one(self.recurring, "recurring_run_id", recurring_run_id).status = "DISABLED"
        return {}

    def delete(self, query: dict[str, str], body: bytes, recurring_run_id: str) -> Any:
        """Delete a schedule, and with it the workflows of its runs, which then never change their state."""
        policy = query.get("propagation_policy") if self.knows_propagation else None
        if policy not in (None, "FOREGROUND", "BACKGROUND", "ORPHAN"):
            raise _Refused(400, f'parsing field "propagation_policy": "{policy}" is not a valid value')
        self.recurring.remove(_one(self.recurring, "recurring_run_id", recurring_run_id))
        if policy != "ORPHAN":
            self.ended_runs += [run.run_id for run in self.runs if run.recurring_run_id == recurring_run_id]
        return {}

    def get_workflow(self, _: dict[str, str], body: bytes, run_id: str) -> Any:
        """Answer like version v1beta1 of the API, which has the workflow of a run."""
        _one(self.runs, "run_id", run_id)
        manifest = json.dumps(self.workflows[run_id]) if run_id in self.workflows else None
        return {"run": {"id": run_id}, "pipeline_runtime": {"workflow_manifest": manifest}}

    def read_log(self, _: dict[str, str], body: bytes, run_id: str, node: str) -> Answer:
        """Answer with a log, or with an error as text and the status 200 (server/run_log_server.go)."""
        missing = json.dumps({"error_message": f"Failed to read logs for run {run_id}"})
        return Answer(body=self.logs.get(node, missing).encode(), content_type="text/plain; charset=utf-8")

    def read_archived_log(self, _: dict[str, str], body: bytes, run_id: str, node: str) -> Answer:
        """Answer with a log from the archive (server/run_artifact_server.go)."""
        if node not in self.logs:
            return error(500, "Failed to get artifact")
        return Answer(body=json.dumps({"data": base64.b64encode(self.logs[node].encode()).decode()}).encode())


_ID = "([0-9a-f-]+)"
_ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    ("GET", "/experiments", FakeKubeflow.list_experiments),
    ("POST", "/experiments", FakeKubeflow.create_experiment),
    ("GET", "/runs", FakeKubeflow.list_runs),
    ("POST", "/runs", FakeKubeflow.create_run),
    ("GET", f"/runs/{_ID}", FakeKubeflow.get_run),
    ("GET", "/recurringruns", FakeKubeflow.list_recurring_runs),
    ("POST", "/recurringruns", FakeKubeflow.create_recurring_run),
    ("POST", f"/recurringruns/{_ID}:enable", FakeKubeflow.enable),
    ("POST", f"/recurringruns/{_ID}:disable", FakeKubeflow.disable),
    ("DELETE", f"/recurringruns/{_ID}", FakeKubeflow.delete),
    ("GET", f"/apis/v1beta1/runs/{_ID}", FakeKubeflow.get_workflow),
    ("GET", f"/apis/v1alpha1/runs/{_ID}/nodes/([a-z0-9-]+)/log", FakeKubeflow.read_log),
    ("GET", f"/runs/{_ID}/nodes/([a-z0-9-]+)/artifacts/main-logs:read", FakeKubeflow.read_archived_log),
]


class _Refused(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    cluster: FakeKubeflow

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix("/apis/v2beta1")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.cluster.requests.append(
            (self.command, path, {name.lower(): value for name, value in self.headers.items()})
        )
        answers = self.cluster.next_answers.get((self.command, path), [])
        special = answers.pop(0) if answers else None
        answer = self._usual(path, query, body) if special is None or special.after else special
        if special is not None and special.drop:
            self.close_connection = True
            return
        answer = special if special is not None else answer
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = do_DELETE = _answer

    def _usual(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        if self.cluster.token and self.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            return error(401, "Request header error: there is no valid token")
        for method, pattern, function in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                try:
                    found = function(self.cluster, query, body, *match.groups())
                except _Refused as refusal:
                    return error(*refusal.args)
                if isinstance(found, Answer):
                    return found
                return Answer(body=json.dumps(_MODELS.sanitize_for_serialization(found)).encode())
        return error(404, "Not Found")

    def log_message(self, *_: Any) -> None:
        pass


def _read(body: bytes, model: str) -> Any:
    """Parse a request; assert that the model knows all of its fields."""
    found = _MODELS.deserialize(SimpleNamespace(data=body), model)
    sent, understood = json.loads(body), json.loads(json.dumps(_MODELS.sanitize_for_serialization(found)))
    assert set(sent) == set(understood), f"{model}: {set(sent) ^ set(understood)}"
    return found


def _check_source(source: dict[str, Any]) -> None:
    """Parse a pipeline source: a pipeline spec, alone or with a platform spec."""
    spec = source.get("pipeline_spec", source)
    json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(source.get("platform_spec", {}), pipeline_spec_pb2.PlatformSpec())


def _filtered(items: list[Any], query: dict[str, str]) -> list[Any]:
    """Return the items that match the filter, which supports only EQUALS."""
    predicates = json.loads(query.get("filter") or "{}").get("predicates", [])
    assert all(predicate["operation"] == "EQUALS" for predicate in predicates)
    return [item for item in items if all(getattr(item, each["key"]) == each["stringValue"] for each in predicates)]


def _page(items: list[Any], query: dict[str, str]) -> tuple[list[Any], str | None]:
    """Return a page, newest first, and the token of the next page."""
    assert query["sort_by"] == "created_at desc"
    found = sorted(_filtered(items, query), key=lambda item: item.created_at, reverse=True)
    first, size = int(query.get("page_token") or 0), int(query["page_size"])
    return found[first : first + size], str(first + size) if first + size < len(found) else None


def _one(items: list[Any], key: str, value: str) -> Any:
    for item in items:
        if getattr(item, key) == value:
            return item
    raise _Refused(404, f"Failed to find it: ResourceNotFoundError: {key} {value} not found.")
