"""The DAG as a job for Vertex AI or open-source Kubeflow Pipelines: TFX's compiler, then one edit after the other."""

from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline

from detloom.components.notifier.failure import build_failure_notifier
from detloom.pipelines.compile.check_run import check_parameters, check_run
from detloom.pipelines.compile.container_command import (
    add_driver,
    entrypoint_command,
    refresh_input_specs,
    set_time_limits,
)
from detloom.pipelines.compile.declared_types import declare_final_status, name_system_types
from detloom.pipelines.compile.format_job import format_json, format_yaml
from detloom.pipelines.compile.group_conditioned_tasks import group_conditioned_tasks
from detloom.pipelines.compile.kubernetes_platform import build_platform, environment_of
from detloom.pipelines.compile.pipeline_spec import Spec, check_spec, containers_of, executor_labels_of
from detloom.pipelines.compile.task_settings import set_caching, set_environment, set_retries, uncached_nodes
from detloom.pipelines.create_pipeline import create_pipeline, notifier_params, place_node
from detloom.schemas.node_config import retry_of
from detloom.schemas.run_file import Place, RunFile
from detloom.schemas.text_file import write_text_file


def compile_job(run: RunFile, place: Place) -> str:
    """The text of the job's file; compiled again, with the same package, it is the same.

    On Vertex AI a PipelineJob in JSON. On Kubeflow a PipelineSpec in YAML, and after it what Kubernetes has to know.

    Args:
        run: read for this place (`read_run_file`).

    Raises:
        InputError: for what the backend cannot do.
    """
    job = JobRunner(run, place).run(create_pipeline(run, place), write_out=False)
    return format_job(run, place, job)


def write_job(run: RunFile, place: Place, path: Path) -> None:
    """Compile, and write the file whole or not at all.

    Raises:
        InputError: for what the backend cannot do.
        OSError: the file cannot be written.
    """
    write_text_file(path, compile_job(run, place))


def format_job(run: RunFile, place: Place, job: dict[str, Any]) -> str:
    """The text of what `JobRunner` compiled."""
    if place == "vertex":
        return format_json(job)
    spec = job["pipelineSpec"]
    platform = build_platform(run, executor_labels_of(spec))
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    return format_yaml([spec, platform])


class JobRunner(KubeflowV2DagRunner):
    """TFX's runner of that name, which compiles for both backends, and our edits on what it compiled.

    `tfx pipeline create --engine=vertex` replaces the method `run` of TFX's class by one that first says where the file
    goes (tfx/tools/cli/handler/kubeflow_v2_dag_runner_patcher.py). It is called here and does so; the file that is
    written there is the edited one.
    """

    def __init__(self, run: RunFile, place: Place, output_filename: str = "") -> None:
        """Take the run file, read for this place.

        Args:
            output_filename: of the file in the current folder, if `run` is to write one by itself.

        Raises:
            InputError: for what the backend cannot do.
        """
        check_run(run, place)
        settings = getattr(run, place)
        config = KubeflowV2DagRunnerConfig(
            default_image=settings.image, default_commands=entrypoint_command(place), use_pipeline_spec_2_1=True
        )
        super().__init__(config, output_filename=output_filename or None)
        self._run, self._place = run, place
        if run.notifications is not None and "failed" in run.notifications.events:
            handler = build_failure_notifier(notifier_params(run, place))
            place_node(run, handler, place)
            self.set_exit_handler(handler)

    def run(
        self, pipeline: Pipeline, parameter_values: dict[str, Any] | None = None, write_out: bool | None = True
    ) -> dict[str, Any]:
        """The edited PipelineJob; `format_job` makes the file's text of it."""
        job = super().run(pipeline, parameter_values, write_out=False)
        job["pipelineSpec"] = edit_spec(self._run, self._place, job["pipelineSpec"])
        if self._place == "vertex" and self._run.vertex and self._run.vertex.labels:
            job["labels"] = {**job.get("labels", {}), **self._run.vertex.labels}
        json_format.ParseDict(job, pipeline_spec_pb2.PipelineJob())
        check_spec(job["pipelineSpec"])
        check_parameters(job["pipelineSpec"], self._place)
        if write_out:
            self.output_path.parent.mkdir(parents=True, exist_ok=True)
            write_text_file(self.output_path, format_job(self._run, self._place, job))
        return job

    @property
    def output_path(self) -> Path:
        """Of the file that `run` writes; under the tfx command line known once it has run."""
        return Path(self._output_dir, self._output_filename)


def edit_spec(run: RunFile, place: Place, spec: Spec) -> Spec:
    """What TFX's compiler does not say, or says in a way that one of the backends refuses."""
    spec = group_conditioned_tasks(spec)
    spec = name_system_types(spec)
    spec = declare_final_status(spec)
    spec = set_caching(spec, uncached_nodes(run, place))
    node_ids = list(containers_of(spec))
    retries = {node_id: retry_of(run.nodes, node_id) for node_id in node_ids}
    spec = set_retries(spec, retries, place)
    spec = refresh_input_specs(spec)
    if place == "vertex":
        spec = add_driver(spec, "DetectionExampleGen")
    limits = {node_id: retry.time_limit_seconds for node_id, retry in retries.items() if retry.time_limit_seconds}
    spec = set_time_limits(spec, limits)
    spec = set_environment(spec, {node_id: environment_of(run, node_id, place) for node_id in node_ids})
    root = getattr(run, place).pipeline_root
    return {**spec, "defaultPipelineRoot": root} if root else spec
