"""The interface of a backend, and the logic that both backends share: submitting once, following a run, schedules."""

import shlex
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Protocol

from detloom.pipelines.backends.api_errors import MAY_PASS, MAYBE_DONE, ApiError
from detloom.pipelines.backends.compiled_job import CompiledJob
from detloom.pipelines.backends.run_status import (
    ENDED,
    RunStatus,
    ScheduleStatus,
    TaskState,
    TaskStatus,
)
from detloom.schemas.errors import InputError
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.run_file import Place, RunFile
from detloom.schemas.run_file.schedule import Schedule

PLACE_NAMES: dict[Place, str] = {"kubeflow": "Kubeflow Pipelines", "vertex": "Vertex AI"}


class Backend(Protocol):
    """Kubeflow Pipelines or Vertex AI for one pipeline. All methods raise ApiError."""

    def warnings(self, run: RunFile) -> list[str]:
        """Return sentences about settings of the cluster that contradict the run file."""

    def submit(self, job: CompiledJob, name: str) -> RunStatus:
        """Start a run."""

    def find_run(self, name: str) -> RunStatus | None:
        """Return the newest run of that name of any pipeline, or None."""

    def get_run(self, run_id: str) -> RunStatus:
        """Return a run with its tasks, by id or by name."""

    def latest_runs(self, limit: int) -> list[RunStatus]:
        """Return the pipeline's runs, newest first, without tasks."""

    def create_schedule(self, job: CompiledJob, schedule: Schedule, name: str) -> ScheduleStatus:
        """Create a schedule, even if another one has the same name."""

    def list_schedules(self) -> list[ScheduleStatus]:
        """Return all schedules, including those of other pipelines, without their last runs."""

    def own_schedules(self) -> list[ScheduleStatus]:
        """Return the pipeline's schedules with their last runs."""

    def pause_schedule(self, schedule_id: str) -> None:
        """Pause a schedule."""

    def resume_schedule(self, schedule_id: str, *, catch_up: bool) -> None:
        """Resume a schedule.

        Args:
            catch_up: start missed runs, on Vertex AI; on Kubeflow the value was fixed when the schedule was created.
        """

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; its runs remain."""


def connect(run: RunFile, place: Place) -> Backend:
    """Connect to the backend of a run file.

    Raises:
        InputError: if the section or the backend's address is missing, or there are no credentials.
    """
    if place == "kubeflow" and run.kubeflow is not None:
        from detloom.pipelines.backends.kubeflow_api import connect_kubeflow
        from detloom.pipelines.backends.kubeflow_client import KubeflowBackend

        return KubeflowBackend(run.kubeflow, run.name, connect_kubeflow(run.kubeflow))
    if place == "vertex" and run.vertex is not None:
        from detloom.pipelines.backends.vertex_client import VertexBackend, connect_vertex

        return VertexBackend(run.vertex, run.name, connect_vertex(run.vertex))
    raise InputError(f"{place}: the run file has no section {place}; see docs/{place}.md.")


def submit_once(backend: Backend, job: CompiledJob, name: str, *, is_new_name: bool) -> RunStatus:
    """Submit a run under an unused name; check after a lost response, so that the run is not started twice.

    On Vertex AI the name is the run's id, and the service refuses a second run with that id. Kubeflow assigns its own
    ids (kubeflow/pipelines, backend/src/apiserver/resource/resource_manager.go, CreateRun); there, this function
    searches for the name before the request and after a lost response.

    Args:
        is_new_name: True if the name was just generated, so that no run can have it.
    """
    if not is_new_name and (found := backend.find_run(name)) is not None:
        next_step = f"see it with `detloom status RUN_FILE {found.run_id}`, or choose another --name"
        raise InputError(f"--name: the run '{name}' already exists and is {found.state}; {next_step}.")
    try:
        return backend.submit(job, name)
    except ApiError as error:
        if error.kind not in MAYBE_DONE:
            raise
        try:
            found = backend.find_run(name)
        except ApiError:
            doubt = f"it is not known whether the run '{name}' was created"
        else:
            if found is not None:
                return found
            doubt = f"there is no run '{name}' yet"
        message = f"{error} Once it responds, check with `detloom status RUN_FILE` before you submit again: {doubt}."
        raise ApiError(error.kind, message) from None


def create_schedule(
    backend: Backend, job: CompiledJob, schedule: Schedule, name: str, *, replace: bool
) -> ScheduleStatus:
    """Create a schedule whose name must be unique.

    Args:
        replace: delete existing schedules of that name after the new one is created.

    Raises:
        InputError: if the name is in use and `replace` is False.
    """
    if schedule.end_time is not None and schedule.end_time <= datetime.now(timezone.utc):
        raise InputError(f"schedule.end: got '{schedule.end}', which is in the past; set a later time, or none.")
    before = [each for each in backend.list_schedules() if each.name == name]
    if before and not replace:
        command = f"detloom schedule delete RUN_FILE {shlex.quote(redact(name))}"
        other = f"`--replace` replaces it, `--name` creates another one, and `{command}` removes it"
        raise InputError(f"the schedule '{redact(name)}' already exists and is {before[0].state}: {other}.")
    known = {each.schedule_id for each in before}
    try:
        created = backend.create_schedule(job, schedule, name)
    except ApiError as error:
        if error.kind not in MAYBE_DONE:
            raise
        created = _find_created(backend, name, known, error)
    for old in before:
        try:
            backend.delete_schedule(old.schedule_id)
        except ApiError as error:
            both = f"The new schedule ({created.schedule_id}) and the old one both exist"
            command = f"`detloom schedule delete RUN_FILE {old.schedule_id}`"
            raise ApiError(error.kind, f"{error} {both}: delete the old one with {command}.") from None
    return created


def _find_created(backend: Backend, name: str, known: set[str], error: ApiError) -> ScheduleStatus:
    """Return the schedule that was created although the response was lost."""
    try:
        new = [each for each in backend.list_schedules() if each.name == name and each.schedule_id not in known]
    except ApiError:
        new = []
    if len(new) == 1:
        return new[0]
    look = "Once it responds, check with `detloom schedule list RUN_FILE` before you create it again"
    raise ApiError(error.kind, f"{error} {look}.") from None


def find_schedule(backend: Backend, name_or_id: str) -> ScheduleStatus:
    """Return the only schedule with that id or name.

    Raises:
        InputError: if there is none, or several schedules have the name.
    """
    schedules = backend.list_schedules()
    found = [each for each in schedules if each.schedule_id == name_or_id]
    found = found or [each for each in schedules if each.name == name_or_id]
    if not found:
        names = ", ".join(sorted({each.name for each in schedules})) or "none"
        raise InputError(f"no schedule has the name or id '{redact(name_or_id)}'; allowed: {redact(names)}.")
    if len(found) > 1:
        ids = ", ".join(each.schedule_id for each in found)
        raise InputError(f"{len(found)} schedules have the name '{redact(name_or_id)}'; use the id of one: {ids}.")
    return found[0]


_MAX_FAILURES = 10  # consecutive failed requests; the network or the server may be down for a while
_LAST_STATES_SECONDS = 60.0
_UNREPORTED: frozenset[TaskState] = frozenset({"pending", "not run", "unknown"})


def follow_run(backend: Backend, run_id: str, print_line: Callable[[str], None], *, every_seconds: float) -> RunStatus:
    """Poll a run until it has ended and its tasks have final states, and return its last status.

    Kubeflow's API shows the end of a run some seconds before the end of its last task. States that stay unknown, as
    those of a large workflow do, are waited for at most a minute.

    Raises:
        ApiError: if the backend stops responding or refuses the request. The run continues.
    """
    reported: dict[str, TaskState] = {}
    failures = 0
    ended_at: float | None = None
    while True:
        try:
            run = backend.get_run(run_id)
            failures = 0
        except ApiError as error:
            failures += 1
            if error.kind not in MAY_PASS or failures > _MAX_FAILURES:
                next_step = f"The run continues: `detloom status RUN_FILE {run_id} --wait` follows it again"
                raise ApiError(error.kind, f"{error} {next_step}.") from None
            time.sleep(every_seconds)
            continue
        for task in run.tasks:
            if reported.get(task.name) != task.state and task.state not in _UNREPORTED:
                print_line(_line(task))
            reported[task.name] = task.state
        if run.state in ENDED:
            ended_at = time.monotonic() if ended_at is None else ended_at
            is_complete = all(task.state != "unknown" for task in run.tasks)
            if is_complete or time.monotonic() - ended_at >= _LAST_STATES_SECONDS:
                return run
        time.sleep(every_seconds)


def _line(task: TaskStatus) -> str:
    """Format a task's state, such as "14:03:05 UTC  Trainer  failed after 12 min 5 s: out of memory"."""
    moment = (task.started if task.state == "running" else task.ended) or datetime.now(timezone.utc)
    duration = ""
    if task.ended is not None and task.started is not None and task.state in ("succeeded", "failed", "cancelled"):
        duration = f" after {format_duration((task.ended - task.started).total_seconds())}"
    detail = f": {task.error}" if task.error else ""
    return f"{moment.astimezone(timezone.utc):%H:%M:%S} UTC  {task.name}  {task.state}{duration}{detail}"
