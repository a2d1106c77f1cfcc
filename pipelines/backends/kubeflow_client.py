"""Runs and schedules on Kubeflow Pipelines through its v2beta1 API."""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

import kfp_server_api

from detloom.pipelines.backends.api_errors import ApiError, shorten_message
from detloom.pipelines.backends.argo_retries import parse_retry_defaults, retry_warning
from detloom.pipelines.backends.compiled_job import CompiledJob
from detloom.pipelines.backends.kubeflow_api import KubeflowApi
from detloom.pipelines.backends.kubeflow_logs import DRIVER, base_name, failure_sentence, log_nodes
from detloom.pipelines.backends.run_status import (
    ENDED,
    PlannedTask,
    RunState,
    RunStatus,
    ScheduleStatus,
    TaskState,
    TaskStatus,
    fill_in,
    planned_tasks,
    start_of,
)
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.run_file import RunFile
from detloom.schemas.run_file.schedule import Schedule, parse_cron

_PAGE_SIZE = 50
_MAX_RUNS = 1000  # newest runs that are searched for those of this pipeline or of its schedules
_MAX_MANIFESTS = 3  # newest runs whose workflows are read; a run that was just submitted has none
_MAX_CONCURRENCY = 10  # kubeflow/pipelines, backend/src/apiserver/server/api_converter.go, toModelJob
_RECURRING_RUNS = "/apis/v2beta1/recurringruns"
_PROPAGATION, _ORPHAN = "propagation_policy", "ORPHAN"  # backend/api/v2beta1/recurring_run.proto
_NO_ID = "00000000-0000-0000-0000-000000000000"
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CANCELING = "CANCELING"
_RUN_STATES: dict[str, RunState] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "succeeded",
    "FAILED": "failed",
    _CANCELING: "running",
    "CANCELED": "cancelled",
    "PAUSED": "paused",
}


class KubeflowBackend:
    """The runs and schedules of a pipeline on a cluster."""

    def __init__(self, settings: Kubeflow, pipeline_name: str, api: KubeflowApi) -> None:
        self._settings, self._pipeline_name, self._api = settings, pipeline_name, api
        self._ui = (settings.ui or settings.host).rstrip("/")
        self._causes: dict[tuple[str, str], str] = {}  # of failed tasks, by run and task

    def submit(self, job: CompiledJob, name: str) -> RunStatus:
        body = kfp_server_api.V2beta1Run(
            experiment_id=self._make_experiment(),
            display_name=name,
            pipeline_spec=_pipeline_source(job),
            runtime_config=self._runtime_config(),
            service_account=self._settings.service_account or None,
        )
        return self._run_status(self._api.call("Run", "create_run", "submit the run", body))

    def find_run(self, name: str) -> RunStatus | None:
        return next(map(self._run_status, self._runs(filter=_named(name))), None)

    def get_run(self, run_id: str) -> RunStatus:
        if not _UUID.fullmatch(run_id) and (found := self.find_run(run_id)) is not None:
            run_id = found.run_id
        run = self._api.call("Run", "get_run", f"read the run '{run_id}'", run_id)
        status = self._run_status(run, with_tasks=True)
        tasks = tuple(self._with_cause(run, task) for task in status.tasks)
        return replace(status, tasks=tasks, error=status.error or self._outside_error(status))

    def latest_runs(self, limit: int) -> list[RunStatus]:
        return [self._run_status(run) for run in itertools.islice(filter(self._is_ours, self._runs()), limit)]

    def create_schedule(self, job: CompiledJob, schedule: Schedule, name: str) -> ScheduleStatus:
        self._check_schedule(schedule)
        body = kfp_server_api.V2beta1RecurringRun(
            experiment_id=self._make_experiment(),
            display_name=name,
            pipeline_spec=_pipeline_source(job),
            runtime_config=self._runtime_config(),
            service_account=self._settings.service_account or None,
            trigger=kfp_server_api.V2beta1Trigger(
                cron_schedule=kfp_server_api.V2beta1CronSchedule(
                    start_time=start_of(schedule), end_time=schedule.end_time, cron=cluster_cron(schedule.cron)
                )
            ),
            mode=kfp_server_api.RecurringRunMode.ENABLE,
            no_catchup=not schedule.catch_up,
            max_concurrency=schedule.max_concurrency,
        )
        return self._schedule_status(
            self._api.call("RecurringRun", "create_recurring_run", "create the schedule", body)
        )

    def list_schedules(self) -> list[ScheduleStatus]:
        return [self._schedule_status(each) for each in self._recurring_runs()]

    def own_schedules(self) -> list[ScheduleStatus]:
        recurring = [each for each in self._recurring_runs() if self._is_ours(each)]
        last: dict[str, RunStatus] = {}
        for run in self._runs() if recurring else ():
            if run.recurring_run_id:
                last.setdefault(run.recurring_run_id, self._run_status(run))
            if all(each.recurring_run_id in last for each in recurring):
                break
        return [self._schedule_status(each, last.get(each.recurring_run_id)) for each in recurring]

    def pause_schedule(self, schedule_id: str) -> None:
        self._api.call("RecurringRun", "disable_recurring_run", "pause the schedule", schedule_id)

    def resume_schedule(self, schedule_id: str, *, catch_up: bool) -> None:
        self._api.call("RecurringRun", "enable_recurring_run", "resume the schedule", schedule_id)

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule so that its runs continue.

        Their workflows belong to the schedule, and Kubernetes deletes them with it unless a parameter of the request
        says otherwise. Servers before 2.16 ignore that parameter.

        Raises:
            InputError: if a run has not ended and the server ignores the parameter; the schedule is then paused.
        """
        self.pause_schedule(schedule_id)  # so that no run starts meanwhile
        action = "delete the schedule"
        unfinished = next(self._unfinished_runs(schedule_id), None)
        if unfinished is not None and not self._can_orphan():
            raise InputError(
                f"the schedule {schedule_id}: its run {unfinished.run_id} has not ended, and this version of Kubeflow "
                "Pipelines would end it; the schedule is paused. Delete it when the run has ended, or use version 2.16 "
                "or later."
            )
        self._api.send("DELETE", f"{_RECURRING_RUNS}/{quote(schedule_id, safe='')}", action, **{_PROPAGATION: _ORPHAN})

    def _unfinished_runs(self, schedule_id: str) -> Iterator[Any]:
        for run in self._runs():
            if run.recurring_run_id == schedule_id and self._run_status(run).state not in ENDED:
                yield run

    def _can_orphan(self) -> bool:
        """Return whether the server reads the parameter: it then refuses an invalid value of it."""
        try:
            nothing = f"{_RECURRING_RUNS}/{_NO_ID}"
            self._api.send("DELETE", nothing, "delete the schedule", **{_PROPAGATION: "INVALID"})
        except ApiError as error:
            return _PROPAGATION in str(error)
        return False

    def warnings(self, run: RunFile) -> list[str]:
        if not any(entry.max_retries for entry in run.nodes):
            return []
        warning = retry_warning(self._retry_defaults())
        return [warning] if warning else []

    def _retry_defaults(self) -> Mapping[str, Any] | None:
        """Return Argo's default retries in the newest of the latest workflows that has some."""
        for run in itertools.islice(self._runs(), _MAX_MANIFESTS):
            path = f"/apis/v1beta1/runs/{quote(str(run.run_id), safe='')}"  # the only one that has the workflow
            answer = self._api.send("GET", path, "read the workflow of a run")
            runtime = answer.get("pipeline_runtime") if isinstance(answer, dict) else None
            manifest = runtime.get("workflow_manifest") if isinstance(runtime, dict) else None
            found = parse_retry_defaults(str(manifest))
            if found is not None:
                return found
        return None

    def _find_experiment(self) -> str | None:
        # A cluster for a single user ignores the namespace (resource_manager.go, ReplaceNamespace).
        answer = self._api.call(
            "Experiment",
            "list_experiments",
            "read the experiments",
            filter=_named(self._settings.experiment),
            namespace=self._settings.namespace,
        )
        return answer.experiments[0].experiment_id if answer.experiments else None

    def _make_experiment(self) -> str:
        found = self._find_experiment()
        if found is not None:
            return found
        body = kfp_server_api.V2beta1Experiment(
            display_name=self._settings.experiment, namespace=self._settings.namespace
        )
        action = f"create the experiment '{self._settings.experiment}'"
        return str(self._api.call("Experiment", "create_experiment", action, body).experiment_id)

    def _runs(self, **options: Any) -> Iterator[Any]:
        return itertools.islice(self._pages("Run", "list_runs", "runs", **options), _MAX_RUNS)

    def _recurring_runs(self) -> Iterator[Any]:
        return self._pages("RecurringRun", "list_recurring_runs", "recurring_runs")

    def _pages(self, service: str, method: str, field: str, **options: Any) -> Iterator[Any]:
        """Yield the items of all pages, newest first; none if the experiment does not exist."""
        token, action, experiment = "", f"read the {field.replace('_', ' ')}", self._find_experiment()
        seen: set[str] = set()
        while experiment and token not in seen:  # a server that repeats a page would otherwise never end
            seen.add(token)
            answer = self._api.call(
                service,
                method,
                action,
                experiment_id=experiment,
                page_size=_PAGE_SIZE,
                page_token=token,
                sort_by="created_at desc",
                **options,
            )
            yield from getattr(answer, field) or ()
            token = answer.next_page_token
            if not token:
                return

    def _is_ours(self, item: Any) -> bool:
        """Return whether a run or recurring run belongs to this pipeline; without a spec, compare names."""
        spec = _spec_of(item)
        if not spec:
            return str(item.display_name or "").startswith(self._pipeline_name)
        return bool(spec.get("pipelineInfo", {}).get("name") == self._pipeline_name)

    def _runtime_config(self) -> Any:
        root = self._settings.pipeline_root or None
        return kfp_server_api.V2beta1RuntimeConfig(pipeline_root=root, parameters={})

    def _check_schedule(self, schedule: Schedule) -> None:
        if schedule.max_concurrency > _MAX_CONCURRENCY:
            got = f"got {schedule.max_concurrency}"
            raise InputError(f"schedule.max_concurrency: {got}, allowed on Kubeflow: 1 to {_MAX_CONCURRENCY}.")
        zone = self._settings.schedule_timezone
        if schedule.timezone != zone:
            raise InputError(
                f"schedule.timezone: got '{schedule.timezone}', but all schedules of the cluster use '{zone}'; write "
                f"cron in '{zone}', or have the cluster's cronScheduleTimezone changed and then set "
                "kubeflow.schedule_timezone to it."
            )

    def _run_status(self, run: Any, with_tasks: bool = False) -> RunStatus:
        state = _RUN_STATES.get(str(run.state), "unknown") if run.state else "pending"
        if state == "failed" and any(str(entry.state) == _CANCELING for entry in run.state_history or ()):
            state = "cancelled"  # the final state of a terminated run is FAILED
        created = utc_time(run.created_at)
        planned = planned_tasks(_spec_of(run)) if with_tasks else ()
        return RunStatus(
            run_id=str(run.run_id),
            name=str(run.display_name or run.run_id),
            state=state,
            link=f"{self._ui}/#/runs/details/{run.run_id}",
            created=created,
            started=created,
            ended=utc_time(run.finished_at),
            error=self._error_of(run),
            tasks=fill_in(planned, known_tasks(run, planned, self._error_of), state),
        )

    def _with_cause(self, run: Any, task: TaskStatus) -> TaskStatus:
        """Return a failed task with the cause from its log, because the API gives no message."""
        if task.state != "failed" or task.error:
            return task
        key = (str(run.run_id), task.name)
        if key in self._causes:
            return replace(task, error=self._causes[key])
        for node in log_nodes(task.name, _details(run)):
            try:
                cause = failure_sentence(self._api.read_log(key[0], node))
            except ApiError:
                continue
            if cause:
                self._causes[key] = shorten_message(cause, self._api.server.secrets)
                break
        return replace(task, error=self._causes.get(key, ""))

    def _outside_error(self, status: RunStatus) -> str:
        """Return where the cause is if a run has failed, but none of its tasks: the API has no message for it."""
        if status.state != "failed" or any(task.state in ("failed", "unknown") for task in status.tasks):
            return ""
        workflow = f"-n {self._settings.namespace} -l {_RUN_LABEL}={status.run_id}"
        return (
            "it failed outside its tasks; until the cluster deletes the workflow, `kubectl describe workflow "
            f"{workflow}` has the cause"
        )

    def _error_of(self, item: Any) -> str:
        """Return the error of a run or task, or the newest error in its history."""
        errors = [item.error, *(entry.error for entry in reversed(item.state_history or ()))]
        message = next((error.message for error in errors if error is not None and error.message), "")
        return shorten_message(message, self._api.server.secrets)

    def _schedule_status(self, recurring: Any, last_run: RunStatus | None = None) -> ScheduleStatus:
        trigger = getattr(recurring.trigger, "cron_schedule", None)
        is_active = str(recurring.status) == "ENABLED"
        cron = str(getattr(trigger, "cron", None) or "-")
        end = utc_time(getattr(trigger, "end_time", None))
        is_over = end is not None and end < datetime.now(timezone.utc)
        return ScheduleStatus(
            schedule_id=str(recurring.recurring_run_id),
            name=str(recurring.display_name or recurring.recurring_run_id),
            state="completed" if is_over else "active" if is_active else "paused",
            cron=cron,
            link=f"{self._ui}/#/recurringrun/details/{recurring.recurring_run_id}",
            last_run=last_run,
        )


def _spec_of(item: Any) -> Mapping[str, Any]:
    """Return the pipeline spec of a run or recurring run, without the platform spec."""
    spec = item.pipeline_spec
    if not isinstance(spec, dict):
        return {}
    inner = spec.get("pipeline_spec", spec)
    return inner if isinstance(inner, dict) else {}


def _pipeline_source(job: CompiledJob) -> dict[str, Any]:
    """Build the pipeline source as kfp.Client does (sdk/python/kfp/client/client.py, _PipelineDoc.to_dict)."""
    if not job.platform:
        return dict(job.spec)
    return {"pipeline_spec": dict(job.spec), "platform_spec": dict(job.platform)}


def _named(name: str) -> str:
    """Build a filter as defined in backend/api/v2beta1/filter.proto."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


_MIN_POD_SECONDS = 2  # a pod with the launcher takes longer to start
_RUN_LABEL = "pipeline/runid"  # of a run's workflow and pods
_STATES: dict[str, TaskState] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "skipped",
    "FAILED": "failed",
    "CANCELING": "running",
    "CANCELED": "cancelled",
    "PAUSED": "pending",
}


def known_tasks(run: Any, planned: Sequence[PlannedTask], error_of: Callable[[Any], str]) -> dict[str, TaskStatus]:
    """Return the status of each task and group of tasks that has nodes, by name.

    The API's task details are the nodes of the Argo workflow (kubeflow/pipelines, backend/src/common/util/workflow.go,
    NodeStatuses). A task NAME has two nodes: "NAME-driver", which resolves inputs and checks the cache, and "NAME",
    which contains the container (backend/src/v2/compiler/argocompiler/dag.go, task). If Argo has default retries, each
    has its attempts as further nodes: "NAME(0)", "NAME(1)". There are other nodes ("root", "executor"), and none for
    tasks that were not reached. The node of a cached task ends at once, because its container is skipped; the state is
    that of one that succeeded, and ids that would lead to the container's node are missing.

    Args:
        run: V2beta1Run.
        error_of: returns the message of a task detail, or an empty text.
    """
    nodes: dict[str, Any] = {}
    for detail in sorted(_details(run), key=_by_attempt):  # "NAME" itself comes last
        nodes[base_name(str(detail.display_name))] = detail
    names = {task.name for task in planned} | {group for task in planned for group in task.groups}
    known: dict[str, TaskStatus] = {}
    for name in names:
        status = _status(name, nodes.get(name), nodes.get(name + DRIVER), error_of)
        if status is not None:
            known[name] = status
    return known


def _details(run: Any) -> Sequence[Any]:
    return (run.run_details.task_details if run.run_details else None) or ()


def _by_attempt(detail: Any) -> tuple[bool, float]:
    name = str(detail.display_name)
    started = utc_time(detail.start_time)
    return name == base_name(name), started.timestamp() if started is not None else 0.0


def _status(name: str, node: Any, driver: Any, error_of: Callable[[Any], str]) -> TaskStatus | None:
    node_state = _STATES.get(str(node.state)) if node is not None else None
    driver_state = _STATES.get(str(driver.state)) if driver is not None else None
    state: TaskState
    if driver_state == "failed":  # the container's node is then omitted, because its state is unspecified
        state, node_of_state = driver_state, driver
    elif node_state is not None:
        state, node_of_state = node_state, node
    elif driver_state is not None:
        state, node_of_state = "running" if driver_state == "succeeded" else driver_state, driver
    else:
        return None
    begun, ended = utc_time(node_of_state.start_time), utc_time(node_of_state.end_time)
    if state == "succeeded" and begun and ended and (ended - begun).total_seconds() < _MIN_POD_SECONDS:
        state = "cached"
    return TaskStatus(
        name=name,
        state=state,
        started=utc_time((driver or node).start_time),
        ended=None if state in ("running", "pending") else ended,
        error=error_of(node_of_state) if state == "failed" else "",
    )


def utc_time(value: datetime | None) -> datetime | None:
    """Return a time of the API in UTC, or None if it is missing; the API then sends the year 1 or 1970."""
    if value is None or value.year <= 1970:
        return None
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def cluster_cron(cron: str) -> str:
    """Convert five fields to six; Sunday as 7 becomes 0 (robfig/cron, v1.2.0, spec.go, dow).

    The controller reads six fields, seconds first, with robfig/cron v1.2.0 (kubeflow/pipelines,
    backend/src/crd/controller/scheduledworkflow/util/cron_schedule.go and go.mod). That version does not support
    CRON_TZ= or TZ=: it treats each word as a field and accepts at most six (robfig/cron, v1.2.0, parser.go, Parse). The
    controller takes the time zone from its environment variable CRON_SCHEDULE_TIMEZONE (util/const.go, GetLocation).
    """
    *others, weekdays = cron.split(" ")
    return " ".join(("0", *others, _cluster_weekdays(weekdays)))


def _cluster_weekdays(field: str) -> str:
    """Return the weekday field, with numbers from 0 to 6 where the cluster would read it differently.

    A star decides whether the day of the month and the weekday must both match: for cron at the beginning of the field,
    for robfig/cron anywhere in a list (parser.go, getField and getRange). The 7 in a step such as */7 is not Sunday.
    """
    parts = field.split(",")
    stars = [part for part in parts if part.startswith("*")] if field.startswith("*") else []
    days = [part for part in parts if part not in stars]
    if any("7" in part or "*" in part for part in days):
        days = [str(day) for day in sorted(parse_cron(f"* * * * {','.join(days)}").weekdays)]
    return ",".join(stars + days)
