"""The answer of a task: TFX's `ExecutorOutput` file, made what both backends accept.

The open-source launcher merges address and metadata of each artifact into what it had provisioned and uploads the local
path of the merged address (kubeflow/pipelines, backend/src/v2/component/launcher_v2.go: `getExecutorOutputFile`, which
refuses unknown fields, `mergeRuntimeArtifacts`, `uploadOutputArtifacts`). A file there is uploaded as that file
(backend/src/v2/objectstore/object_store.go, `UploadBlob`). Metadata that is null fails it
(backend/src/v2/metadata/converter.go, `StructValueToMLMDValue`).
"""

import os
from collections.abc import Collection
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.io import fileio

from detloom.pipelines.container.storage import Addresses, make_parent

PAGE_TITLES = ("system.HTML", "system.Markdown")  # user interfaces show what lies at the address: it has to be a file


def finish_output(path: str, addresses: Addresses, page_keys: Collection[str]) -> None:
    """Rewrite the file that TFX's container code wrote: addresses for local paths, pages' addresses, no nulls.

    Args:
        page_keys: outputs whose artifact is one file in its folder.
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
    """The `ExecutorOutput` in a file; a backend may have added what we do not know."""
    with fileio.open(path, "rb") as file:
        return json_format.Parse(file.read(), pipeline_spec_pb2.ExecutorOutput(), ignore_unknown_fields=True)


def write_output(path: str, output: Any) -> None:
    """Write an `ExecutorOutput`, whole or not at all."""
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
    """The address of the one file in a folder; the folder's where nothing was written."""
    names = fileio.listdir(folder) if fileio.isdir(folder) else []
    assert len(names) <= 1, f"{folder}: one file was expected, there are {sorted(names)}"
    return f"{folder}/{names[0]}" if names else folder


def _clean(metadata: Any, addresses: Addresses) -> None:
    for name in [name for name, value in metadata.fields.items() if value.WhichOneof("kind") == "null_value"]:
        del metadata.fields[name]
    for value in metadata.fields.values():
        if value.WhichOneof("kind") == "string_value":
            value.string_value = addresses.restore(value.string_value)
