"""What a run file may not ask of a backend, said before anything is compiled."""

import json
import os
import re
from pathlib import PurePosixPath

from detloom.pipelines.compile.pipeline_spec import Spec, tasks_of
from detloom.schemas.data_config import EMBEDDED_DIGITS
from detloom.schemas.errors import InputError
from detloom.schemas.push_config import is_remote
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place, RunFile
from detloom.trainer_module.supported import check_trainable

_NAME = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
)  # of TFX's compiler, and of Argo Workflows that are named after it
_VERTEX_MOUNT = "/gcs/"
_DATA = "data.path"
# All parameters of a task reach its process in one argument; Linux takes 131072 bytes (MAX_ARG_STRLEN), and addresses
# of artifacts are in it, too.
_MAX_PARAMETER_BYTES = 100_000
# Kubernetes fills in variables in a container's arguments (kubernetes/kubernetes, third_party/forked/golang/expansion);
# open-source Kubeflow hands the parameters over in one and escapes nothing.
_EXPANDED = ("$$", "$(")


def check_run(run: RunFile, place: Place) -> None:
    """Raise InputError for what TFX's compiler or the backend would refuse later, or lose."""
    check_trainable(run.config)
    where = place.capitalize()
    if not _NAME.fullmatch(run.name):
        raise InputError(
            f"name: got '{run.name}', allowed on {where}: lower case letters and digits, '-' between them."
        )
    if place == "kubeflow" and run.push.vertex is not None:
        raise InputError(
            "push.vertex: got an endpoint, allowed on Kubeflow: a folder of versions (push_to), which tells the next "
            "run what it has to beat; or run it on Vertex AI, which remembers that itself."
        )
    if place == "kubeflow" and run.data.path != EMBEDDED_DIGITS and "DetectionExampleGen" not in _given_away(run):
        _check_mounted(run, _DATA, run.data.path, place)
    kept = {"push_to": run.push_to, "retrain.records": run.retrain.records if run.retrain else ""}
    for key, address in kept.items():
        if address and not is_remote(address):
            _check_mounted(run, key, address, place)


def check_parameters(spec: Spec, place: Place) -> None:
    """Raise InputError for values that would not reach the container, or reach it changed."""
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
                f"largest is {largest}, make it smaller."
            )
        for key, value in sorted(values.items()):
            found = next((mark for mark in _EXPANDED if mark in str(value)), None)
            if place == "kubeflow" and found:
                raise InputError(
                    f"{name}: {key}: got '{found}' in a value, which Kubernetes would change; write it otherwise, such "
                    "as [$] in a regular expression."
                )


def _given_away(run: RunFile) -> tuple[str, ...]:
    """Nodes whose Beam work is done elsewhere, where addresses are read as they are."""
    return run.beam.nodes if run.beam is not None else ()


def _check_mounted(run: RunFile, key: str, folder: str, place: Place) -> None:
    """Raise InputError for a folder that would go with the pod."""
    path = os.path.normpath(folder.replace("gs://", _VERTEX_MOUNT, 1))
    if place == "vertex" and not path.startswith(_VERTEX_MOUNT):
        raise InputError(
            f"{key}: got '{redact(folder)}', allowed on Vertex: an address at gs://, or a folder under "
            f"{_VERTEX_MOUNT}, since what lies elsewhere goes with the container."
        )
    mounts = [volume.mount_path for volume in run.kubeflow.volumes] if run.kubeflow else []
    if place == "kubeflow" and not any(PurePosixPath(path).is_relative_to(mount) for mount in mounts):
        raise InputError(
            f"{key}: got '{redact(folder)}', allowed on Kubeflow: {'' if key == _DATA else 'an address at gs://, or '}"
            f"a folder on one of kubeflow.volumes ({', '.join(mounts) or 'there is none'}), since what lies elsewhere "
            "goes with the pod."
        )
