"""Short forms of a task's settings and input types, in jobs for open-source Kubeflow Pipelines.

That backend keeps the parameters, the component and the command of a task in its workflow up to eight times, with a
backslash before each quotation mark and another one for each text around it, and does not read the states of a workflow
above 1 MiB. Therefore all constant parameters of a task are one parameter: compressed JSON without quotation marks. It
is a part of the cache key like any other parameter, so that a change of a setting runs the task again. This module
imports nothing heavy.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

from detloom.schemas.errors import InputError

PACKED = "packed_settings"
INPUT_TYPES_FLAG = "--input_types"
_MAX_BYTES = 16 << 20  # of unpacked settings
_IS = "="
SYSTEM_TYPES, _VERSION = "system.", "0.0.1"  # version of all system types in kfp's compiler

Settings = dict[str, tuple[str, Any]]  # type (`ParameterType`) and value of each parameter


def pack(settings: Mapping[str, tuple[str, Any]]) -> str:
    """Return the settings of a task as one text of letters, digits, '-', '_' and '='."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(text: str) -> Settings:
    """Return the settings in a text of `pack`.

    Raises:
        InputError: for another text.
    """
    try:
        content = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text), _MAX_BYTES)
        settings = json.loads(content)
        return {str(name): (str(kind), value) for name, (kind, value) in settings.items()}
    except (binascii.Error, zlib.error, ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{PACKED}: this is not a text that `detloom compile` wrote; compile the job again.") from None


def format_input_types(inputs_spec: Mapping[str, Any]) -> str:
    """Return a `ComponentInputsSpec` as words such as model=tfx.Model run_id=STRING.

    Args:
        inputs_spec: its JSON form; artifact types are shortened (`short_type`).
    """
    artifacts = {
        name: str(spec["artifactType"].get("schemaTitle") or spec["artifactType"]["instanceSchema"].partition(": ")[2])
        for name, spec in inputs_spec.get("artifacts", {}).items()
    }
    parameters = {name: str(spec["parameterType"]) for name, spec in inputs_spec.get("parameters", {}).items()}
    return " ".join(f"{name}{_IS}{kind}" for name, kind in sorted({**artifacts, **parameters}.items()))


def short_type(title: str) -> dict[str, str]:
    """Return an `ArtifactTypeSchema` with nothing but the title, as JSON; the backends read nothing else in it."""
    if title.startswith(SYSTEM_TYPES):
        return {"schemaTitle": title, "schemaVersion": _VERSION}
    return {"instanceSchema": f"title: {title}"}


def unpack_task(invocation: str, input_types: str) -> tuple[str, str]:
    """Return `ExecutorInput` with all parameters, and `ComponentInputsSpec`, both as JSON.

    Args:
        invocation: `ExecutorInput` as JSON, with or without packed settings.
        input_types: a text of `format_input_types`.

    Raises:
        InputError: for settings that cannot be unpacked.
    """
    executor_input = json.loads(invocation)
    kinds = dict(word.split(_IS) for word in input_types.split())
    values = executor_input.get("inputs", {}).get("parameterValues", {})
    if kinds.pop(PACKED, None) is not None:
        for name, (kind, value) in unpack(str(values.pop(PACKED, ""))).items():
            kinds[name], values[name] = kind, value
    artifacts = {name: {"artifactType": short_type(kind)} for name, kind in kinds.items() if "." in kind}
    parameters = {name: {"parameterType": kind} for name, kind in kinds.items() if "." not in kind}
    return json.dumps(executor_input), json.dumps({"artifacts": artifacts, "parameters": parameters})
