"""Runs and schedules on Kubeflow Pipelines, through its v2beta1 API."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import kfp_server_api

from detloom.pipelines.backends.api_errors import shorten_message
from detloom.pipelines.backends.compiled_job import CompiledJob
from detloom.pipelines.backends.kubeflow_api import KubeflowApi
from detloom.pipelines.backends.kubeflow_cron import cluster_cron, cluster_start, next_cluster_time
from detloom.pipelines.backends.kubeflow_tasks import known_tasks, moment
from detloom.pipelines.backends.run_status import RunState, RunStatus, ScheduleStatus, fill_in, planned_tasks
from detloom.schemas.errors import InputError
from detloom.schemas.kubeflow_config import Kubeflow
from detloom.schemas.schedule_config import Schedule

_PAGE_SIZE, _MAX_PAGES = 50, 20
_MAX_CONCURRENCY = 10  # kubeflow/pipelines, backend/src/apiserver/server/api_converter.go, toModelJob
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN_STATES: dict[str, RunState] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "succeeded",
    "FAILED": "failed",
    "CANCELING": "running",
    "CANCELED": "cancelled",
    "PAUSED": "paused",
}


class KubeflowBackend:
    """A pipeline's runs and schedules on a cluster."""

    def __init__(self, settings: Kubeflow, pipeline_name: str, api: KubeflowApi) -> None:
        self._settings, self._pipeline_name, self._api = settings, pipeline_name, api

    def submit(self, job: CompiledJob, name: str) -> RunStatus:
        body = kfp_server_api.V2beta1Run(
            experiment_id=self._make_experiment(),
            display_name=name,
            pipeline_spec=_pipeline_source(job),
            runtime_config=self._runtime_config(),
        )
        return self._run_status(self._api.call("Run", "create_run", "submit the run", body))

    def find_run(self, name: str) -> RunStatus | None:
        experiment = self._find_experiment()
        if experiment is None:
            return None
        runs = self._runs(experiment, filter=_equals("display_name", name))
        return next(map(self._run_status, runs), None)

    def get_run(self, run_id: str) -> RunStatus:
        if not _UUID.fullmatch(run_id) and (found := self.find_run(run_id)) is not None:
            run_id = found.run_id
        run = self._api.call("Run", "get_run", f"read the run '{run_id}'", run_id)
        return self._run_status(run, with_tasks=True)

    def latest_runs(self, limit: int) -> list[RunStatus]:
        experiment, found = self._find_experiment(), []
        for run in self._runs(experiment) if experiment else ():
            if self._is_ours(run):
                found.append(self._run_status(run))
            if len(found) == limit:
                break
        return found

    def create_schedule(self, job: CompiledJob, schedule: Schedule, name: str) -> ScheduleStatus:
        self._check_schedule(schedule)
        body = kfp_server_api.V2beta1RecurringRun(
            experiment_id=self._make_experiment(),
            display_name=name,
            pipeline_spec=_pipeline_source(job),
            runtime_config=self._runtime_config(),
            trigger=kfp_server_api.V2beta1Trigger(
                cron_schedule=kfp_server_api.V2beta1CronSchedule(
                    start_time=cluster_start(schedule), end_time=schedule.end_time, cron=cluster_cron(schedule.cron)
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
        experiment = self._find_experiment() if recurring else None
        for run in self._runs(experiment) if experiment else ():
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
        self._api.call("RecurringRun", "delete_recurring_run", "delete the schedule", schedule_id)

    def _find_experiment(self) -> str | None:
        # A cluster for one user leaves the namespace out of account (resource_manager.go, ReplaceNamespace).
        answer = self._api.call(
            "Experiment",
            "list_experiments",
            "read the experiments",
            filter=_equals("display_name", self._settings.experiment),
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
        what = f"create the experiment '{self._settings.experiment}'"
        return str(self._api.call("Experiment", "create_experiment", what, body).experiment_id)

    def _runs(self, experiment: str, **options: Any) -> Iterator[Any]:
        yield from self._pages("Run", "list_runs", "runs", experiment, options)

    def _recurring_runs(self) -> Iterator[Any]:
        experiment = self._find_experiment()
        if experiment is not None:
            yield from self._pages("RecurringRun", "list_recurring_runs", "recurring_runs", experiment, {})

    def _pages(
        self, service: str, method: str, field: str, experiment: str, options: Mapping[str, Any]
    ) -> Iterator[Any]:
        """Newest first."""
        token, what = "", f"read the {field.replace('_', ' ')}"
        for _ in range(_MAX_PAGES):
            answer = self._api.call(
                service,
                method,
                what,
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
        """Whether a run or a recurring run is of this pipeline; one without its spec is known by its name."""
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
                f"schedule.timezone: got '{schedule.timezone}', but the cluster's schedules are all in '{zone}'; "
                f"write cron in '{zone}', or have cronScheduleTimezone of the cluster changed and then set "
                "kubeflow.schedule_timezone to it."
            )

    def _run_status(self, run: Any, with_tasks: bool = False) -> RunStatus:
        state = _RUN_STATES.get(str(run.state), "unknown") if run.state else "pending"
        created = moment(run.created_at)
        planned = planned_tasks(_spec_of(run)) if with_tasks else ()
        return RunStatus(
            run_id=str(run.run_id),
            name=str(run.display_name or run.run_id),
            state=state,
            link=f"{self._settings.host.rstrip('/')}/#/runs/details/{run.run_id}",
            created=created,
            started=created,
            ended=moment(run.finished_at),
            error=self._error_of(run),
            tasks=fill_in(planned, known_tasks(run, planned, self._error_of), state),
        )

    def _error_of(self, item: Any) -> str:
        """The message of a run or a task, or of the newest entry of its history that has one."""
        errors = [item.error, *(entry.error for entry in reversed(item.state_history or ()))]
        message = next((error.message for error in errors if error is not None and error.message), "")
        return shorten_message(message, self._api.server.secrets)

    def _schedule_status(self, recurring: Any, last_run: RunStatus | None = None) -> ScheduleStatus:
        trigger = getattr(recurring.trigger, "cron_schedule", None)
        is_active = str(recurring.status) == "ENABLED"
        cron = str(getattr(trigger, "cron", None) or "-")
        start, end = moment(getattr(trigger, "start_time", None)), moment(getattr(trigger, "end_time", None))
        following = next_cluster_time(cron, self._settings.schedule_timezone, start, end)
        is_over = end is not None and end < datetime.now(timezone.utc)
        return ScheduleStatus(
            schedule_id=str(recurring.recurring_run_id),
            name=str(recurring.display_name or recurring.recurring_run_id),
            state="completed" if is_over else "active" if is_active else "paused",
            cron=cron,
            link=f"{self._settings.host.rstrip('/')}/#/recurringrun/details/{recurring.recurring_run_id}",
            next_time=following if is_active else None,
            last_run=last_run,
        )


def _spec_of(item: Any) -> Mapping[str, Any]:
    """The pipeline spec of a run or a recurring run, without the platform's."""
    spec = item.pipeline_spec
    if not isinstance(spec, dict):
        return {}
    inner = spec.get("pipeline_spec", spec)
    return inner if isinstance(inner, dict) else {}


def _pipeline_source(job: CompiledJob) -> dict[str, Any]:
    """As kfp.Client sends it (sdk/python/kfp/client/client.py, _PipelineDoc.to_dict)."""
    if not job.platform:
        return dict(job.spec)
    return {"pipeline_spec": dict(job.spec), "platform_spec": dict(job.platform)}


def _equals(key: str, value: str) -> str:
    """A filter as backend/api/v2beta1/filter.proto has it."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": key, "stringValue": value}]})
