"""Compile the pipeline to a job for Vertex AI or open-source Kubeflow Pipelines: TFX's compiler, then edits."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tfx.version
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.decorators import FinalStatusStr
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline

import detloom
from detloom.components.fingerprints import package_fingerprint
from detloom.components.notifier.component import Notifier
from detloom.components.properties import arguments_of
from detloom.pipelines.compile.check_run import check_parameters, check_run
from detloom.pipelines.compile.group_conditioned_tasks import group_conditioned_tasks
from detloom.pipelines.compile.kubernetes_platform import build_platform, environment_of
from detloom.pipelines.compile.pipeline_spec import (
    Spec,
    check_spec,
    containers_of,
    executor_labels_of,
)
from detloom.pipelines.compile.shorten_job import describe_settings, settings_by_node, shorten
from detloom.pipelines.compile.spec_edits import (
    add_driver,
    declare_final_status,
    entrypoint_command,
    name_code,
    name_system_types,
    refresh_input_specs,
    set_caching,
    set_environment,
    set_retries,
    set_time_limits,
    uncached_nodes,
)
from detloom.pipelines.dag.create_pipeline import create_pipeline, notifier_params, place_node
from detloom.pipelines.samples.sample_run_file import RUN_FILE_VARIABLE, sample_run_file
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.run_file.nodes import retry_of
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import Place, RunFile


def compile_job(run: RunFile, place: Place) -> str:
    """Return the text of the job file; for the same package, it is always the same.

    It is a PipelineJob in JSON on Vertex AI, or a PipelineSpec in YAML with a Kubernetes platform document on Kubeflow.

    Args:
        run: run file that was read for this place (`read_run_file`).

    Raises:
        InputError: for settings that the backend does not support.
    """
    job = JobRunner(run, place).run(create_pipeline(run, place), write_out=False)
    return format_job(run, place, job)


def format_job(run: RunFile, place: Place, job: dict[str, Any]) -> str:
    """Format the output of `JobRunner`."""
    if place == "vertex":
        return format_json(job)
    spec = job["pipelineSpec"]
    platform = build_platform(run, executor_labels_of(spec), settings_by_node(spec))
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    return _header() + format_yaml([spec, platform]) + _SETTINGS + describe_settings(spec)


_SETTINGS = "# Settings of the tasks, which are packed in the parameter packed_settings:\n"


def _header() -> str:
    """Return comments on the origin of a job and on what surprises its readers; there is no date in it."""
    lines = (
        f"Job for Kubeflow Pipelines, compiled by detloom {detloom.__version__} with TFX {tfx.version.__version__}.",
        f"Source: package {package_fingerprint()}; `detloom image-check` compares an image with this job.",
        "backoffMaxDuration is a year because Argo Workflows counts it from the start of the first try.",
        "An accelerator of the type ephemeral-storage is disk space in bytes: the format has no other field for it.",
    )
    return "".join(f"# {line}\n" for line in lines)


class JobRunner(KubeflowV2DagRunner):
    """TFX's runner of that name, which compiles for both backends, extended by edits of its output.

    `tfx pipeline create --engine=vertex` replaces the method `run` of TFX's class with one that first sets the output
    folder (tfx/tools/cli/handler/kubeflow_v2_dag_runner_patcher.py). `run` calls that method here, and the file written
    there contains the edited job.
    """

    def __init__(self, run: RunFile, place: Place, output_filename: str = "") -> None:
        """Store the run file, which was read for this place.

        Args:
            output_filename: name of the file in the current folder if `run` writes one.

        Raises:
            InputError: for settings that the backend does not support.
        """
        check_run(run, place)
        settings = getattr(run, place)
        config = KubeflowV2DagRunnerConfig(
            default_image=settings.image, default_commands=entrypoint_command(place), use_pipeline_spec_2_1=True
        )
        super().__init__(config, output_filename=output_filename or None)
        self._run, self._place = run, place
        if run.notifications is not None and "failed" in run.notifications.events:
            arguments = arguments_of(notifier_params(run, place))
            handler = Notifier(**arguments, final_status=FinalStatusStr()).with_id("FailureNotifier")
            place_node(run, handler, place)
            self.set_exit_handler(handler)

    def run(
        self, pipeline: Pipeline, parameter_values: dict[str, Any] | None = None, write_out: bool | None = True
    ) -> dict[str, Any]:
        """Return the edited PipelineJob; `format_job` converts it to text."""
        job = super().run(pipeline, parameter_values, write_out=False)
        edit_spec(self._run, self._place, job["pipelineSpec"])
        if self._place == "vertex" and self._run.vertex and self._run.vertex.labels:
            job["labels"] = {**job.get("labels", {}), **self._run.vertex.labels}
        json_format.ParseDict(job, pipeline_spec_pb2.PipelineJob())
        check_spec(job["pipelineSpec"])
        check_parameters(job["pipelineSpec"], self._place)
        if self._place == "kubeflow":
            shorten(job["pipelineSpec"])
            check_spec(job["pipelineSpec"])
        if write_out:
            self.output_path.parent.mkdir(parents=True, exist_ok=True)
            write_text_file(self.output_path, format_job(self._run, self._place, job))
        return job

    @property
    def output_path(self) -> Path:
        """Return the path that `run` writes; under the tfx command line it is known only after the run."""
        return Path(self._output_dir, self._output_filename)


def edit_spec(run: RunFile, place: Place, spec: Spec) -> None:
    """Add what TFX's compiler leaves out, and change what a backend would refuse, in place."""
    group_conditioned_tasks(spec)
    name_system_types(spec)
    declare_final_status(spec)
    set_caching(spec, uncached_nodes(run, place))
    node_ids = list(containers_of(spec))
    retries = {node_id: retry_of(run.nodes, node_id) for node_id in node_ids}
    set_retries(spec, retries, place)
    refresh_input_specs(spec)
    name_code(spec)
    if place == "vertex":
        add_driver(spec, "DetectionExampleGen")
    limits = {node_id: retry.time_limit_seconds for node_id, retry in retries.items() if retry.time_limit_seconds}
    set_time_limits(spec, limits)
    set_environment(spec, {node_id: environment_of(run, node_id, place) for node_id in node_ids})
    if root := getattr(run, place).pipeline_root:
        spec["defaultPipelineRoot"] = root


_PLAIN = re.compile(r"[A-Za-z][A-Za-z]+[A-Za-z0-9_ ./:-]*[A-Za-z0-9]")


def format_json(document: Mapping[str, Any]) -> str:
    """Format sorted JSON with one key per line."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def format_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Format sorted YAML documents, separated by lines of dashes.

    Every string that does not look like a word is quoted, because YAML 1.2 readers such as the backend's (in Go) read
    a fingerprint such as 12345678e0123456 as a number, which PyYAML would not quote.
    """
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=1_000_000, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    """A dumper that uses `_represent_text` and writes no anchors for shared objects."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else "'")


_Dumper.add_representer(str, _represent_text)


def compile_run_file() -> Path:
    """Compile the run file that DETLOOM_RUN_FILE names for Vertex AI.

    The job is written to `<name>.json` in the current folder, unless the tfx command line sets another path.

    Raises:
        InputError: for a mistake in the file, an unsupported setting, or a run file that has the output's name.
    """
    named = os.environ.get(RUN_FILE_VARIABLE)
    path = Path(named) if named else sample_run_file("demo")
    run = read_run_file(path, place="vertex")
    runner = JobRunner(run, "vertex", f"{run.name}.json")
    output = runner.output_path
    if output.exists() and output.samefile(path):
        raise InputError(
            f"{redact(str(path))}: the job would overwrite this run file; rename it, or compile it in another folder."
        )
    runner.run(create_pipeline(run, "vertex"))
    return runner.output_path
