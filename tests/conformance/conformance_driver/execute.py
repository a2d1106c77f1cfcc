"""Run a job: its DAGs from the outermost to the innermost, one container at a time.

A backend handles a task when all its dependencies have ended, and that takes only a moment: skipped and omitted tasks
end before any container that could start then. Of the containers, the first by name runs first.

A task runs if all its dependencies have succeeded; otherwise it is omitted without a message, and so are its
dependents: argoproj/argo-workflows, workflow/controller/dag.go, `executeDAGTask`, with the condition of
kubeflow/pipelines, backend/src/v2/compiler/argocompiler/dag.go, `depends` ("X.Succeeded", false for skipped tasks);
api/v2alpha1/pipeline_spec.proto, `TriggerStrategy`, for Vertex AI. After a failure, independent tasks still run: this
is the default of Vertex AI (PipelineFailurePolicy, fail slow); Argo starts them while others are running.

An exit handler (ALL_UPSTREAM_TASKS_COMPLETED) is a hook of the task that it waits for (dag.go, `taskToExitTemplate`);
its result does not change the result of the run.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver import inputs
from conformance_driver.conditions import evaluate
from conformance_driver.errors import TaskRefused
from conformance_driver.job import Job
from conformance_driver.kubeflow import Kubeflow
from conformance_driver.order import ordered, waits_for
from conformance_driver.results import DONE, RunResult, TaskResult
from conformance_driver.run import Machine, Run, Scope, Task
from conformance_driver.store import Artifact, Store
from conformance_driver.vertex import Vertex

Rules = Kubeflow | Vertex
_AT_THE_END = pipeline_spec_pb2.PipelineTaskSpec.TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED


def run_job(job: Job, machine: Machine) -> RunResult:
    """Run a job returned by `read_job`."""
    rules: Rules = Kubeflow() if job.backend == "kubeflow" else Vertex()
    machine.home.mkdir(parents=True, exist_ok=True)
    store = Store(machine.home / "metadata.json")
    run_id = str(uuid.uuid4())
    root = rules.root_of(job.root, job.name, run_id)
    run = Run(job, machine, store, run_id, rules.name_run(job.name, run_id), root)
    execution = store.add_execution(pipeline=job.name, run=run_id, task="", parent=0, state="RUNNING")
    scope = Scope("", execution, job.parameters, {})
    state = _run_tasks(run, rules, scope, job.spec.root.dag.tasks)
    store.save()
    return RunResult(run_id, run.name, state, run.results, machine.home / "logs")


@dataclass(frozen=True)
class _Ready:
    """A task that its driver has started."""

    task: Task
    executor_input: Any
    parameters: Mapping[str, Any]
    artifacts: Mapping[str, list[Artifact]]


def _run_tasks(run: Run, rules: Rules, scope: Scope, tasks: Mapping[str, Any]) -> Literal["SUCCEEDED", "FAILED"]:
    handlers = {spec.dependent_tasks[0]: name for name, spec in tasks.items() if _is_exit_handler(spec)}
    waiting = [name for name in ordered(tasks) if not _is_exit_handler(tasks[name])]
    ready: dict[str, _Ready] = {}
    ended: dict[str, TaskResult] = {}

    def end(name: str, result: TaskResult) -> None:
        ended[name] = run.results[result.path] = result
        run.store.save()
        if name in handlers and rules.runs_exit_handler(result):
            _run_exit_handler(run, rules, scope, handlers[name], tasks[handlers[name]])

    while waiting or ready:
        for name in list(waiting):  # in order, so that an omitted task omits its dependents in the same pass
            if waits_for(tasks[name]) <= ended.keys():
                waiting.remove(name)
                begun = _begin(run, rules, scope, name, tasks[name], ended)
                if isinstance(begun, _Ready):
                    ready[name] = begun
                else:
                    end(name, begun)
        if ready:
            name = min(ready)
            end(name, _finish(run, rules, ready.pop(name)))
    return "FAILED" if any(result.state == "FAILED" for result in ended.values()) else "SUCCEEDED"


def _is_exit_handler(spec: Any) -> bool:
    return bool(spec.trigger_policy.strategy == _AT_THE_END)


def _run_exit_handler(run: Run, rules: Rules, scope: Scope, name: str, spec: Any) -> None:
    begun = _begin(run, rules, scope, name, spec, None)
    result = _finish(run, rules, begun) if isinstance(begun, _Ready) else begun
    run.results[result.path] = result
    run.store.save()


def _begin(
    run: Run, rules: Rules, scope: Scope, name: str, spec: Any, ended: Mapping[str, TaskResult] | None
) -> _Ready | TaskResult:
    """Do the work of a task's driver.

    Args:
        ended: results of the tasks it can depend on; None for an exit handler, which requires no success.
    """
    task, path = Task(name, spec, run.job.component(spec), scope), scope.path_of(name)
    if ended is not None and any(ended[other].state not in DONE for other in waits_for(spec)):
        return TaskResult(path, "OMITTED")
    try:
        artifacts = inputs.artifacts_of(run, task)
        parameters = inputs.parameters_of(run, task, lambda execution: rules.final_status(run, execution))
        executor_input = _executor_input(rules, task, artifacts, parameters)
        condition = spec.trigger_policy.condition
        if condition and not evaluate(condition, executor_input):
            rules.skip(run, task)
            return TaskResult(path, "SKIPPED")
    except TaskRefused as error:
        return TaskResult(path, "FAILED", error=str(error))
    return _Ready(task, executor_input, parameters, artifacts)


def _executor_input(
    rules: Rules, task: Task, artifacts: Mapping[str, list[Artifact]], parameters: Mapping[str, Any]
) -> Any:
    executor_input = pipeline_spec_pb2.ExecutorInput()
    for key, found in artifacts.items():
        is_from_dag = task.spec.inputs.artifacts[key].WhichOneof("kind") == "component_input_artifact"
        rendered = [rules.input_artifact(artifact, is_from_dag) for artifact in found]
        executor_input.inputs.artifacts[key].artifacts.extend(rendered)
    for key, value in parameters.items():
        executor_input.inputs.parameter_values[key].CopyFrom(value)
    return executor_input


def _finish(run: Run, rules: Rules, ready: _Ready) -> TaskResult:
    task = ready.task
    if task.component.WhichOneof("implementation") == "dag":
        policy = task.spec.retry_policy if task.spec.HasField("retry_policy") else task.scope.retry_policy
        path = task.scope.path_of(task.name)
        scope = Scope(path, rules.start_dag(run, task), ready.parameters, ready.artifacts, policy)
        return _run_dag(run, rules, task, scope)
    is_container = run.job.executor(task.spec).HasField("container")
    try:
        return (rules.run_task if is_container else rules.run_without_container)(run, task, ready.executor_input)
    except TaskRefused as error:
        return TaskResult(task.scope.path_of(task.name), "FAILED", error=str(error))


def _run_dag(run: Run, rules: Rules, task: Task, scope: Scope) -> TaskResult:
    state = _run_tasks(run, rules, scope, task.component.dag.tasks)
    for key, spec in task.component.dag.outputs.artifacts.items():
        selectors = [(each.producer_subtask, each.output_artifact_key) for each in spec.artifact_selectors]
        made = [scope.tasks[name].outputs[output] for name, output in selectors if name in scope.tasks]
        if made:
            scope.execution.outputs[key] = made[0]
    rules.end_dag(run, scope.execution, state)
    return TaskResult(scope.path, state)
