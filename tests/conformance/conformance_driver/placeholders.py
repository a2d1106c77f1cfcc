"""What stands for what in a container's command and arguments.

kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto (`ExecutorInput`): {{$}} is all of it as JSON, the others one value
of it. backend/src/v2/component/launcher_v2.go (`compileCmdAndArgs`, `getPlaceholders`) replaces them in the open-source
backend, values by protojson's rules; what it does not know stays in the text, which is refused here.
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
    """As protojson writes it: camel case, whole numbers without a point, maps in order, no blanks."""
    document = _whole_numbers(json_format.MessageToDict(message))
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def fill(arguments: Sequence[str], executor_input: Any) -> list[str]:
    """Arguments with every placeholder replaced.

    Raises:
        TaskRefused: for a placeholder that stands for nothing.
    """
    values = {"": to_json(executor_input), **_values(executor_input)}
    if "{{$" in values[""]:
        raise TaskRefused("the executor's input holds a placeholder, which would be replaced once more")

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise TaskRefused(f"the placeholder {match[0]} stands for nothing")
        return values[match[1]]

    return [_PLACEHOLDER.sub(value_of, argument) for argument in arguments]


def expand(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What Kubernetes makes of arguments: $(NAME) becomes the variable's value, $$ a dollar sign.

    kubernetes/kubernetes, third_party/forked/golang/expansion/expand.go: unknown names stay as they are.
    """

    def value_of(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return [_KUBERNETES.sub(value_of, argument) for argument in arguments]


def text_of(value: Any) -> str:
    """A `google.protobuf.Value` as text (kubeflow/pipelines, backend/src/v2/metadata/converter.go, `PbValueToText`)."""
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
