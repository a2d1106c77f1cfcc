"""Check a run file for settings that a backend does not support, before anything is compiled."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from detloom.pipelines.check_learned_columns import check_learned_columns
from detloom.pipelines.compile.pipeline_spec import Spec, tasks_of
from detloom.pipelines.dag.beam_options import has_remote_workers
from detloom.pipelines.tfx_line import TPU_LINES, tfx_line
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.accelerators import is_tpu
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.nodes import NodeSettings, settings_of
from detloom.schemas.run_file.push import is_remote
from detloom.schemas.run_file.run_file import Place, RunFile
from detloom.schemas.run_file.vertex import MOUNT, mounted_path
from detloom.trainer_module.detectors.supported import check_trainable

# The limit of TFX's compiler and Argo Workflows' names.
PIPELINE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DATA, _PUSH_TO = "data.path", "push_to"
_KUBERNETES_ONLY = {  # advice for Vertex AI, where `resources_of` reads only cpu and memory, by field of NodeSettings
    "accelerator": "in a run file, vertex.training gives Trainer and Tuner GPUs or a TPU",
    "cpu_limit": "set cpu, which is a limit there",
    "memory_limit": "set memory, which is a limit there",
    "ephemeral_storage": "remove it",
    "node_selector": "remove it",
    "tolerations": "remove it",
}
# All parameters of a task are passed to its process in one argument, together with artifact addresses; Linux allows
# 131072 bytes (MAX_ARG_STRLEN).
_MAX_PARAMETER_BYTES = 100_000
# Kubernetes expands variables in a container's arguments (kubernetes/kubernetes, third_party/forked/golang/expansion);
# open-source Kubeflow passes the parameters in one argument and escapes nothing.
_EXPANDED = ("$$", "$(")


def check_run(run: RunFile, place: Place) -> None:
    """Raise InputError for settings that TFX's compiler or the backend would later refuse or lose."""
    check_trainable(run.config)
    check_learned_columns(run)
    where = place.capitalize()
    if not PIPELINE_NAME.fullmatch(run.name):
        raise InputError(
            f"name: got '{run.name}', allowed on {where}: lower case letters and digits, '-' between them."
        )
    if _uses_tpu(run, place) and tfx_line() not in TPU_LINES:
        raise InputError(
            f"TFX: got {tfx_line()}, allowed with a TPU: {', '.join(TPU_LINES)}, because TensorFlow of later lines has "
            "no build for TPUs; run `make venv TFX_LINE=1.16`, compile again, and build the images with that line."
        )
    if place == "kubeflow" and run.push.vertex is not None:
        raise InputError(
            "push.vertex: got an endpoint, allowed on Kubeflow: a folder of versions (push_to), from which the next "
            "run reads its baseline; or run on Vertex AI, which stores the baseline itself."
        )
    if place == "vertex" and run.kubeflow is None:  # a file for both may have settings that only one of them reads
        check_vertex_nodes(run.nodes)
    is_on_pod = run.data.path != EMBEDDED_DIGITS and not has_remote_workers(run, "DetectionExampleGen")
    if place == "kubeflow" and is_on_pod:
        _check_mounted(run, _DATA, run.data.path, place)
    kept = {_PUSH_TO: run.push_to, "retrain.records": run.retrain.records if run.retrain else ""}
    for key, address in kept.items():
        if address and not is_remote(address):
            _check_mounted(run, key, address, place)


def _uses_tpu(run: RunFile, place: Place) -> bool:
    if place == "vertex":
        return bool(run.vertex and run.vertex.training and run.vertex.training.has_tpu)
    users = ("Trainer", "Tuner") if run.tuner else ("Trainer",)
    accelerators = [settings_of(run.nodes, node_id).accelerator for node_id in users]
    return any(accelerator is not None and is_tpu(accelerator.type) for accelerator in accelerators)


def check_vertex_nodes(nodes: Sequence[NodeSettings]) -> None:
    """Raise InputError for a setting of a node that only Kubernetes reads."""
    for node in nodes:
        for field, advice in _KUBERNETES_ONLY.items():
            if getattr(node, field):
                raise InputError(f"nodes, {node.node}: {field}: has no effect on Vertex AI; {advice}.")


def check_parameters(spec: Spec, place: Place) -> None:
    """Raise InputError for values that would not reach the container, or would be changed."""
    for name, task in sorted(tasks_of(spec).items()):
        values = {
            key: source["runtimeValue"]["constant"]
            for key, source in task.get("inputs", {}).get("parameters", {}).items()
            if "runtimeValue" in source
        }
        size = len(json.dumps(values).encode())
        if size > _MAX_PARAMETER_BYTES:
            largest = max(values, key=lambda key: len(str(values[key])))
            raise InputError(
                f"{name}: its settings take {size} bytes, allowed in a compiled job: {_MAX_PARAMETER_BYTES}; the "
                f"largest is {largest}; make it smaller."
            )
        for key, value in sorted(values.items()):
            found = next((mark for mark in _EXPANDED if mark in str(value)), None)
            if place == "kubeflow" and found:
                raise InputError(
                    f"{name}: {key}: got '{found}' in a value, which Kubernetes would change; write it differently, "
                    "such as [$] in a regular expression."
                )


def _check_mounted(run: RunFile, key: str, folder: str, place: Place) -> None:
    """Raise InputError for a folder whose content would be deleted with the pod."""
    path = os.path.normpath(mounted_path(folder))
    if place == "vertex" and path.startswith(MOUNT) and key == _PUSH_TO:
        raise InputError(
            f"{key}: got '{redact(folder)}', allowed on Vertex: an address at gs://, because a mounted bucket may not "
            f"rename folders; write '{redact(path.replace(MOUNT, 'gs://', 1))}'."
        )
    if place == "vertex" and not path.startswith(MOUNT):
        or_mounted = "" if key == _PUSH_TO else f", or a folder under {MOUNT}"
        raise InputError(
            f"{key}: got '{redact(folder)}', allowed on Vertex: an address at gs://{or_mounted}, because other folders "
            "are deleted with the container."
        )
    mounts = [volume.mount_path for volume in run.kubeflow.volumes] if run.kubeflow else []
    if place == "kubeflow" and not any(PurePosixPath(path).is_relative_to(mount) for mount in mounts):
        raise InputError(
            f"{key}: got '{redact(folder)}', allowed on Kubeflow: {'' if key == _DATA else 'an address at gs://, or '}"
            f"a folder on one of kubeflow.volumes ({', '.join(mounts) or 'none'}), because other folders are deleted "
            "with the pod."
        )
