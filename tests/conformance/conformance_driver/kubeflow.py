"""The driver and launcher of open-source Kubeflow Pipelines.

kubeflow/pipelines, backend/src/v2:
    driver/driver.go            `provisionOutputs`: addresses are ROOT/TASK/RANDOM/OUTPUT, another output for the
                                log, and the output file beside them on the pod's disk
    driver/container.go         inputs, condition, outputs, cache, in that order
    driver/cache.go             a cached execution provides its artifacts; then the launcher does not run
    component/launcher_v2.go    inputs are downloaded, parent folders of outputs created, the command run, and outputs
                                uploaded and recorded, even if they are missing; of a failed command only the log; the
                                address of the log gets the number of the try (`qualifyExecutorLogsURI`)
    metadata/client.go          names of artifacts are ids; additional metadata; states
    metadata/converter.go       conversion of metadata to MLMD and back; types are lost
"""

import shutil
import time
import uuid
from typing import Any, Literal

from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import TaskRefused
from conformance_driver.fingerprints import kubeflow_fingerprint
from conformance_driver.object_store import Buckets, Disk, local_path
from conformance_driver.outputs import merge, read_output, recorded
from conformance_driver.placeholders import expand, fill
from conformance_driver.pod_settings import PodSettings, read_settings
from conformance_driver.results import Phase, TaskResult, Try
from conformance_driver.retries import retry_rules
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact, Execution

_LOG_OUTPUT = "executor-logs"
_ENDED = ("COMPLETE", "CACHED", "CANCELED")


class Kubeflow:
    """The rules of Kubeflow; see `Rules`."""

    def name_run(self, pipeline: str, run_id: str) -> str:
        return f"{pipeline}-{run_id[:5]}"

    def root_of(self, root: str, pipeline: str, run_id: str) -> str:
        return f"{root}/{pipeline}/{run_id}"

    def input_artifact(self, artifact: Artifact, is_from_dag: bool) -> Any:
        """Drop the type; for an output of a task, use an empty one (metadata/client.go, `ToRuntimeArtifact`)."""
        found = pipeline_spec_pb2.RuntimeArtifact(name=artifact.name, uri=artifact.uri)
        found.metadata.update(artifact.metadata)
        if not is_from_dag:
            found.type.instance_schema = ""
        return found

    def final_status(self, run: Run, execution: Execution) -> Any:
        """Follow driver/resolve.go, `resolveInputParameter`; the state is MLMD's and contains no error."""
        value = struct_pb2.Value()
        value.struct_value.update(
            {
                "state": execution.state,
                "pipelineTaskName": execution.task.rpartition(".")[2],
                "pipelineJobResourceName": run.name,
                "error": {},
            }
        )
        return value

    def skip(self, run: Run, task: Task) -> None:
        """End the task in its driver; the state of its DAG is not updated then."""
        _execution(run, task, "CANCELED")

    def start_dag(self, run: Run, task: Task) -> Execution:
        return _execution(run, task, "RUNNING", len(task.component.dag.tasks))

    def end_dag(self, run: Run, execution: Execution, state: Literal["SUCCEEDED", "FAILED"]) -> None:
        """Record nothing: launchers maintain the state of their DAG."""

    def runs_exit_handler(self, result: TaskResult) -> bool:
        """Argo runs no hook for a task that never started (workflow/controller/dag.go), as after a failed driver."""
        return result.state not in ("SKIPPED", "OMITTED") and not result.error

    def run_task(self, run: Run, task: Task, executor_input: Any) -> TaskResult:
        container = run.job.executor(task.spec).container
        settings = read_settings(run.job.platform.get(task.component.executor_label, {}))
        _provision(run, task, executor_input)
        result = TaskResult(task.scope.path_of(task.name), "FAILED")
        result.executor_input = json_format.MessageToDict(executor_input)
        fingerprint = ""
        execution = None
        if task.spec.caching_options.enable_cache:
            fingerprint = kubeflow_fingerprint(container, executor_input, settings.mounts)
            earlier = run.store.cached(fingerprint, run.job.name, ("COMPLETE",))
            if earlier is not None:
                execution = _execution(run, task, "CACHED")
                execution.outputs = dict(earlier.outputs)
                result.state = "CACHED"
        if execution is None:
            execution = _execution(run, task, "RUNNING")
            result.state = "SUCCEEDED" if _try(run, task, executor_input, settings, execution, result) else "FAILED"
            execution.fingerprint = fingerprint if result.state == "SUCCEEDED" else ""
        result.outputs = {key: run.store.artifacts_of(execution, key) for key in execution.outputs}
        return result


def _execution(run: Run, task: Task, state: str, num_tasks: int = 0) -> Execution:
    execution = run.store.add_execution(
        pipeline=run.job.name,
        run=run.id,
        task=task.scope.path_of(task.name),
        parent=task.scope.execution.id,
        state=state,
        num_tasks=num_tasks,
    )
    task.scope.tasks[task.name] = execution
    return execution


def _provision(run: Run, task: Task, executor_input: Any) -> None:
    folder = f"{run.root}/{task.name}/{uuid.uuid4()}"
    log_type = pipeline_spec_pb2.ArtifactTypeSchema(schema_title="system.Artifact")
    for key, spec in task.component.output_definitions.artifacts.items():
        artifact = executor_input.outputs.artifacts[key].artifacts.add(name=key, uri=f"{folder}/{key}")
        artifact.type.CopyFrom(spec.artifact_type)
        if spec.HasField("metadata"):
            artifact.metadata.CopyFrom(spec.metadata)
    executor_input.outputs.artifacts[_LOG_OUTPUT].artifacts.add(
        name=_LOG_OUTPUT, uri=f"{folder}/{_LOG_OUTPUT}", type=log_type
    )
    executor_input.outputs.output_file = f"{local_path(folder)}/output_metadata.json"


def _try(
    run: Run, task: Task, executor_input: Any, settings: PodSettings, execution: Execution, result: TaskResult
) -> bool:
    """Run the launcher until it succeeds or no tries are left."""
    policy = task.spec.retry_policy if task.spec.HasField("retry_policy") else task.scope.retry_policy
    rules = retry_rules(policy, "kubeflow", run.machine.retry_defaults)
    elapsed, wait = 0.0, 0.0
    while True:
        pod = f"{run.name}-{task.name}-{execution.id}-{len(result.tries)}".lower()
        start = time.monotonic()
        result.error = ""
        execution.state = "RUNNING"
        phase: Phase = "Succeeded"
        try:
            code = _launch(run, task, executor_input, settings, execution, pod, len(result.tries))
            phase = "Failed" if code else "Succeeded"
        except TaskRefused as error:
            code, phase, result.error = 1, "Failed", str(error)
        execution.state = "FAILED" if code else "COMPLETE"
        _update_dag(run, task.scope.execution)
        result.tries.append(Try(code, wait, pod, phase))
        elapsed += time.monotonic() - start
        next_wait = rules.next_wait(len(result.tries), elapsed, phase)
        if phase == "Succeeded" or next_wait is None:
            return phase == "Succeeded"
        wait = next_wait
        elapsed += wait


def _launch(
    run: Run, task: Task, executor_input: Any, settings: PodSettings, execution: Execution, pod: str, retry: int
) -> int:
    """Run one pod on a disk of its own."""
    disk = Disk(run.machine.home / "pods" / pod)
    buckets = Buckets(run.machine.home / "buckets")
    container = run.job.executor(task.spec).container
    env = {**{each.name: each.value for each in container.env}, **_pod_env(run, settings, pod, retry)}
    arguments = expand([*container.command, *container.args], {**run.machine.image_env, **env})
    mounts = {**disk.mounts, **_claims(run, settings)}
    given = pipeline_spec_pb2.ExecutorInput()
    given.CopyFrom(executor_input)
    given.outputs.artifacts[_LOG_OUTPUT].artifacts[0].uri += f"-{retry}"
    try:
        for each in given.inputs.artifacts.values():
            for artifact in each.artifacts:
                buckets.download(artifact.uri, disk)
        outputs = pipeline_spec_pb2.ExecutorInput.Outputs()
        outputs.CopyFrom(given.outputs)
        for each in outputs.artifacts.values():
            disk.path(each.artifacts[0].uri).parent.mkdir(parents=True, exist_ok=True)
        log = disk.path(outputs.artifacts[_LOG_OUTPUT].artifacts[0].uri)
        log.write_text("")
        code = run.machine.runner.run(fill(arguments, given), env, mounts)
        own_log = run.machine.runner.logs / f"{pod}.log"
        if own_log.exists():
            shutil.copyfile(own_log, log)
        if code == 0:
            merge(read_output(disk.path(outputs.output_file)), outputs)
        else:
            for key in [key for key in outputs.artifacts if key != _LOG_OUTPUT]:
                del outputs.artifacts[key]
        made = [(key, _record(run, task, key, each.artifacts[0])) for key, each in sorted(outputs.artifacts.items())]
        for _, artifact in made:
            buckets.upload(artifact.uri, disk, run.root)
        for key, artifact in made:
            artifact.id = run.store.next_artifact_id()
            artifact.name = str(artifact.id)
            run.store.artifacts.append(artifact)
            execution.outputs[key] = [artifact.id]
    finally:
        shutil.rmtree(disk.root, ignore_errors=True)
    return code


def _pod_env(run: Run, settings: PodSettings, pod: str, retry: int) -> dict[str, str]:
    """Follow argocompiler/common.go, `commonEnvs` and `retryIndexEnv`; secrets as in driver/k8s.go."""
    missing = [f"{name}/{key}" for name, key in settings.secrets.values() if (name, key) not in run.machine.secrets]
    if missing:
        raise TaskRefused(f"CreateContainerConfigError: secret {', '.join(missing)} not found")
    secrets = {variable: run.machine.secrets[place] for variable, place in settings.secrets.items()}
    return {**secrets, "HOSTNAME": pod, "KFP_POD_NAME": pod, "KFP_POD_UID": pod, "KFP_RETRY_INDEX": str(retry)}


def _claims(run: Run, settings: PodSettings) -> dict[Any, str]:
    for claim in settings.mounts:
        if claim not in run.machine.claims:
            raise TaskRefused(f"persistentvolumeclaim {claim!r} not found")
    return {run.machine.claims[claim]: path for claim, path in settings.mounts.items()}


def _record(run: Run, task: Task, key: str, artifact: Any) -> Artifact:
    metadata = {name: _in_mlmd(name, value) for name, value in artifact.metadata.fields.items()}
    metadata.setdefault("display_name", key)
    metadata.setdefault("store_session_info", '{"Provider":"minio","Params":{"fromEnv":"true"}}')
    return recorded(run, task, key, artifact, 0, "", metadata)


def _in_mlmd(name: str, value: Any) -> Any:
    """Follow metadata/converter.go, `StructValueToMLMDValue` and `toRuntimeArtifact`."""
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return 1.0 if value.bool_value else 0.0
        case "list_value":
            return {"list": json_format.MessageToDict(value)}
        case "struct_value":
            return {"struct": json_format.MessageToDict(value)}
        case kind:
            raise TaskRefused(f"metadata {name}: unknown/unsupported value type {kind}")


def _update_dag(run: Run, dag: Execution) -> None:
    """Follow metadata/client.go, `UpdateDAGExecutionsState`: only launchers call it, and not for the root."""
    if dag.num_tasks == 0:
        return
    states = [each.state for each in run.store.executions if each.parent == dag.id]
    if sum(state in _ENDED for state in states) == dag.num_tasks:
        dag.state = "COMPLETE"
    elif "FAILED" in states:
        dag.state = "FAILED"
    else:
        return
    (parent,) = [each for each in run.store.executions if each.id == dag.parent]
    _update_dag(run, parent)
