"""Vertex AI's resolvers: queries for artifacts of earlier runs.

kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto, `ArtifactQuerySpec`: conditions joined by AND, by default in the
context of the pipeline, with a limit of one artifact. TFX's conditions: tfx/orchestration/kubeflow/v2/step_builder.py
(`schema_title`, `state`, `metadata.KEY.number_value`, and `name` with a placeholder for a property of the artifact
found before). The newest artifact comes first. A resolver that finds nothing succeeds without an artifact, and a query
about a missing artifact finds nothing; otherwise no pipeline with a resolver could run for the first time.
"""

import re
from collections.abc import Callable
from typing import Any

from conformance_driver.errors import TaskRefused
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact

_TITLE = re.compile(r'schema_title="([^"]+)"')
_STATE = re.compile(r"state=([A-Z]+)")
_NUMBER = re.compile(r"metadata\.(\w+)\.number_value=([0-9.]+)")
_NAME = re.compile(r"name=\"\{\{\$\.inputs\.artifacts\['(\w+)'\]\.metadata\['(\w+)'\]\}\}\"")


def resolve(run: Run, task: Task, resolver: Any, executor_input: Any) -> dict[str, list[int]]:
    """Return the ids of the artifacts found, by output.

    Raises:
        TaskRefused: for a condition that this driver does not support.
    """
    outputs = task.component.output_definitions.artifacts
    if set(resolver.output_artifact_queries) != set(outputs):
        raise TaskRefused("the queries' keys are not those of the outputs")
    return {
        key: [each.id for each in _find(run, query, executor_input)]
        for key, query in resolver.output_artifact_queries.items()
    }


def _find(run: Run, query: Any, executor_input: Any) -> list[Artifact]:
    conditions = [_condition(text, executor_input) for text in query.filter.split(" AND ")]
    newest_first = [each for each in reversed(run.store.artifacts) if each.pipeline == run.job.name]
    found = [each for each in newest_first if all(fits(each) for fits in conditions)]
    return found[: query.limit or 1]


def _condition(text: str, executor_input: Any) -> Callable[[Artifact], bool]:
    if match := _TITLE.fullmatch(text):
        title = match[1]
        return lambda artifact: artifact.title == title
    if match := _STATE.fullmatch(text):
        state = match[1]
        return lambda artifact: artifact.state == state
    if match := _NUMBER.fullmatch(text):
        key, number = match[1], float(match[2])
        return lambda artifact: bool(artifact.metadata.get(key) == number)
    if match := _NAME.fullmatch(text):
        found = executor_input.inputs.artifacts[match[1]].artifacts
        names = {each.metadata.fields[match[2]].string_value for each in found[:1]}
        return lambda artifact: artifact.name in names
    raise TaskRefused(f"the condition {text!r} is not supported")
