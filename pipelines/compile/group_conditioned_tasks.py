"""Move tasks with the same condition into a DAG of their own that carries the condition.

TFX sets the condition on every task (tfx/orchestration/kubeflow/v2/step_builder.py). Open-source Kubeflow resolves a
task's inputs before it checks the condition (kubeflow/pipelines, backend/src/v2/driver/container.go), and fails if the
task that should have produced them was skipped; kfp's own compiler makes a DAG for each `dsl.If` for the same reason.
All inputs of the new DAG come from tasks that always run.
"""

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from detloom.pipelines.compile.pipeline_spec import Spec, dags_of
from detloom.schemas.errors import InputError

TRAINING_DAG = "training"
_INPUT = re.compile(r"inputs\.artifacts\['([^']+)'\]")
_SOURCE = re.compile(r"<([^<>]+)/([^<>]+)>")
_Source = tuple[str, str]  # a task and the name of its output


def group_conditioned_tasks(spec: Spec) -> None:
    """Add a component `training` for conditioned tasks that need each other; independent ones keep their condition."""
    for dag in list(dags_of(spec)):
        tasks = dag["tasks"]
        for condition, names in _tasks_by_condition(tasks).items():
            if any(producer in names for name in names for producer, _ in _sources(tasks[name]).values()):
                if TRAINING_DAG in spec["components"]:
                    raise InputError(f"{min(names)}: only one condition may have tasks that need each other.")
                tasks[TRAINING_DAG] = _build_dag(spec, tasks, condition, names)
            else:
                for name in names:
                    own = {source: key for key, source in _sources(tasks[name]).items()}
                    tasks[name]["triggerPolicy"]["condition"] = _fill_in(condition, own)


def input_name(source: _Source) -> str:
    """Return an input name of the new DAG, one per source: Kubeflow keeps an input artifact under one name only."""
    return "-".join(source)


def _tasks_by_condition(tasks: Spec) -> dict[str, set[str]]:
    """Return task names by condition, in which each input is replaced by its source, as `<task/output>`."""
    found: dict[str, set[str]] = {}
    for name, task in sorted(tasks.items()):
        condition = task.get("triggerPolicy", {}).get("condition")
        if condition:
            parts = _INPUT.split(condition)  # text and inputs alternate
            parts[1::2] = [f"<{'/'.join(_source_of(task, key))}>" for key in parts[1::2]]
            found.setdefault("".join(parts), set()).add(name)
    return found


def _source_of(task: Spec, key: str) -> _Source:
    """Return the source of an input in a condition. TFX names inputs of negated conditions `_task.output` even if the
    task has the same artifact under another name, and does not add that input."""
    sources = _sources(task)
    if key in sources:
        return sources[key]
    producer, _, output = key.removeprefix("_").partition(".")
    assert (producer, output) in sources.values(), key
    return producer, output


def _fill_in(condition: str, keys: Mapping[_Source, str]) -> str:
    """Return the condition with the sources replaced by input names."""
    parts = _SOURCE.split(condition)  # text, task and output alternate
    inputs = [f"inputs.artifacts['{keys[source]}']" for source in zip(parts[1::3], parts[2::3], strict=True)]
    pairs = zip(parts[::3], [*inputs, ""], strict=True)
    return "".join(text + more for text, more in pairs)


def _sources(task: Spec) -> dict[str, _Source]:
    """Return the sources of a task's artifacts by input."""
    inputs = task.get("inputs", {}).get("artifacts", {})
    made = {key: each["taskOutputArtifact"] for key, each in sorted(inputs.items()) if "taskOutputArtifact" in each}
    return {key: (each["producerTask"], each["outputArtifactKey"]) for key, each in made.items()}


def _build_dag(spec: Spec, tasks: Spec, condition: str, names: Iterable[str]) -> Spec:
    """Move the tasks into a new component, and return the task that runs it."""
    inner = {name: tasks.pop(name) for name in sorted(names)}
    deciders = {(match[1], match[2]) for match in _SOURCE.finditer(condition)}
    needed, waits_for = set(deciders), set()
    for task in inner.values():
        _drop_condition(task, spec["components"][task["componentRef"]["name"]], deciders)
        for key, source in _sources(task).items():
            if source[0] not in inner:
                task["inputs"]["artifacts"][key] = {"componentInputArtifact": input_name(source)}
                needed.add(source)
        waits_for |= {each for each in task.get("dependentTasks", ()) if each not in inner}
        _set_or_drop(task, "dependentTasks", [each for each in task.get("dependentTasks", ()) if each in inner])
    spec["components"][TRAINING_DAG] = {
        "dag": {"tasks": inner},
        "inputDefinitions": {
            "artifacts": {input_name(source): _declare(spec, tasks, source) for source in sorted(needed)}
        },
    }
    return {
        "componentRef": {"name": TRAINING_DAG},
        "dependentTasks": sorted(waits_for | {producer for producer, _ in needed}),
        "inputs": {
            "artifacts": {
                input_name(source): {"taskOutputArtifact": {"producerTask": source[0], "outputArtifactKey": source[1]}}
                for source in sorted(needed)
            }
        },
        "taskInfo": {"name": TRAINING_DAG},
        "triggerPolicy": {"condition": _fill_in(condition, {source: input_name(source) for source in needed})},
    }


def _drop_condition(task: Spec, component: Spec, deciders: Collection[_Source]) -> None:
    """Remove the condition, and the input `_task.output` that TFX adds only for the condition. Its artifact is new in
    every run, so the task would never be cached."""
    policy = {key: value for key, value in task.get("triggerPolicy", {}).items() if key != "condition"}
    _set_or_drop(task, "triggerPolicy", policy)
    implicit = {f"_{producer}.{output}" for producer, output in deciders}
    for inputs in (task.get("inputs", {}), component.get("inputDefinitions", {})):
        kept = {key: value for key, value in inputs.get("artifacts", {}).items() if key not in implicit}
        _set_or_drop(inputs, "artifacts", kept)


def _declare(spec: Spec, tasks: Spec, source: _Source) -> Spec:
    component = spec["components"][tasks[source[0]]["componentRef"]["name"]]
    declared: Any = component["outputDefinitions"]["artifacts"][source[1]]["artifactType"]
    return {"artifactType": copy.deepcopy(declared)}


def _set_or_drop(owner: Spec, key: str, value: Any) -> None:
    """Set a value, or remove an empty one as protobuf's JSON does."""
    if value:
        owner[key] = value
    else:
        owner.pop(key, None)
