"""Compile a TFX pipeline to a job for Vertex AI or open-source Kubeflow Pipelines: TFX's compiler, then edits."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tfx.version
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.components.example_gen.component import FileBasedExampleGen
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.importer import SOURCE_URI_KEY, Importer
from tfx.dsl.components.common.resolver import Resolver
from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig
from tfx.orchestration.pipeline import Pipeline

import detloom
from detloom.components.fingerprints import package_fingerprint
from detloom.pipelines.compile.check_run import check_parameters, check_vertex_nodes
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
    set_retries,
    set_time_limits,
    uncached_nodes,
)
from detloom.pipelines.dag.resources import resources_of
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.kubeflow import PIPELINE_ROOT_SCHEMES, Kubeflow
from detloom.schemas.run_file.nodes import NodeSettings, retry_of, settings_of
from detloom.schemas.run_file.vertex import Vertex


def compile_pipeline(pipeline: Pipeline, backend: Kubeflow | Vertex, nodes: Sequence[NodeSettings] = ()) -> str:
    """Compile any TFX pipeline, with or without detloom's components, to the text of a job file.

    The tasks run in an image with detloom, whose command makes up for what TFX's command lacks there: the types of our
    artifacts, and the driver of DetectionExampleGen.

    Args:
        pipeline: a `tfx.dsl.Pipeline`.
        backend: settings as in the section `kubeflow` or `vertex` of a run file: image, pipeline root, volumes.
            `vertex.training` is not used; give the Trainer TFX's own executor for Vertex AI instead.
        nodes: settings as in the section `nodes` of a run file, by the ids of the pipeline's nodes: resources, retries,
            time limits.

    Returns:
        a PipelineJob in JSON for Vertex AI, or a PipelineSpec in YAML with a Kubernetes platform document for Kubeflow.

    Raises:
        InputError: for what the backend does not support.
    """
    if isinstance(backend, Vertex):
        check_vertex_nodes(nodes)
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
    for node in pipeline.components if settings.place == "kubeflow" else ():
        if fault := _fault_on_kubeflow(node):
            raise InputError(f"{node.id}: {fault}")
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


def _fault_on_kubeflow(node: BaseNode) -> str | None:
    """Return why open-source Kubeflow Pipelines cannot run a node.

    Its compiler has no resolvers (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/argo.go), its importer needs
    a scheme (backend/src/v2/component/importer_launcher.go), and it runs no driver of an ExampleGen.
    """
    if isinstance(node, Resolver):
        return (
            "is a Resolver, which Kubeflow Pipelines does not run; for the model that serves use ProductionModel of "
            "detloom.components, or compile for Vertex AI."
        )
    if isinstance(node, Importer) and "://" not in str(node.exec_properties[SOURCE_URI_KEY]):
        source = redact(str(node.exec_properties[SOURCE_URI_KEY]))
        return f"got '{source}', allowed for an Importer on Kubeflow: an address at {', '.join(PIPELINE_ROOT_SCHEMES)}."
    if isinstance(node, FileBasedExampleGen) and "{SPAN}" in str(node.exec_properties):
        return (
            "got '{SPAN}' in a path, which Kubeflow Pipelines does not resolve for TFX's ExampleGens; write the number "
            "of the span, or use DetectionExampleGen."
        )
    return None


def _run_compiler(pipeline: Pipeline, settings: JobSettings, exit_handler: BaseNode | None) -> dict[str, Any]:
    """Return the PipelineJob of TFX's compiler, which is the same for both backends."""
    for node in (*pipeline.components, *([exit_handler] if exit_handler else [])):
        resources = resources_of(settings_of(settings.nodes, node.id), settings.place)
        if isinstance(node, BaseComponent) and resources is not None:
            node.with_platform_config(resources)
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
    set_images(spec, {node_id: settings_of(settings.nodes, node_id).image for node_id in node_ids})
    set_environment(spec, {node_id: environment_of(settings, node_id) for node_id in node_ids})
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
