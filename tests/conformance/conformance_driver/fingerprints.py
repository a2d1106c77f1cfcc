"""Cache keys of tasks.

Open-source Kubeflow: kubeflow/pipelines, backend/src/v2/cacheutils/cache.go (`GenerateCacheKey`,
`GenerateFingerPrint`) and backend/src/v2/driver/cache.go: ids of input artifacts, parameters, outputs without their
addresses, image, command and arguments with placeholders, volume claims. Environment variables are not included.

Vertex AI: cloud.google.com/vertex-ai/docs/pipelines/configure-caching: parameters and ids of input artifacts, names of
outputs, image, command, arguments and environment; only pipelines with the same name share entries. Changes by the
driver before the cache lookup are included (api/v2alpha1/pipeline_spec.proto, `Lifecycle.pre_cache_check`).
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from google.protobuf import json_format


def kubeflow_fingerprint(container: Any, executor_input: Any, claims: Iterable[str]) -> str:
    """Return the key of a task whose outputs are provisioned."""
    outputs = {
        key: json_format.MessageToDict(each.artifacts[0]) for key, each in executor_input.outputs.artifacts.items()
    }
    for artifact in outputs.values():
        artifact.pop("uri")
    return _digest(
        {
            **_inputs(executor_input),
            "outputArtifactsSpec": outputs,
            "containerSpec": {
                "image": container.image,
                "cmdArgs": [*container.command, *container.args],
                "pvcNames": sorted(set(claims)),
            },
        }
    )


def vertex_fingerprint(container: Any, executor_input: Any) -> str:
    """Return the key of a task after its driver."""
    return _digest(
        {
            **_inputs(executor_input),
            "outputs": {
                key: json_format.MessageToDict(each.artifacts[0].metadata)
                for key, each in executor_input.outputs.artifacts.items()
            },
            "image": container.image,
            "command": list(container.command),
            "args": list(container.args),
            "env": {each.name: each.value for each in container.env},
        }
    )


def _inputs(executor_input: Any) -> dict[str, Any]:
    inputs = executor_input.inputs
    return {
        "inputArtifactNames": {key: [one.name for one in each.artifacts] for key, each in inputs.artifacts.items()},
        "inputParameterValues": {
            key: json_format.MessageToDict(value) for key, value in inputs.parameter_values.items()
        },
    }


def _digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
