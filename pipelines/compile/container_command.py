"""The command of every container: our entrypoint, and what differs between nodes."""

import copy
import json
import math
from collections.abc import Mapping

from detloom.pipelines.compile.pipeline_spec import Spec, containers_of
from detloom.pipelines.package_fingerprint import package_fingerprint
from detloom.schemas.run_file import Place

ENTRYPOINT = "detloom.pipelines.container.entrypoint"
_INPUTS_SPEC = "--json_serialized_inputs_spec_args"


def entrypoint_command(place: Place) -> list[str]:
    """What comes before the arguments that TFX's compiler writes. It stands in the backends' cache keys, and with it
    the fingerprint of all code."""
    return ["python", "-m", ENTRYPOINT, "--place", place, "--package_fingerprint", package_fingerprint()]


def set_time_limits(spec: Spec, seconds_by_node: Mapping[str, float]) -> Spec:
    """Our entrypoint ends a try that takes longer, so that a pod that waits for a machine has all of it."""
    edited = copy.deepcopy(spec)
    for name, container in containers_of(edited).items():
        if name in seconds_by_node:
            container["command"] += ["--time_limit_seconds", str(math.ceil(seconds_by_node[name]))]
    return edited


def add_driver(spec: Spec, node_id: str) -> Spec:
    """Vertex AI runs the node's driver before it looks into the cache, as for TFX's own ExampleGens (tfx/orchestration/
    kubeflow/v2/step_builder.py); open-source Kubeflow does not know such a hook.

    After all edits of the container's arguments, which it copies.
    """
    edited = copy.deepcopy(spec)
    container = containers_of(edited)[node_id]
    args = container["args"]
    assert args[0] == "--executor_class_path", args[0]
    # No class of driver is named: the entrypoint knows it.
    container["lifecycle"] = {"preCacheCheck": {"command": [*container["command"], "--driver"], "args": args[2:]}}
    return edited


def refresh_input_specs(spec: Spec) -> Spec:
    """What a container is told of its inputs' types is once more what the component declares, after edits."""
    edited = copy.deepcopy(spec)
    for name, container in containers_of(edited).items():
        args = container["args"]
        declared = edited["components"][name].get("inputDefinitions", {})
        args[args.index(_INPUTS_SPEC) + 1] = json.dumps(declared, sort_keys=True)
    return edited
