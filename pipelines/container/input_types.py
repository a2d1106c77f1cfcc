"""What TFX's container code needs to know of artifacts, where the backend does not say it.

Open-source Kubeflow Pipelines hands an input artifact over without a type, or with an empty one (kubeflow/pipelines,
backend/src/v2/metadata/converter.go, `toRuntimeArtifact`; client.go, `ToRuntimeArtifact`); it stands in the compiled
job's input definitions, which TFX passes as an argument. Vertex AI hands the type over.
"""

from typing import Any

import yaml
from tfx.orchestration.kubeflow.v2 import compiler_utils
from tfx.types.artifact import Artifact
from tfx.utils import import_utils, name_utils

from detloom.components import artifact_types
from detloom.schemas.errors import InputError

# Empty: see above. The other is what the KFP SDK's local runner says of every type that is not its own (kfp 2.17.0,
# kfp/local/executor_input_utils.py, `dsl_artifact_to_artifact_list`).
_UNTYPED = ("", "system.Artifact")


def register_titles() -> None:
    """Tell TFX which classes our artifact types and the `system.` ones are; it knows its own."""
    ours: list[Any] = [kind for kind in vars(artifact_types).values() if isinstance(kind, type)]
    for kind in ours:
        if issubclass(kind, Artifact) and kind is not Artifact:
            compiler_utils.TITLE_TO_CLASS_PATH[kind.TYPE_NAME] = name_utils.get_full_name(kind)


def complete_inputs(inputs: Any, inputs_spec: Any) -> None:
    """Give all input artifacts a type and a name, in place; those that stand for none are taken out.

    Args:
        inputs: `ExecutorInput.Inputs`.
        inputs_spec: `ComponentInputsSpec` of the compiled job.
    """
    for key, artifacts in inputs.artifacts.items():
        found = [artifact for artifact in artifacts.artifacts if not _is_nothing(artifact)]
        for artifact in found:
            if title_of(artifact.type) in _UNTYPED:
                assert key in inputs_spec.artifacts, f"input {key}: neither the backend nor the job says its type"
                artifact.type.CopyFrom(inputs_spec.artifacts[key].artifact_type)
            # TFX makes ids of names, and looks the names up again for what a blessing says.
            artifact.name = artifact.name or artifact.uri
        kept = [type(artifact).FromString(artifact.SerializeToString()) for artifact in found]
        del artifacts.artifacts[:]
        artifacts.artifacts.extend(kept)


def title_of(type_schema: Any) -> str:
    """The title of an `ArtifactTypeSchema`, such as tfx.Examples; empty where it has none."""
    if type_schema.WhichOneof("kind") == "instance_schema":
        return str((yaml.safe_load(type_schema.instance_schema) or {}).get("title", ""))
    return str(type_schema.schema_title)


def class_of(type_schema: Any) -> type[Artifact]:
    """The class of artifacts with that title."""
    title = title_of(type_schema)
    path = compiler_utils.TITLE_TO_CLASS_PATH.get(title)
    if path is None:
        raise InputError(f"an artifact: got the type {title!r}, allowed: those of TFX and of this package.")
    kind: type[Artifact] = import_utils.import_class_by_path(path)
    return kind


def _is_nothing(artifact: Any) -> bool:
    found = artifact.metadata.fields.get(artifact_types.NOTHING_FOUND)
    return found is not None and found.number_value == 1
