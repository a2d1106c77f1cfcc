"""Small hand-written jobs with containers that run Python code, to test the driver itself."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from conformance_driver.execute import run_job
from conformance_driver.job import Backend, read_job
from conformance_driver.results import RunResult
from conformance_driver.run import Machine
from conformance_driver.runner import SubprocessRunner

ROOTS = {"kubeflow": "minio://bucket/root", "vertex": "gs://bucket/root"}
MODEL = "tfx.Model"
# Available in a container: `executor_input`, and functions for its artifacts and its output file.
_PROGRAM = """
import json, os, sys
executor_input = json.loads(sys.argv[1])
output = {}
def local(address):
    scheme, _, rest = address.partition("://")
    return os.path.join(os.environ["DETLOOM_STORAGE_ROOT"], {"gs": "gcs"}.get(scheme, scheme), rest)
def artifact(side, key):
    return executor_input[side]["artifacts"][key]["artifacts"][0]
def read(key):
    return open(os.path.join(local(artifact("inputs", key)["uri"]), "file")).read()
def write(key, text):
    os.makedirs(local(artifact("outputs", key)["uri"]), exist_ok=True)
    open(os.path.join(local(artifact("outputs", key)["uri"]), "file"), "w").write(text)
def set_metadata(key, **metadata):
    output.setdefault("artifacts", {})[key] = {"artifacts": [{"metadata": metadata}]}
def parameter(key):
    return executor_input["inputs"]["parameterValues"][key]
exec(sys.argv[2])
if output:
    path = executor_input["outputs"]["outputFile"]
    path = local(path) if "://" in path else path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    json.dump(output, open(path, "w"))
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A task and its component.

    Attributes:
        code: Python code; empty with `tasks`.
        inputs: sources of artifacts: "task.output", or "^name" for an input of its DAG.
        outputs: titles by key.
        parameters: constants; "STATUS" is the final status of the previous task.
        tasks: of a DAG.
        more: additional fields of the task.
    """

    code: str = ""
    driver: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    after: Sequence[str] = ()
    condition: str = ""
    is_exit_handler: bool = False
    is_cached: bool = False
    tasks: Mapping[str, "Step"] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def spec_of(steps: Mapping[str, Step], name: str = "small") -> dict[str, Any]:
    """Return a PipelineSpec."""
    spec: dict[str, Any] = {
        "pipelineInfo": {"name": name},
        "schemaVersion": "2.1.0",
        "sdkVersion": "test",
        "components": {},
        "deploymentSpec": {"executors": {}},
        "root": {"dag": {"tasks": {}}},
    }
    for task_name, step in steps.items():
        spec["root"]["dag"]["tasks"][task_name] = _add(spec, task_name, step)
    return spec


def text_of(steps: Mapping[str, Step], backend: Backend, platform: Mapping[str, Any] | None = None) -> str:
    """Return the text of a compiled file.

    Args:
        platform: by executor label.
    """
    spec = spec_of(steps)
    if backend == "vertex":
        return json.dumps({"pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": ROOTS["vertex"]}})
    documents = [spec]
    if platform is not None:
        documents.append({"platforms": {"kubernetes": {"deploymentSpec": {"executors": dict(platform)}}}})
    return yaml.safe_dump_all(documents)


def machine_at(home: Path, **fields: Any) -> Machine:
    """Return a machine whose runs see each other."""
    return Machine(home, SubprocessRunner(home / "logs"), **fields)


def run_steps(
    steps: Mapping[str, Step], backend: Backend, machine: Machine, platform: Mapping[str, Any] | None = None
) -> RunResult:
    """Read and run a job."""
    return run_job(read_job(text_of(steps, backend, platform), backend, ROOTS[backend]), machine)


def _add(spec: dict[str, Any], name: str, step: Step) -> dict[str, Any]:
    component: dict[str, Any] = {"inputDefinitions": {}, "outputDefinitions": {}}
    task: dict[str, Any] = {"taskInfo": {"name": name}, "componentRef": {"name": name}, "inputs": {}, **step.more}
    spec["components"][name] = component
    component["outputDefinitions"]["artifacts"] = {key: {"artifactType": _type(t)} for key, t in step.outputs.items()}
    component["inputDefinitions"] = {
        "artifacts": {key: {"artifactType": _type(MODEL)} for key in step.inputs},
        "parameters": {key: {"parameterType": _parameter_type(value)} for key, value in step.parameters.items()},
    }
    task["inputs"] = {
        "artifacts": {key: _source(text) for key, text in step.inputs.items()},
        "parameters": {key: _parameter(value, step.after) for key, value in step.parameters.items()},
    }
    task["dependentTasks"] = list(step.after)
    if step.is_cached:
        task["cachingOptions"] = {"enableCache": True}
    if step.condition or step.is_exit_handler:
        task["triggerPolicy"] = {"condition": step.condition}
    if step.is_exit_handler:
        task["triggerPolicy"]["strategy"] = "ALL_UPSTREAM_TASKS_COMPLETED"
    if step.tasks:
        component["dag"] = {"tasks": {each: _add(spec, each, inner) for each, inner in step.tasks.items()}}
    else:
        component["executorLabel"] = f"{name}-executor"
        spec["deploymentSpec"]["executors"][f"{name}-executor"] = _executor(step)
    return task


def _executor(step: Step) -> dict[str, Any]:
    command = ["python", "-c", _PROGRAM, "{{$}}"]
    container: dict[str, Any] = {"image": "example.org/image:1", "command": command, "args": [step.code]}
    if step.driver:
        container["lifecycle"] = {"preCacheCheck": {"command": command, "args": [step.driver]}}
    return {"container": container}


def _type(title: str) -> dict[str, str]:
    return {"instanceSchema": f"title: {title}\ntype: object\n"}


def _source(text: str) -> dict[str, Any]:
    if text.startswith("^"):
        return {"componentInputArtifact": text[1:]}
    producer, key = text.split(".")
    return {"taskOutputArtifact": {"producerTask": producer, "outputArtifactKey": key}}


def _parameter_type(value: Any) -> str:
    return "NUMBER_INTEGER" if isinstance(value, int) else "STRING"


def _parameter(value: Any, after: Sequence[str]) -> dict[str, Any]:
    if value == "STATUS":
        return {"taskFinalStatus": {"producerTask": after[0]}}
    return {"runtimeValue": {"constant": value}}
