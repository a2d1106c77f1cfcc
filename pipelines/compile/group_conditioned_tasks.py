"""Tasks that TFX's compiler gave the same condition become one DAG of their own, which alone has the condition.

TFX puts the condition on every task (tfx/orchestration/kubeflow/v2/step_builder.py). Open-source Kubeflow looks for a
task's inputs before it looks at its condition (kubeflow/pipelines, backend/src/v2/driver/container.go), and fails where
the task that should have made them was skipped; kfp's own compiler makes a DAG of each `dsl.If` for the same reason.
The inputs of the new DAG come from tasks that always run.
"""

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from detloom.pipelines.compile.pipeline_spec import Spec, dags_of, is_resolver

TRAINING_DAG = "training"
_INPUT = re.compile(r"inputs\.artifacts\['([^']+)'\]")
_SOURCE = re.compile(r"<([^<>]+)/([^<>]+)>")
_Source = tuple[str, str]  # a task, and the name of its output


def group_conditioned_tasks(spec: Spec) -> Spec:
    """The spec with one more component, `training`; the condition of a task that needs no other such one stays."""
    edited = copy.deepcopy(spec)
    for dag in list(dags_of(edited)):
        tasks = dag["tasks"]
        for condition, names in _tasks_by_condition(tasks).items():
            names |= _resolvers_for(names, edited, tasks)
            if any(producer in names for name in names for producer, _ in _sources(tasks[name]).values()):
                assert TRAINING_DAG not in edited["components"], "two conditions on tasks that need each other"
                tasks[TRAINING_DAG] = _build_dag(edited, tasks, condition, names)
            else:
                for name in names:
                    _name_own_inputs(tasks[name], condition)
    return edited


def input_name(source: _Source) -> str:
    """Of the new DAG. One for each source: Kubeflow keeps inputs of a DAG by artifact, under one name alone."""
    return "-".join(source)


def _tasks_by_condition(tasks: Spec) -> dict[str, set[str]]:
    """Their names; in the condition, each input is replaced by where it comes from, as `<task/output>`."""
    found: dict[str, set[str]] = {}
    for name, task in sorted(tasks.items()):
        condition = task.get("triggerPolicy", {}).get("condition")
        if condition:
            parts = _INPUT.split(condition)  # text and inputs by turns
            parts[1::2] = [f"<{'/'.join(_source_of(task, key))}>" for key in parts[1::2]]
            found.setdefault("".join(parts), set()).add(name)
    return found


def _source_of(task: Spec, key: str) -> _Source:
    """Of an input as a condition names it. In a negated one TFX writes `_task.output` for it even where the task has
    the same artifact under another name, and does not add that input."""
    sources = _sources(task)
    if key in sources:
        return sources[key]
    producer, _, output = key.removeprefix("_").partition(".")
    assert (producer, output) in sources.values(), key
    return producer, output


def _name_own_inputs(task: Spec, condition: str) -> None:
    keys = {source: key for key, source in _sources(task).items()}
    task["triggerPolicy"]["condition"] = _fill_in(condition, keys)


def _fill_in(condition: str, keys: Mapping[_Source, str]) -> str:
    """With inputs in the place of where they come from."""
    parts = _SOURCE.split(condition)  # text, task and output by turns
    inputs = [f"inputs.artifacts['{keys[source]}']" for source in zip(parts[1::3], parts[2::3], strict=True)]
    return "".join(text + more for text, more in zip(parts[::3], [*inputs, ""], strict=True))


def _sources(task: Spec) -> dict[str, _Source]:
    """Where the task's artifacts come from, by input."""
    inputs = task.get("inputs", {}).get("artifacts", {})
    made = {key: each["taskOutputArtifact"] for key, each in sorted(inputs.items()) if "taskOutputArtifact" in each}
    return {key: (each["producerTask"], each["outputArtifactKey"]) for key, each in made.items()}


def _resolvers_for(names: Collection[str], spec: Spec, tasks: Spec) -> set[str]:
    """Resolvers that none but these tasks read: TFX's compiler drops their condition, and what they do not find could
    not be passed in from outside."""
    readers: dict[str, set[str]] = {}
    for name, task in tasks.items():
        for producer, _ in _sources(task).values():
            readers.setdefault(producer, set()).add(name)
    found: set[str] = set()
    while new := {
        name for name in readers.keys() - found if is_resolver(spec, tasks[name]) and readers[name] <= {*names, *found}
    }:
        found |= new
    return found


def _build_dag(spec: Spec, tasks: Spec, condition: str, names: Iterable[str]) -> Spec:
    """Take the tasks out of theirs and put them into a component of their own; the task that stands for it."""
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
    """Also as an input, where it is one for the condition's sake alone: TFX names such `_task.output`. It is new in
    every run, so that no cache would know the task again."""
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
    """As protobuf's JSON, which leaves out what is empty."""
    if value:
        owner[key] = value
    else:
        owner.pop(key, None)
