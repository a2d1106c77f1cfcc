"""What a backend can do, and what is the same for both: submitting once, schedules by name."""

import shlex
from datetime import datetime, timezone
from typing import Protocol

from detloom.pipelines.backends.api_errors import MAYBE_DONE, ApiError
from detloom.pipelines.backends.compiled_job import CompiledJob
from detloom.pipelines.backends.run_status import RunStatus, ScheduleStatus
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place, RunFile
from detloom.schemas.schedule_config import Schedule

PLACE_NAMES: dict[Place, str] = {"kubeflow": "Kubeflow Pipelines", "vertex": "Vertex AI"}


class Backend(Protocol):
    """Kubeflow Pipelines or Vertex AI, for one pipeline. All methods raise ApiError."""

    def submit(self, job: CompiledJob, name: str) -> RunStatus:
        """Start a run."""

    def find_run(self, name: str) -> RunStatus | None:
        """The newest run of that name, of whatever pipeline, or None."""

    def get_run(self, run_id: str) -> RunStatus:
        """A run with its tasks, by id or by name."""

    def latest_runs(self, limit: int) -> list[RunStatus]:
        """The pipeline's runs, newest first, without tasks."""

    def create_schedule(self, job: CompiledJob, schedule: Schedule, name: str) -> ScheduleStatus:
        """Start a schedule, whether or not there is one of that name."""

    def list_schedules(self) -> list[ScheduleStatus]:
        """All schedules, of other pipelines too, without their last runs."""

    def own_schedules(self) -> list[ScheduleStatus]:
        """The pipeline's schedules with their last runs."""

    def pause_schedule(self, schedule_id: str) -> None:
        """Start no more runs."""

    def resume_schedule(self, schedule_id: str, *, catch_up: bool) -> None:
        """Start runs again.

        Args:
            catch_up: run what was missed, on Vertex AI; on Kubeflow that was said when the schedule was created.
        """

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove it; its runs stay."""


def connect(run: RunFile, place: Place) -> Backend:
    """The backend that a run file names.

    Raises:
        InputError: for a section that is missing or does not say where the backend is, and for missing credentials.
    """
    if place == "kubeflow" and run.kubeflow is not None:
        from detloom.pipelines.backends.kubeflow_api import connect_kubeflow
        from detloom.pipelines.backends.kubeflow_client import KubeflowBackend

        return KubeflowBackend(run.kubeflow, run.name, connect_kubeflow(run.kubeflow))
    if place == "vertex" and run.vertex is not None:
        from detloom.pipelines.backends.vertex_api import connect_vertex
        from detloom.pipelines.backends.vertex_client import VertexBackend

        return VertexBackend(run.vertex, run.name, connect_vertex(run.vertex))
    raise InputError(f"{place}: the run file has no such section; docs/{place}.md says what it needs.")


def submit_once(backend: Backend, job: CompiledJob, name: str, *, is_new_name: bool) -> RunStatus:
    """Submit under a name of which there is no run yet; a lost answer is no reason to do it twice.

    On Vertex AI the name is the run's id, so that the service itself refuses the second of two. Kubeflow gives ids out
    itself (kubeflow/pipelines, backend/src/apiserver/resource/resource_manager.go, CreateRun) and has no such guard;
    there, this looks for the name before and, when the answer was lost, afterwards.

    Args:
        is_new_name: whether it was made a moment ago, so that nobody can have it.
    """
    if not is_new_name and (found := backend.find_run(name)) is not None:
        next_step = f"look at it (`detloom status RUN_FILE {found.run_id}`) or choose another --name"
        raise InputError(f"--name: there is a run named '{name}' already, which is {found.state}; {next_step}.")
    try:
        return backend.submit(job, name)
    except ApiError as error:
        if error.kind not in MAYBE_DONE:
            raise
        try:
            found = backend.find_run(name)
        except ApiError:
            doubt = f"whether the run '{name}' was created is not known"
        else:
            if found is not None:
                return found
            doubt = f"no run '{name}' is there so far"
        message = f"{error} When it answers, look with `detloom status RUN_FILE` before you submit again: {doubt}."
        raise ApiError(error.kind, message) from None


def create_schedule(
    backend: Backend, job: CompiledJob, schedule: Schedule, name: str, *, replace: bool
) -> ScheduleStatus:
    """Start a schedule, the only one of its name.

    Args:
        replace: delete those of that name, as soon as the new one is there.

    Raises:
        InputError: if there is one already and it is not to be replaced.
    """
    if schedule.end_time is not None and schedule.end_time <= datetime.now(timezone.utc):
        raise InputError(f"schedule.end: got '{schedule.end}', which is over; set a later moment, or none.")
    before = [each for each in backend.list_schedules() if each.name == name]
    if before and not replace:
        command = f"detloom schedule delete RUN_FILE {shlex.quote(redact(name))}"
        other = f"`--replace` replaces it, `--name` makes another one, and `{command}` removes it"
        raise InputError(f"there is a schedule named '{redact(name)}' already, which is {before[0].state}: {other}.")
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
            both = f"The new schedule ({created.schedule_id}) is there, and so is the old one"
            command = f"`detloom schedule delete RUN_FILE {old.schedule_id}`"
            raise ApiError(error.kind, f"{error} {both}: delete that with {command}.") from None
    return created


def _find_created(backend: Backend, name: str, known: set[str], error: ApiError) -> ScheduleStatus:
    """The schedule that was created although the answer was lost."""
    try:
        new = [each for each in backend.list_schedules() if each.name == name and each.schedule_id not in known]
    except ApiError:
        new = []
    if len(new) == 1:
        return new[0]
    look = "When it answers, look with `detloom schedule list RUN_FILE` before you create it again"
    raise ApiError(error.kind, f"{error} {look}.") from None


def find_schedule(backend: Backend, name_or_id: str) -> ScheduleStatus:
    """The one schedule of that id or name.

    Raises:
        InputError: if there is none, or several of that name.
    """
    schedules = backend.list_schedules()
    found = [each for each in schedules if each.schedule_id == name_or_id]
    found = found or [each for each in schedules if each.name == name_or_id]
    if not found:
        names = ", ".join(sorted({each.name for each in schedules})) or "none at all"
        raise InputError(f"no schedule has the name or id '{redact(name_or_id)}'; there are: {redact(names)}.")
    if len(found) > 1:
        ids = ", ".join(each.schedule_id for each in found)
        raise InputError(f"{len(found)} schedules have the name '{redact(name_or_id)}'; give the id of one: {ids}.")
    return found[0]
