"""Compile the pipeline to a job for Vertex AI or open-source Kubeflow Pipelines: TFX's compiler, then edits."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tfx.version
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.decorators import FinalStatusStr
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig

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
from detloom.schemas.run_file.nodes import retry_of
from detloom.schemas.run_file.run_file import Place, RunFile


def compile_job(run: RunFile, place: Place) -> str:
    """Return the text of the job file; for the same package, it is always the same.

    It is a PipelineJob in JSON on Vertex AI, or a PipelineSpec in YAML with a Kubernetes platform document on Kubeflow.

    Args:
        run: run file that was read for this place (`read_run_file`).

    Raises:
        InputError: for settings that the backend does not support.
    """
    check_run(run, place)
    job = _run_compiler(run, place)
    spec = job["pipelineSpec"]
    edit_spec(run, place, spec)
    if run.vertex and run.vertex.labels and place == "vertex":
        job["labels"] = {**job.get("labels", {}), **run.vertex.labels}
    json_format.ParseDict(job, pipeline_spec_pb2.PipelineJob())
    check_spec(spec)
    check_parameters(spec, place)
    if place == "vertex":
        return format_json(job)
    shorten(spec)
    check_spec(spec)
    platform = build_platform(run, executor_labels_of(spec), settings_by_node(spec))
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    return _header() + format_yaml([spec, platform]) + _SETTINGS + describe_settings(spec)


def _run_compiler(run: RunFile, place: Place) -> dict[str, Any]:
    """Return the PipelineJob of TFX's compiler, which is the same for both backends."""
    image = getattr(run, place).image
    commands = entrypoint_command(place)
    config = KubeflowV2DagRunnerConfig(default_image=image, default_commands=commands, use_pipeline_spec_2_1=True)
    runner = KubeflowV2DagRunner(config)
    if run.notifications is not None and "failed" in run.notifications.events:
        arguments = arguments_of(notifier_params(run, place))
        handler = Notifier(**arguments, final_status=FinalStatusStr()).with_id("FailureNotifier")
        place_node(run, handler, place)
        runner.set_exit_handler(handler)
    job: dict[str, Any] = runner.run(create_pipeline(run, place), write_out=False)
    return job


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
