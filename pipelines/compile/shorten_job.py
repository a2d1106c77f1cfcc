"""Shorten a pipeline spec for open-source Kubeflow Pipelines, and read the settings in a shortened one.

`detloom.pipelines.dag.packed_settings` has the forms and the reason.
"""

import json
from typing import Any

import yaml

from detloom.pipelines.compile.pipeline_spec import Spec, containers_of, executors_of, tasks_of
from detloom.pipelines.compile.spec_edits import INPUTS_SPEC
from detloom.pipelines.dag.packed_settings import (
    INPUT_TYPES_FLAG,
    PACKED,
    format_input_types,
    pack,
    short_type,
    unpack,
)
from detloom.schemas.reading.redact import escape

_PLACEHOLDER = "{{$"  # the backend replaces it only in a parameter of its own


def shorten(spec: Spec) -> None:
    """Pack the settings, and drop what nothing reads from types and arguments."""
    for component in (spec["root"], *spec["components"].values()):
        for side in ("inputDefinitions", "outputDefinitions"):
            for artifact in component.get(side, {}).get("artifacts", {}).values():
                declared = artifact["artifactType"]
                title = declared.get("schemaTitle") or yaml.safe_load(declared["instanceSchema"])["title"]
                artifact["artifactType"] = short_type(str(title))
    containers = executors_of(spec)
    for task in tasks_of(spec).values():
        node_id = task["componentRef"]["name"]
        if node_id in containers:
            component = spec["components"][node_id]
            _pack_constants(task, component)
            args = containers[node_id]["args"]
            place = args.index(INPUTS_SPEC)
            args[place : place + 2] = [INPUT_TYPES_FLAG, format_input_types(component.get("inputDefinitions", {}))]


def _pack_constants(task: Spec, component: Spec) -> None:
    given = task.get("inputs", {}).get("parameters", {})
    constants = {
        name: source["runtimeValue"]["constant"]
        for name, source in given.items()
        if "constant" in source.get("runtimeValue", {}) and _PLACEHOLDER not in str(source["runtimeValue"]["constant"])
    }
    if constants:
        declared = component["inputDefinitions"]["parameters"]
        settings = {name: (declared.pop(name)["parameterType"], value) for name, value in constants.items()}
        for name in constants:
            del given[name]
        declared[PACKED] = {"parameterType": "STRING"}
        given[PACKED] = {"runtimeValue": {"constant": pack(settings)}}


def constants_of(task: Spec) -> dict[str, Any]:
    """Return the constant parameters of a task by name, unpacked."""
    sources = task.get("inputs", {}).get("parameters", {})
    found = {name: each["runtimeValue"]["constant"] for name, each in sources.items() if "runtimeValue" in each}
    packed = found.pop(PACKED, None)
    settings = {} if packed is None else unpack(packed)
    return {**found, **{name: value for name, (_, value) in settings.items()}}


def settings_by_node(spec: Spec) -> dict[str, str]:
    """Return the values of parameters and environment variables of each container's node as one text."""
    containers, texts = containers_of(spec), {}
    for task in tasks_of(spec).values():
        container = containers.get(task["componentRef"]["name"])
        if container is not None:
            values = [str(value) for value in constants_of(task).values()]
            values += [each["value"] for each in container.get("env", ())]
            texts[task["componentRef"]["name"]] = "\n".join(values)
    return texts


def describe_settings(spec: Spec) -> str:
    """Return the settings of all tasks as comments, one setting per line."""
    lines = []
    for name, task in sorted(tasks_of(spec).items()):
        for key, value in sorted(constants_of(task).items()):
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"# {name}: {key}: {escape(text)}")
    return "".join(f"{line}\n" for line in lines)
