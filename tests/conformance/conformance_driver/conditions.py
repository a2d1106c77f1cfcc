"""Evaluate conditions on tasks: the comparisons of the Common Expression Language that our jobs contain.

Both backends evaluate a condition over the task's `ExecutorInput` with the proto's field names (kubeflow/pipelines,
backend/src/v2/expression/expression.go; api/v2alpha1/pipeline_spec.proto, `TriggerPolicy`). Our jobs compare a number
in an artifact's metadata, or negate that comparison (tfx/orchestration/kubeflow/v2/compiler_utils.py,
`placeholder_to_cel`). All other expressions are refused, including integers, because metadata are doubles.
"""

import re
from typing import Any

from conformance_driver.errors import TaskRefused

_EQUALS = r"\(inputs\.artifacts\['([^']+)'\]\.artifacts\[0\]\.metadata\['([^']+)'\] == (\d+\.\d+)\)"
_CONDITION = re.compile(rf"{_EQUALS}|!\({_EQUALS}\)")


def evaluate(condition: str, executor_input: Any) -> bool:
    """Return whether the task runs.

    Raises:
        TaskRefused: if the condition cannot be parsed, or an artifact or a number in its metadata is missing.
    """
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise TaskRefused(f"condition {condition!r}: not supported by this driver")
    is_negated = condition.startswith("!")
    key, name, number = match.groups()[3:] if is_negated else match.groups()[:3]
    artifacts = executor_input.inputs.artifacts[key].artifacts
    metadata = artifacts[0].metadata.fields if artifacts else {}
    if name not in metadata or metadata[name].WhichOneof("kind") != "number_value":
        raise TaskRefused(f"condition {condition!r}: no such number")
    return (metadata[name].number_value == float(number)) != is_negated
