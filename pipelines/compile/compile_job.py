"""Compile the pipeline of a run file to a job for Vertex AI or open-source Kubeflow Pipelines."""

from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.kubeflow.decorators import FinalStatusStr

from detloom.components.notifier.component import Notifier
from detloom.components.properties import arguments_of
from detloom.pipelines.compile.check_run import check_run
from detloom.pipelines.compile.compile_pipeline import compile_with_settings
from detloom.pipelines.compile.job_settings import job_settings_of
from detloom.pipelines.dag.create_pipeline import create_pipeline, notifier_params, place_node
from detloom.schemas.run_file.run_file import Place, RunFile


def compile_job(run: RunFile, place: Place) -> str:
    """Return the text of the job file; for the same package, it is always the same.

    Args:
        run: run file that was read for this place (`read_run_file`).

    Raises:
        InputError: for settings that the backend does not support.
    """
    check_run(run, place)
    settings, pipeline = job_settings_of(run, place), create_pipeline(run, place)
    # The age of the model can require training although data and settings, and so the cache keys, are the same.
    is_aging = run.retrain is not None and run.retrain.max_age_days and place == "vertex"
    uncached = frozenset(("Tuner", "Trainer") if is_aging else ())
    return compile_with_settings(pipeline, settings, exit_handler=_failure_notifier(run, place), uncached=uncached)


def _failure_notifier(run: RunFile, place: Place) -> BaseNode | None:
    if run.notifications is None or "failed" not in run.notifications.events:
        return None
    arguments = arguments_of(notifier_params(run, place))
    handler = Notifier(**arguments, final_status=FinalStatusStr()).with_id("FailureNotifier")
    place_node(run, handler, place)
    return handler
