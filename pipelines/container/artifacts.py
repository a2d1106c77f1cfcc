"""Convert a task's artifacts between the backends' form and the form of TFX's container code.

Inputs: open-source Kubeflow Pipelines passes input artifacts without a type or with an empty one (kubeflow/pipelines,
backend/src/v2/metadata/converter.go, `toRuntimeArtifact`; client.go, `ToRuntimeArtifact`); the type is in the compiled
job's input definitions, which TFX passes as an argument. Vertex AI passes the type.

Outputs: the open-source launcher merges address and metadata of each artifact in TFX's `ExecutorOutput` file into the
provisioned artifact and uploads the local path of the merged address (backend/src/v2/component/launcher_v2.go:
`getExecutorOutputFile`, which refuses unknown fields, `mergeRuntimeArtifacts`, `uploadOutputArtifacts`). An address of
a file uploads that file only (backend/src/v2/objectstore/object_store.go, `UploadBlob`). Null metadata makes it fail
(backend/src/v2/metadata/converter.go, `StructValueToMLMDValue`).
"""

import os
from collections.abc import Collection
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.io import fileio
from tfx.orchestration.kubeflow.v2 import compiler_utils
from tfx.types.artifact import Artifact
from tfx.utils import import_utils, name_utils

from detloom.components import artifact_types
from detloom.components.properties import ADDRESS_PROPERTY, NOTHING_FOUND
from detloom.pipelines.container.task_storage import Addresses, make_parent
from detloom.schemas.errors import InputError

# Empty: see above. The other value is the KFP SDK's local runner's for all types except its own (kfp 2.17.0,
# kfp/local/executor_input_utils.py, `dsl_artifact_to_artifact_list`).
_UNTYPED = ("", "system.Artifact")


def register_titles() -> None:
    """Register the classes of our artifact types and the `system.` types; TFX only knows its own."""
    ours: list[Any] = [kind for kind in vars(artifact_types).values() if isinstance(kind, type)]
    for kind in ours:
        if issubclass(kind, Artifact) and kind is not Artifact:
            compiler_utils.TITLE_TO_CLASS_PATH[kind.TYPE_NAME] = name_utils.get_full_name(kind)


def complete_inputs(inputs: Any, inputs_spec: Any) -> None:
    """Set types and names of all input artifacts in place; remove artifacts that mark an empty result.

    Args:
        inputs: `ExecutorInput.Inputs`.
        inputs_spec: `ComponentInputsSpec` of the compiled job.
    """
    for key, artifacts in inputs.artifacts.items():
        found = [artifact for artifact in artifacts.artifacts if not _is_nothing(artifact)]
        for artifact in found:
            if title_of(artifact.type) in _UNTYPED:
                assert key in inputs_spec.artifacts, f"input {key}: neither the backend nor the job gives its type"
                artifact.type.CopyFrom(inputs_spec.artifacts[key].artifact_type)
            # TFX derives ids from names, and looks up a blessing's model by name.
            artifact.name = artifact.name or artifact.uri
            artifact.metadata[ADDRESS_PROPERTY] = artifact.uri  # the node gets a local path instead
        kept = [type(artifact).FromString(artifact.SerializeToString()) for artifact in found]
        del artifacts.artifacts[:]
        artifacts.artifacts.extend(kept)


def title_of(type_schema: Any) -> str:
    """Return the title of an `ArtifactTypeSchema`, such as tfx.Examples; empty if it has none."""
    if type_schema.WhichOneof("kind") == "instance_schema":
        return str((yaml.safe_load(type_schema.instance_schema) or {}).get("title", ""))
    return str(type_schema.schema_title)


def class_of(type_schema: Any) -> type[Artifact]:
    """Return the artifact class with that title, which is the import path for types of other packages."""
    title = title_of(type_schema)
    try:
        kind: type[Artifact] = import_utils.import_class_by_path(compiler_utils.TITLE_TO_CLASS_PATH.get(title, title))
    except (ImportError, AttributeError, ValueError) as error:
        allowed = "a type of TFX or of this package, or an import path that exists in the image"
        raise InputError(f"an artifact: got the type {title!r} ({error}), allowed: {allowed}.") from None
    return kind


def _is_nothing(artifact: Any) -> bool:
    found = artifact.metadata.fields.get(NOTHING_FOUND)
    return found is not None and found.number_value == 1


PAGE_TITLES = ("system.HTML", "system.Markdown")  # user interfaces show the object at the address, which must be a file


def finish_output(path: str, addresses: Addresses, page_keys: Collection[str]) -> None:
    """Rewrite the file of TFX's container code: restore addresses, point pages at their file, drop null metadata.

    Args:
        page_keys: outputs whose artifact is a folder with one file.
    """
    output = read_output(path)
    for key, artifacts in output.artifacts.items():
        for artifact in artifacts.artifacts:
            if key in page_keys:
                artifact.uri = _only_file(artifact.uri)
            artifact.uri = addresses.restore(artifact.uri)
            _clean(artifact.metadata, addresses)
    write_output(path, output)


def read_output(path: str) -> Any:
    """Read an `ExecutorOutput` file; unknown fields that a backend added are ignored."""
    with fileio.open(path, "rb") as file:
        return json_format.Parse(file.read(), pipeline_spec_pb2.ExecutorOutput(), ignore_unknown_fields=True)


def write_output(path: str, output: Any) -> None:
    """Write an `ExecutorOutput` file atomically."""
    text = json_format.MessageToJson(output, sort_keys=True)
    make_parent(path)
    partial = f"{path}.partial"
    with fileio.open(partial, "wb") as file:
        file.write(text)
    if "://" in path:
        fileio.rename(partial, path, overwrite=True)
    else:
        os.replace(partial, path)


def _only_file(folder: str) -> str:
    """Return the address of the only file in a folder, or the folder's if it is empty."""
    names = fileio.listdir(folder) if fileio.isdir(folder) else []
    assert len(names) <= 1, f"{folder}: expected one file, got {sorted(names)}"
    return f"{folder}/{names[0]}" if names else folder


def _clean(metadata: Any, addresses: Addresses) -> None:
    for name in [name for name, value in metadata.fields.items() if value.WhichOneof("kind") == "null_value"]:
        del metadata.fields[name]
    for value in metadata.fields.values():
        if value.WhichOneof("kind") == "string_value":
            value.string_value = addresses.restore(value.string_value)
