"""Compiled pipelines as the two backends take them: checked, and with what is chosen when they are submitted."""

import copy
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.backends.api_errors import shorten_message
from detloom.pipelines.job_fingerprint import MAX_JOB_BYTES
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place

_RUN_NAME = re.compile(r"[a-z]([a-z0-9-]{0,125}[a-z0-9])?")
_MAX_NAME = 100  # characters of a pipeline's name in the names of its runs


@dataclass(frozen=True, kw_only=True)
class CompiledJob:
    """A compiled pipeline as plain data, whose messages were parsed strictly.

    Attributes:
        spec: ml_pipelines.PipelineSpec.
        platform: ml_pipelines.PlatformSpec, on Kubeflow; empty for none.
        labels, runtime_config: those of the PipelineJob, on Vertex AI.
    """

    spec: Mapping[str, Any]
    platform: Mapping[str, Any]
    labels: Mapping[str, Any]
    runtime_config: Mapping[str, Any]

    @property
    def pipeline_name(self) -> str:
        return str(self.spec["pipelineInfo"]["name"])


def read_job_file(path: Path) -> str:
    """The text of a compiled job.

    Raises:
        InputError: for a file that is not there, or no text of a sensible size.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JOB_BYTES + 1)
        if len(content) > MAX_JOB_BYTES:
            raise InputError(f"{redact(str(path))}: larger than {MAX_JOB_BYTES >> 20} MiB, which no compiled job is.")
        return content.decode()
    except OSError as error:
        raise InputError(
            f"{redact(str(path))}: cannot be read ({error.strerror}); `detloom compile` writes one."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{redact(str(path))}: is no text; `detloom compile` writes one.") from None


def parse_job(text: str, place: Place, where: str) -> CompiledJob:
    """Read a compiled job: the JSON of a PipelineJob for Vertex AI, one or two YAML documents for Kubeflow.

    Args:
        where: the text comes from, for messages.

    Raises:
        InputError: for anything that the backend's messages do not hold.
    """
    try:
        documents = list(yaml.safe_load_all(text)) if place == "kubeflow" else [json.loads(text)]
    except (ValueError, RecursionError, yaml.YAMLError):
        kind = "YAML" if place == "kubeflow" else "JSON"
        raise InputError(f"{where}: is no {kind}; `detloom compile --runner {place}` writes it.") from None
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise InputError(f"{where}: holds no mapping; `detloom compile --runner {place}` writes one.")
    is_job = "pipelineSpec" in documents[0]
    if is_job != (place == "vertex"):
        other = "Vertex AI" if is_job else "Kubeflow"
        raise InputError(f"{where}: is a job for {other}; compile it with `detloom compile --runner {place}`.")
    job = documents[0] if is_job else {"pipelineSpec": documents[0]}
    platform: dict[str, Any] = {}
    for document in documents[1:]:
        platform.update(document)
    spec = _strictly(pipeline_spec_pb2.PipelineSpec(), job["pipelineSpec"], where)
    if not spec.get("pipelineInfo", {}).get("name") or not spec.get("root", {}).get("dag", {}).get("tasks"):
        raise InputError(f"{where}: holds no pipeline with a name and tasks; `detloom compile` writes one.")
    runtime = job.get("runtimeConfig") or {}
    labels = job.get("labels") or {}
    if not isinstance(runtime, dict) or not isinstance(labels, dict):
        raise InputError(f"{where}: runtimeConfig or labels is no mapping; `detloom compile` writes them as one.")
    return CompiledJob(
        spec=spec,
        platform=_strictly(pipeline_spec_pb2.PlatformSpec(), platform, where),
        labels=labels,
        runtime_config=runtime,
    )


def without_cache(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a pipeline spec in which no task may be answered from the cache.

    There is no counterpart that allows it: some tasks must never be, and kfp.Client's and aiplatform.PipelineJob's
    `enable_caching=True` would allow it for all of them (kubeflow/pipelines, sdk/python/kfp/client/client.py,
    `_override_caching_options`, which leaves out inner pipelines; googleapis/python-aiplatform,
    google/cloud/aiplatform/pipeline_jobs.py, `_set_enable_caching_value`).
    """
    changed: dict[str, Any] = copy.deepcopy(dict(spec))
    for component in (changed["root"], *changed.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task["cachingOptions"] = {"enableCache": False}
    return changed


def new_run_name(pipeline_name: str) -> str:
    """A name that no other run has: the pipeline's, the time, and 32 random bits; it can be an id on Vertex AI."""
    words = re.sub("[^a-z0-9]+", "-", pipeline_name.lower()).strip("-")[:_MAX_NAME].rstrip("-")
    name = words if words[:1].isalpha() else f"run-{words}".rstrip("-")
    return f"{name}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def check_run_name(name: str) -> None:
    """Raise InputError unless it can be an id on Vertex AI (aiplatform_v1 CreatePipelineJobRequest)."""
    if not _RUN_NAME.fullmatch(name):
        allowed = "lower case letters, digits and '-', from a letter on, at most 127"
        raise InputError(f"--name: got {redact(repr(name))}, allowed: {allowed}.")


def _strictly(message: Any, plain: object, where: str) -> dict[str, Any]:
    """Plain data as the message has it; unknown fields are an error."""
    try:
        json_format.ParseDict(plain, message)
    except (json_format.ParseError, AttributeError, TypeError, RecursionError) as error:
        said = shorten_message(str(error))
        raise InputError(f"{where}: is no {message.DESCRIPTOR.name} ({said}); `detloom compile` writes one.") from None
    plain_again: dict[str, Any] = json_format.MessageToDict(message)
    return plain_again
