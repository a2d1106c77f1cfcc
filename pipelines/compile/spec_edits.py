"""Edit a compiled pipeline spec: commands, caching, retries, environment and declared types.

TFX's compiler cannot express these settings. Each function changes the spec in place.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from detloom.components.fingerprints import CODE_FLAG, describe_code
from detloom.pipelines.compile.pipeline_spec import Spec, containers_of, executors_of, tasks_of
from detloom.pipelines.dag.packed_settings import SYSTEM_TYPES, short_type
from detloom.pipelines.tfx_line import LINE_FLAG, tfx_line
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.nodes import Retry
from detloom.schemas.run_file.run_file import Place

ENTRYPOINT = "detloom.pipelines.container.entrypoint"
_EXAMPLE_GEN = "detloom.components.example_gen."
_EXAMPLE_GEN_ENTRYPOINT = "detloom.pipelines.container.example_gen_entrypoint"
_TRAINING = "detloom.trainer_module"  # the executors of Trainer and Tuner get its functions as parameters
_TRAINERS = (
    "detloom.components.retrain.reuse.",
    "detloom.pipelines.dag.vertex_training_job.",
    "tfx.components.trainer.",
    "tfx.components.tuner.",
)
INPUTS_SPEC = "--json_serialized_inputs_spec_args"


def entrypoint_command(place: Place) -> list[str]:
    """Return the part of the command before the arguments of TFX's compiler."""
    return ["python", "-m", ENTRYPOINT, "--place", place]


def name_code(spec: Spec) -> None:
    """Add to each command the TFX line, the modules that the task runs, and their fingerprint.

    The backends' cache keys contain the command, so a task runs again if its own code has changed. The container
    compares the line and the fingerprint with those of its image.
    """
    for container in executors_of(spec).values():
        command, executor = container["command"], container["args"][1]
        if executor.startswith(_EXAMPLE_GEN):
            command[2] = _EXAMPLE_GEN_ENTRYPOINT
        ours = [executor.rpartition(".")[0]] if executor.startswith("detloom.") else []
        ours += [_TRAINING] if executor.startswith(_TRAINERS) else []
        command += [f"{LINE_FLAG}={tfx_line()}", CODE_FLAG, describe_code(command[2], *ours)]


def set_time_limits(spec: Spec, seconds_by_node: Mapping[str, float]) -> None:
    """Let our entrypoint limit the time of a try, so that waiting for a machine does not count."""
    for name, container in executors_of(spec).items():
        if name in seconds_by_node:
            container["command"] += ["--time_limit_seconds", str(math.ceil(seconds_by_node[name]))]


def add_drivers(spec: Spec) -> None:
    """Run the driver of DetectionExampleGen before Vertex AI checks the cache, as TFX does for its own ExampleGens
    (tfx/orchestration/kubeflow/v2/step_builder.py); open-source Kubeflow has no such hook.

    Call this after all edits of the container's arguments, because it copies them.
    """
    for container in executors_of(spec).values():
        if container["command"][2] == _EXAMPLE_GEN_ENTRYPOINT:
            # No driver class is passed, because the entrypoint knows it.
            hook = {"command": [*container["command"], "--driver"], "args": container["args"][2:]}
            container["lifecycle"] = {"preCacheCheck": hook}


def refresh_input_specs(spec: Spec) -> None:
    """Update the input types in the containers' arguments after edits of the components' declarations."""
    for name, container in executors_of(spec).items():
        args = container["args"]
        declared = spec["components"][name].get("inputDefinitions", {})
        args[args.index(INPUTS_SPEC) + 1] = json.dumps(declared, sort_keys=True)


# Their results depend on things that no cache sees: a folder of versions or records, the time, or a sent message.
_UNCACHED = (
    "detloom.components.notifier.",
    "detloom.components.pusher.",
    "detloom.components.resolvers.",
    "detloom.components.retrain.component.",
)
_YEAR_SECONDS = 365 * 24 * 3600
_MAX_WAIT_ON_VERTEX = 3600  # kfp caps longer waits "to reflect runtime behavior" (kfp/dsl/structures.py)


def uncached_nodes(spec: Spec, place: Place) -> frozenset[str]:
    """Return the nodes that must not be cached.

    On Kubeflow, no driver of an ExampleGen runs before the cache is checked, so new data would be missed.
    """
    uncached = (*_UNCACHED, _EXAMPLE_GEN, "tfx.components.example_gen.") if place == "kubeflow" else _UNCACHED
    return frozenset(name for name, each in executors_of(spec).items() if each["args"][1].startswith(uncached))


def set_caching(spec: Spec, uncached: Collection[str]) -> None:
    """Disable the cache for the tasks of these nodes; TFX can only switch it for whole pipelines."""
    for name, task in tasks_of(spec).items():
        if name in uncached:
            task["cachingOptions"] = {}


def set_retries(spec: Spec, retries: Mapping[str, Retry], place: Place) -> None:
    """Set the retry policy of the tasks of these nodes.

    Raises:
        InputError: for a wait that the backend does not support.
    """
    tasks = tasks_of(spec)
    for name, retry in retries.items():
        if retry.max_retries and name in tasks:
            tasks[name]["retryPolicy"] = retry_policy(name, retry, place)


def retry_policy(node_id: str, retry: Retry, place: Place) -> dict[str, Any]:
    """Return kfp's `RetryPolicy`.

    Open-source Kubeflow passes it to Argo Workflows (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/
    container.go), which has no maximum wait, accepts only whole factors, and reads `backoffMaxDuration` as the total
    time of all tries: with kfp's default of one hour, a training run of two hours would not be retried
    (argoproj/argo-workflows, workflow/controller/operator.go, processNodeRetries). On Vertex AI it is the maximum wait
    (cloud.google.com/vertex-ai/docs/pipelines/configure-retries); it is set only if needed, because kfp's documentation
    describes it as the total time there as well.

    Raises:
        InputError: for a factor or a wait that the backend does not support.
    """
    longest = retry.uncut_wait_seconds(retry.max_retries)
    if place == "kubeflow":
        _check_argo(node_id, retry, longest)
        limit = _YEAR_SECONDS
    else:
        is_cut = longest > retry.max_backoff_seconds
        if min(longest, retry.max_backoff_seconds) > _MAX_WAIT_ON_VERTEX:
            raise InputError(
                f"nodes, {node_id}: max_backoff_seconds: got {retry.max_backoff_seconds:g}, allowed on Vertex AI with "
                f"these waits: at most {_MAX_WAIT_ON_VERTEX}."
            )
        limit = math.ceil(retry.max_backoff_seconds) if is_cut else _MAX_WAIT_ON_VERTEX
    return {
        "backoffDuration": f"{math.ceil(retry.backoff_seconds)}s",
        "backoffFactor": float(retry.backoff_factor),
        "backoffMaxDuration": f"{limit}s",
        "maxRetryCount": retry.max_retries,
    }


def _check_argo(node_id: str, retry: Retry, longest: float) -> None:
    where = f"nodes, {node_id}"
    if retry.backoff_factor != int(retry.backoff_factor):
        raise InputError(f"{where}: backoff_factor: got {retry.backoff_factor:g}, allowed on Kubeflow: a whole number.")
    if longest > retry.max_backoff_seconds:
        raise InputError(
            f"{where}: max_backoff_seconds: got {retry.max_backoff_seconds:g}, but Kubeflow has no maximum wait, and "
            f"the wait before try {retry.max_retries + 1} is {longest:g} seconds; allow that, or lower "
            "max_retries, backoff_seconds or backoff_factor."
        )


def set_images(spec: Spec, images: Mapping[str, str]) -> None:
    """Set the images of these nodes' containers."""
    for name, container in containers_of(spec).items():
        container["image"] = images.get(name) or container["image"]


def trainers_of(spec: Spec) -> frozenset[str]:
    """Return the nodes that train."""
    return frozenset(name for name, each in executors_of(spec).items() if each["args"][1].startswith(_TRAINERS))


def set_resources(spec: Spec, resources: Mapping[str, Message | None]) -> None:
    """Set the machine resources of these nodes; others keep what the pipeline gave them by `with_platform_config`."""
    for name, container in containers_of(spec).items():
        if (found := resources.get(name)) is not None:
            container["resources"] = json_format.MessageToDict(found)


def set_environment(spec: Spec, environments: Mapping[str, Mapping[str, str]]) -> None:
    """Set environment variables of these nodes' containers."""
    for name, container in containers_of(spec).items():
        environment = sorted(environments.get(name, {}).items())
        if environment:
            container["env"] = [{"name": key, "value": value} for key, value in environment]


def name_system_types(spec: Spec) -> None:
    """Declare `system.*` types by title and version, as kfp's compiler does: Vertex AI has registered these schemas."""
    for component in spec["components"].values():
        for artifact in component.get("outputDefinitions", {}).get("artifacts", {}).values():
            declared = artifact["artifactType"]
            title = str(yaml.safe_load(declared.get("instanceSchema") or "{}").get("title", ""))
            if title.startswith(SYSTEM_TYPES):
                artifact["artifactType"] = short_type(title)


def declare_final_status(spec: Spec) -> None:
    """Declare the final status parameter of an exit handler as kfp's compiler does for schema 2.1 (kubeflow/pipelines,
    sdk/python/kfp/compiler/pipeline_spec_builder.py); TFX's compiler declares a string."""
    for task in tasks_of(spec).values():
        for name, source in task.get("inputs", {}).get("parameters", {}).items():
            if "taskFinalStatus" in source:
                declared = spec["components"][task["componentRef"]["name"]]["inputDefinitions"]["parameters"]
                declared[name]["parameterType"] = "TASK_FINAL_STATUS"
