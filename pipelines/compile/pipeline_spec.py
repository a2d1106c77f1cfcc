"""Access a compiled pipeline: the JSON form of kfp's `PipelineSpec` (pipeline_spec.proto).

root.dag.tasks          the tasks and their order; a task names its component
components              by name: inputs and outputs, and a DAG or the label of an executor
deploymentSpec          executors by label: the containers
"""

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

Spec = dict[str, Any]
EXECUTOR_FLAG = "--executor_class_path"  # the first argument of TFX's compiler
# Open-source Kubeflow builds names in Argo Workflows from them, with the suffix "-driver", and Argo limits the length
# (argoproj/argo-workflows, workflow/validate/validate.go).
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,119}")


def dags_of(spec: Spec) -> Iterator[Spec]:
    """Yield every DAG, the root's first; each contains `tasks`."""
    yield spec["root"]["dag"]
    for _, component in sorted(spec["components"].items()):
        if "dag" in component:
            yield component["dag"]


def tasks_of(spec: Spec) -> dict[str, Spec]:
    """Return every task of every DAG by name."""
    found: dict[str, Spec] = {}
    for dag in dags_of(spec):
        repeated = found.keys() & dag["tasks"].keys()
        assert not repeated, sorted(repeated)
        found |= dag["tasks"]
    return found


def containers_of(spec: Spec) -> dict[str, Spec]:
    """Return the containers by component, which has the name of its node."""
    executors = spec["deploymentSpec"]["executors"]
    return {
        name: executors[component["executorLabel"]]["container"]
        for name, component in sorted(spec["components"].items())
        if "container" in executors.get(component.get("executorLabel"), {})
    }


def executors_of(spec: Spec) -> dict[str, Spec]:
    """Return the containers that run the executor of a TFX component, not a command of their own."""
    found = containers_of(spec).items()
    return {name: container for name, container in found if container.get("args", [""])[0] == EXECUTOR_FLAG}


def executor_labels_of(spec: Spec) -> dict[str, str]:
    """Return the executor label of each container by node."""
    return {name: spec["components"][name]["executorLabel"] for name in containers_of(spec)}


def check_spec(spec: Spec) -> None:
    """Assert that kfp can parse the spec, that all references exist, and that all names are legal."""
    json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(spec["deploymentSpec"], pipeline_spec_pb2.PipelineDeploymentConfig())
    executors = spec["deploymentSpec"]["executors"]
    for name, component in spec["components"].items():
        assert NODE_ID.fullmatch(name), name
        assert "dag" in component or component["executorLabel"] in executors, name
    for dag in dags_of(spec):
        for name, task in dag["tasks"].items():
            assert NODE_ID.fullmatch(name), name
            component = spec["components"][task["componentRef"]["name"]]
            inputs = task.get("inputs", {})
            declared = component.get("inputDefinitions", {})
            for kind in ("artifacts", "parameters"):
                given, expected = inputs.get(kind, {}), declared.get(kind, {})
                assert given.keys() == expected.keys(), (name, kind)
            producers = {
                source["taskOutputArtifact"]["producerTask"]
                for source in inputs.get("artifacts", {}).values()
                if "taskOutputArtifact" in source
            }
            assert producers | set(task.get("dependentTasks", ())) <= dag["tasks"].keys(), name
