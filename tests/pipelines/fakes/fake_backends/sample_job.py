"""A compiled pipeline: Gen, then the conditional group `training` with Trainer and Pusher."""

import copy
import json
from typing import Any

import yaml

_GEN = {"taskInfo": {"name": "Gen"}, "componentRef": {"name": "Gen"}, "cachingOptions": {"enableCache": True}}
_TRAINING = {
    "taskInfo": {"name": "training"},
    "componentRef": {"name": "training"},
    "dependentTasks": ["Gen"],
    "triggerPolicy": {"condition": "inputs.parameter_values['train'] == 1"},
}
_PUSHER = {"taskInfo": {"name": "Pusher"}, "componentRef": {"name": "Pusher"}, "dependentTasks": ["Trainer"]}
_TRAINER = {
    "taskInfo": {"name": "Trainer"},
    "componentRef": {"name": "Trainer"},
    "cachingOptions": {"enableCache": True},
}

SPEC: dict[str, Any] = {
    "pipelineInfo": {"name": "cells"},
    "schemaVersion": "2.1.0",
    "sdkVersion": "tfx-1.16.0",
    "root": {"dag": {"tasks": {"Gen": _GEN, "training": _TRAINING}}},
    "components": {
        "Gen": {"executorLabel": "Gen_executor"},
        "Pusher": {"executorLabel": "Pusher_executor"},
        "Trainer": {"executorLabel": "Trainer_executor"},
        "training": {"dag": {"tasks": {"Pusher": _PUSHER, "Trainer": _TRAINER}}},
    },
    "deploymentSpec": {
        "executors": {
            f"{name}_executor": {"container": {"image": "x/detloom:1", "command": ["python"]}}
            for name in ("Gen", "Trainer", "Pusher")
        }
    },
}
PLATFORM: dict[str, Any] = {
    "platforms": {"kubernetes": {"deploymentSpec": {"executors": {"Trainer_executor": {"imagePullPolicy": "Always"}}}}}
}


def spec(**changes: Any) -> dict[str, Any]:
    """Return the pipeline spec with changed fields."""
    return {**copy.deepcopy(SPEC), **changes}


def kubeflow_job(platform: bool = True, **changes: Any) -> str:
    """Return the text of a job for Kubeflow."""
    return yaml.safe_dump_all([spec(**changes), *([PLATFORM] if platform else [])])


def vertex_job(**changes: Any) -> str:
    """Return the text of a job for Vertex AI."""
    job = {
        "displayName": "cells",
        "labels": {"tfx_version": "1-16-0"},
        "pipelineSpec": spec(**changes),
        "runtimeConfig": {"gcsOutputDirectory": "gs://bucket/root"},
    }
    return json.dumps(job)
