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
from typing import Any

from google.protobuf import json_format


def fingerprint_of(container: Any, executor_input: Any, more: Any) -> str:
    """Return the key of a task whose outputs are provisioned.

    Args:
        more: what only one backend includes: the volume claims, or the environment.
    """
    inputs, outputs = executor_input.inputs, executor_input.outputs
    key = {
        "artifacts": {key: [one.name for one in each.artifacts] for key, each in inputs.artifacts.items()},
        "parameters": {key: json_format.MessageToDict(value) for key, value in inputs.parameter_values.items()},
        "outputs": {
            key: json_format.MessageToDict(each.artifacts[0].metadata) for key, each in outputs.artifacts.items()
        },
        "image": container.image,
        "command": [*container.command, *container.args],
        "more": more,
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
