"""Placeholders in a container's command and arguments.

kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto (`ExecutorInput`): {{$}} is the whole input as JSON, others are one
value of it. backend/src/v2/component/launcher_v2.go (`compileCmdAndArgs`, `getPlaceholders`) replaces them in the
open-source backend, with values in protojson's format; it keeps unknown ones, which are refused here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from conformance_driver.errors import TaskRefused

_PLACEHOLDER = re.compile(r"\{\{\$(.*?)\}\}", re.DOTALL)
_KUBERNETES = re.compile(r"\$\$|\$\(([^)]*)\)")


def to_json(message: Any) -> str:
    """Format JSON as protojson does: camel case, integers without a point, sorted maps, no blanks."""
    document = _whole_numbers(json_format.MessageToDict(message))
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def fill(arguments: Sequence[str], executor_input: Any) -> list[str]:
    """Return arguments with all placeholders replaced.

    Raises:
        TaskRefused: for an unknown placeholder.
    """
    values = {"": to_json(executor_input), **_values(executor_input)}
    if "{{$" in values[""]:
        raise TaskRefused("the executor's input holds a placeholder, which would be replaced once more")

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise TaskRefused(f"the placeholder {match[0]} is unknown")
        return values[match[1]]

    return [_PLACEHOLDER.sub(value_of, argument) for argument in arguments]


def expand(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Expand arguments as Kubernetes does: $(NAME) becomes the variable's value, $$ a dollar sign.

    kubernetes/kubernetes, third_party/forked/golang/expansion/expand.go: unknown names are kept.
    """

    def value_of(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return [_KUBERNETES.sub(value_of, argument) for argument in arguments]


def text_of(value: Any) -> str:
    """Format a `google.protobuf.Value` as text (backend/src/v2/metadata/converter.go, `PbValueToText`)."""
    match value.WhichOneof("kind"):
        case "string_value":
            return str(value.string_value)
        case "number_value":
            number = value.number_value
            return str(int(number)) if number == int(number) else repr(number)
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "struct_value" | "list_value":
            return to_json(value)
    return ""


def _whole_numbers(document: Any) -> Any:
    match document:
        case dict():
            return {key: _whole_numbers(value) for key, value in document.items()}
        case list():
            return [_whole_numbers(value) for value in document]
        case float() if document.is_integer():
            return int(document)
    return document


def _values(executor_input: Any) -> dict[str, str]:
    found = {}
    for side, message in (("inputs", executor_input.inputs), ("outputs", executor_input.outputs)):
        for key, artifacts in message.artifacts.items():
            for artifact in artifacts.artifacts[:1]:
                found[f".{side}.artifacts['{key}'].uri"] = artifact.uri
    for key, value in executor_input.inputs.parameter_values.items():
        found[f".inputs.parameters['{key}']"] = text_of(value)
    found[".outputs.output_file"] = executor_input.outputs.output_file
    return found
