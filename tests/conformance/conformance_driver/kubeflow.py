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
import uuid
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from conformance_driver.errors import TaskRefused
from conformance_driver.fingerprints import fingerprint_of
from conformance_driver.object_store import Buckets, Disk, local_path
from conformance_driver.outputs import add_output, merge, read_output, recorded
from conformance_driver.placeholders import expand, fill
from conformance_driver.pod_settings import PodSettings, read_settings
from conformance_driver.results import TaskResult
from conformance_driver.rules import Rules
from conformance_driver.run import Run, Task
from conformance_driver.store import Artifact, Execution

_LOG_OUTPUT = "executor-logs"
_ENDED = ("COMPLETE", "CACHED", "CANCELED")


class Kubeflow(Rules):
    """The rules of open-source Kubeflow Pipelines."""

    backend = "kubeflow"

    def name_run(self, pipeline: str, run_id: str) -> str:
        """Return the backend's name of a run."""
        return f"{pipeline}-{run_id[:5]}"

    def root_of(self, root: str, pipeline: str, run_id: str) -> str:
        """Return the address that all artifacts of a run are below."""
        return f"{root}/{pipeline}/{run_id}"

    def input_artifact(self, artifact: Artifact, is_from_dag: bool) -> Any:
        """Drop the type; for an output of a task, use an empty one (metadata/client.go, `ToRuntimeArtifact`)."""
        found = pipeline_spec_pb2.RuntimeArtifact(name=artifact.name, uri=artifact.uri)
        found.metadata.update(artifact.metadata)
        if not is_from_dag:
            found.type.instance_schema = ""
        return found

    def final_status(self, run: Run, execution: Execution) -> dict[str, Any]:
        """Follow driver/resolve.go, `resolveInputParameter`; the state is MLMD's and contains no error."""
        return {**super().final_status(run, execution), "error": {}}

    def skip(self, run: Run, task: Task) -> None:
        """End the task in its driver; the state of its DAG is not updated then."""
        self.add_execution(run, task, "CANCELED")

    def start_dag(self, run: Run, task: Task) -> Execution:
        """Record the number of its tasks; launchers maintain its state."""
        return self.add_execution(run, task, "RUNNING", len(task.component.dag.tasks))

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
            fingerprint = fingerprint_of(container, executor_input, sorted(settings.mounts))
            earlier = run.store.cached(fingerprint, run.job.name, ("COMPLETE",))
            if earlier is not None:
                execution = self.add_execution(run, task, "CACHED")
                execution.outputs = dict(earlier.outputs)
                result.state = "CACHED"
        if execution is None:
            execution = self.add_execution(run, task, "RUNNING")
            if self._try(run, task, executor_input, settings, execution, result):
                result.state, execution.fingerprint = "SUCCEEDED", fingerprint
        result.outputs = {key: run.store.artifacts_of(execution, key) for key in execution.outputs}
        return result

    def _try(
        self, run: Run, task: Task, executor_input: Any, settings: PodSettings, execution: Execution, result: TaskResult
    ) -> bool:
        def start(pod: str, retry: int) -> int:
            result.error, execution.state = "", "RUNNING"
            try:
                code = _launch(run, task, executor_input, settings, execution, pod, retry)
            except TaskRefused as error:
                code, result.error = 1, str(error)
            execution.state = "FAILED" if code else "COMPLETE"
            _update_dag(run, task.scope.execution)
            return code

        pod = f"{run.name}-{task.name}-{execution.id}".lower()
        return self.run_until_success(task, result, pod, start)


def _provision(run: Run, task: Task, executor_input: Any) -> None:
    folder = f"{run.root}/{task.name}/{uuid.uuid4()}"
    log = pipeline_spec_pb2.ComponentOutputsSpec.ArtifactSpec()
    log.artifact_type.schema_title = "system.Artifact"
    specs = {**task.component.output_definitions.artifacts, _LOG_OUTPUT: log}
    for key, spec in specs.items():
        add_output(executor_input, key, spec, key, f"{folder}/{key}")
    executor_input.outputs.output_file = f"{local_path(folder)}/output_metadata.json"


def _launch(
    run: Run, task: Task, executor_input: Any, settings: PodSettings, execution: Execution, pod: str, retry: int
) -> int:
    """Run one pod on a disk of its own."""
    disk = Disk(run.machine.home / "pods" / pod)
    buckets = Buckets(run.machine.home / "buckets")
    container = run.job.executor(task.spec).container
    env = {**{each.name: each.value for each in container.env}, **_pod_env(run, settings, pod, retry)}
    arguments = expand([*container.command, *container.args], env)
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
