"""The order in which the tasks of a DAG run.

A task waits for its declared dependencies and for the producers of its inputs (kubeflow/pipelines,
backend/src/v2/compiler/argocompiler/dag.go, `addImplicitDependencies`).
"""

from collections.abc import Mapping
from typing import Any

from conformance_driver.errors import JobRefused


def producers_of(task: Any) -> set[str]:
    """Return the names of the tasks that produce inputs of a `PipelineTaskSpec`."""
    names = {each.task_output_artifact.producer_task for each in task.inputs.artifacts.values()}
    names |= {each.task_output_parameter.producer_task for each in task.inputs.parameters.values()}
    return names - {""}


def waits_for(task: Any) -> set[str]:
    """Return the names of all dependencies of a task."""
    return producers_of(task) | set(task.dependent_tasks)


def ordered(tasks: Mapping[str, Any]) -> list[str]:
    """Return the names of tasks, each after its dependencies.

    Raises:
        JobRefused: if dependencies are cyclic.
    """
    left = {name: waits_for(task) for name, task in tasks.items()}
    found: list[str] = []
    while left:
        ready = sorted(name for name, before in left.items() if not before - set(found))
        if not ready:
            raise JobRefused(f"cyclic dependencies: {', '.join(sorted(left))}")
        found.append(ready[0])
        del left[ready[0]]
    return found
