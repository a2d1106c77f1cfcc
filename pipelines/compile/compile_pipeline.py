"""Compile a TFX pipeline to a job for Vertex AI or open-source Kubeflow Pipelines: TFX's compiler, then edits."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tfx.version
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline

import detloom
from detloom.components.fingerprints import package_fingerprint
from detloom.pipelines.compile.check_pipeline import check_pipeline
from detloom.pipelines.compile.check_run import check_parameters
from detloom.pipelines.compile.group_conditioned_tasks import group_conditioned_tasks
from detloom.pipelines.compile.job_settings import JobSettings
from detloom.pipelines.compile.kubernetes_platform import build_platform, environment_of
from detloom.pipelines.compile.pipeline_spec import (
    Spec,
    check_spec,
    containers_of,
    executor_labels_of,
)
from detloom.pipelines.compile.shorten_job import describe_settings, settings_by_node, shorten
from detloom.pipelines.compile.spec_edits import (
    add_drivers,
    declare_final_status,
    entrypoint_command,
    name_code,
    name_system_types,
    refresh_input_specs,
    set_caching,
    set_environment,
    set_images,
    set_resources,
    set_retries,
    set_time_limits,
    trainers_of,
    uncached_nodes,
)
from detloom.pipelines.dag.resources import resources_of
from detloom.schemas.run_file.kubeflow import Kubeflow
from detloom.schemas.run_file.nodes import NodeSettings, retry_of, settings_of
from detloom.schemas.run_file.vertex import Vertex


def compile_pipeline(pipeline: Pipeline, backend: Kubeflow | Vertex, nodes: Sequence[NodeSettings] = ()) -> str:
    """Compile any TFX pipeline, with or without detloom's components, to the text of a job file.

    The tasks run in an image with detloom, whose command makes up for what TFX's command lacks there: the types of our
    artifacts, and the driver of DetectionExampleGen.

    Args:
        pipeline: a `tfx.dsl.Pipeline`.
        backend: settings as in the section `kubeflow` or `vertex` of a run file: image, pipeline root, volumes.
        nodes: settings as in the section `nodes` of a run file, by the ids of the pipeline's nodes: resources, retries,
            time limits. Accelerators are for nodes with the ids Trainer, Tuner and DetectionEvaluator.

    Returns:
        a PipelineJob in JSON for Vertex AI, or a PipelineSpec in YAML with a Kubernetes platform document for Kubeflow.

    Raises:
        InputError: for what the backend does not support.
    """
    check_pipeline(pipeline, backend, nodes)
    return compile_with_settings(pipeline, JobSettings(backend=backend, nodes=tuple(nodes)))


def compile_with_settings(
    pipeline: Pipeline,
    settings: JobSettings,
    *,
    exit_handler: BaseNode | None = None,
    uncached: Collection[str] = (),
) -> str:
    """Return the text of the job file.

    Args:
        exit_handler: a node that runs when the others have ended.
        uncached: nodes that must not be cached, besides those that never are.

    Raises:
        InputError: for what the backend does not support.
    """
    job = _run_compiler(pipeline, settings, exit_handler)
    spec = job["pipelineSpec"]
    _edit_spec(spec, settings, uncached)
    if isinstance(settings.backend, Vertex):
        job["runtimeConfig"]["gcsOutputDirectory"] = settings.backend.pipeline_root
        if settings.backend.labels:
            job["labels"] = {**job.get("labels", {}), **settings.backend.labels}
    json_format.ParseDict(job, pipeline_spec_pb2.PipelineJob())
    check_spec(spec)
    check_parameters(spec, settings.place)
    if settings.place == "vertex":
        return format_json(job)
    shorten(spec)
    check_spec(spec)
    platform = build_platform(settings, executor_labels_of(spec), settings_by_node(spec))
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    return _header() + format_yaml([spec, platform]) + _SETTINGS + describe_settings(spec)


def _run_compiler(pipeline: Pipeline, settings: JobSettings, exit_handler: BaseNode | None) -> dict[str, Any]:
    """Return the PipelineJob of TFX's compiler, which is the same for both backends."""
    config = KubeflowV2DagRunnerConfig(
        default_image=settings.backend.image,
        default_commands=entrypoint_command(settings.place),
        use_pipeline_spec_2_1=True,
    )
    runner = KubeflowV2DagRunner(config)
    if exit_handler is not None:
        runner.set_exit_handler(exit_handler)
    job: dict[str, Any] = runner.run(pipeline, write_out=False)
    return job


def _edit_spec(spec: Spec, settings: JobSettings, uncached: Collection[str]) -> None:
    """Add what TFX's compiler leaves out, and change what a backend would refuse, in place."""
    group_conditioned_tasks(spec)
    name_system_types(spec)
    declare_final_status(spec)
    set_caching(spec, uncached_nodes(spec, settings.place) | frozenset(uncached))
    node_ids = list(containers_of(spec))
    retries = {node_id: retry_of(settings.nodes, node_id) for node_id in node_ids}
    set_retries(spec, retries, settings.place)
    refresh_input_specs(spec)
    name_code(spec)
    if settings.place == "vertex":
        add_drivers(spec)
    limits = {node_id: retry.time_limit_seconds for node_id, retry in retries.items() if retry.time_limit_seconds}
    set_time_limits(spec, limits)
    nodes, trainers = {node_id: settings_of(settings.nodes, node_id) for node_id in node_ids}, trainers_of(spec)
    set_images(spec, {node_id: node.image for node_id, node in nodes.items()})
    set_resources(spec, {node_id: resources_of(node, settings.place) for node_id, node in nodes.items()})
    environments = {node_id: environment_of(settings, node_id, trains=node_id in trainers) for node_id in node_ids}
    set_environment(spec, environments)
    spec.pop("defaultPipelineRoot", None)
    if settings.backend.pipeline_root:
        spec["defaultPipelineRoot"] = settings.backend.pipeline_root


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
