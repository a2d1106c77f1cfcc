"""Read and check compiled pipelines, and apply options that are chosen at submission."""

import copy
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.backends.api_errors import shorten_message
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.run_file import Place

_RUN_NAME = re.compile(r"[a-z]([a-z0-9-]{0,125}[a-z0-9])?")
_MAX_NAME = 100  # maximum characters of the pipeline's name in a run's name


@dataclass(frozen=True, kw_only=True)
class CompiledJob:
    """A compiled pipeline as plain data, checked against the protobuf messages.

    Attributes:
        spec: ml_pipelines.PipelineSpec.
        platform: ml_pipelines.PlatformSpec, on Kubeflow; may be empty.
        labels, runtime_config: fields of the PipelineJob, on Vertex AI.
    """

    spec: Mapping[str, Any]
    platform: Mapping[str, Any]
    labels: Mapping[str, Any]
    runtime_config: Mapping[str, Any]

    @property
    def pipeline_name(self) -> str:
        return str(self.spec["pipelineInfo"]["name"])


def parse_job(text: str, place: Place, where: str) -> CompiledJob:
    """Parse a compiled job: the JSON of a PipelineJob for Vertex AI, one or two YAML documents for Kubeflow.

    Args:
        where: the source of the text, for messages.

    Raises:
        InputError: for content that does not fit the backend's messages.
    """
    try:
        documents = list(yaml.safe_load_all(text)) if place == "kubeflow" else [json.loads(text)]
    except (ValueError, RecursionError, yaml.YAMLError):
        kind = "YAML" if place == "kubeflow" else "JSON"
        raise InputError(f"{where}: this is not {kind}; `detloom compile --runner {place}` writes it.") from None
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise InputError(f"{where}: contains no mapping; `detloom compile --runner {place}` writes one.")
    is_job = "pipelineSpec" in documents[0]
    if is_job != (place == "vertex"):
        other = "Vertex AI" if is_job else "Kubeflow"
        raise InputError(
            f"{where}: this is a job for {other}; compile the run file with `detloom compile --runner {place}`."
        )
    job = documents[0] if is_job else {"pipelineSpec": documents[0]}
    platform: dict[str, Any] = {}
    for document in documents[1:]:
        platform.update(document)
    spec = _strictly(pipeline_spec_pb2.PipelineSpec(), job["pipelineSpec"], where)
    name = spec.get("pipelineInfo", {}).get("name")
    tasks = spec.get("root", {}).get("dag", {}).get("tasks")
    if not name or not tasks:
        raise InputError(f"{where}: contains no pipeline with a name and tasks; `detloom compile` writes one.")
    runtime = job.get("runtimeConfig") or {}
    labels = job.get("labels") or {}
    if not isinstance(runtime, dict) or not isinstance(labels, dict):
        raise InputError(f"{where}: runtimeConfig and labels must be mappings, as `detloom compile` writes them.")
    return CompiledJob(
        spec=spec,
        platform=_strictly(pipeline_spec_pb2.PlatformSpec(), platform, where),
        labels=labels,
        runtime_config=runtime,
    )


def without_cache(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a pipeline spec with the cache disabled for every task.

    No function enables the cache, because some tasks must never use it, and `enable_caching=True` of kfp.Client and
    aiplatform.PipelineJob would enable it for all of them (kubeflow/pipelines, sdk/python/kfp/client/client.py,
    `_override_caching_options`, which skips inner pipelines; googleapis/python-aiplatform,
    google/cloud/aiplatform/pipeline_jobs.py, `_set_enable_caching_value`).
    """
    changed: dict[str, Any] = copy.deepcopy(dict(spec))
    for component in (changed["root"], *changed.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task["cachingOptions"] = {"enableCache": False}
    return changed


def new_run_name(pipeline_name: str) -> str:
    """Return a unique run name from the pipeline's name, the time and 32 random bits; it is a valid id on Vertex AI."""
    words = re.sub("[^a-z0-9]+", "-", pipeline_name.lower()).strip("-")[:_MAX_NAME].rstrip("-")
    name = words if words[:1].isalpha() else f"run-{words}".rstrip("-")
    return f"{name}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def check_run_name(name: str) -> None:
    """Raise InputError unless the name is a valid id on Vertex AI (aiplatform_v1 CreatePipelineJobRequest)."""
    if not _RUN_NAME.fullmatch(name):
        allowed = "at most 127 lower case letters, digits and '-', starting with a letter"
        raise InputError(f"--name: got {redact(repr(name))}, allowed: {allowed}.")


def _strictly(message: Any, plain: object, where: str) -> dict[str, Any]:
    """Return plain data normalized by a protobuf message; unknown fields are an error."""
    try:
        json_format.ParseDict(plain, message)
    except (json_format.ParseError, AttributeError, TypeError, RecursionError) as error:
        reason = shorten_message(str(error))
        raise InputError(
            f"{where}: this is not a {message.DESCRIPTOR.name} ({reason}); use a file that `detloom compile` wrote."
        ) from None
    plain_again: dict[str, Any] = json_format.MessageToDict(message)
    return plain_again
