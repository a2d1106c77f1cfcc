"""Tasks as the two backends hand them to a container, in a folder instead of an object store."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tfx.dsl.io import filesystem_registry
from tfx.dsl.io.plugins.tensorflow_gfile import TensorflowFilesystem

import detloom.schemas
from detloom.pipelines.container.storage import Storage

_ADDRESSES = {"kubeflow": "minio://mlpipeline/v2/demo", "vertex": "gs://bucket/root/123/demo-20260101"}
_KINDS = {str: "STRING", int: "NUMBER_INTEGER", float: "NUMBER_DOUBLE"}
_SCHEMA_FILE = next(
    file for folder in detloom.schemas.__path__ if (file := Path(folder) / "example_schema.pbtxt").is_file()
)


@dataclass(frozen=True)
class Backend:
    """One task of one of the two places; `Storage.root` stands for the container's file system."""

    place: str
    node: str
    storage: Storage

    @property
    def address(self) -> str:
        """Above the task's outputs."""
        root = _ADDRESSES[self.place]
        return f"{root}/{self.node}/7f3a" if self.place == "kubeflow" else f"{root}/{self.node}_42"

    @property
    def folder(self) -> Path:
        """The same, as the container sees it."""
        return Path(self.storage.local_path(self.address))

    def type_of(self, title: str) -> dict[str, str]:
        is_kubeflow = self.place == "kubeflow"
        return {"instanceSchema": f"title: {title}\ntype: object\n"} if is_kubeflow else {"schemaTitle": title}

    def arguments(
        self,
        outputs: Mapping[str, str],
        inputs: Mapping[str, tuple[str, dict[str, Any]]] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> tuple[str, str]:
        """`ExecutorInput` as the place writes it, and the inputs' definitions, both as JSON.

        Args:
            outputs: titles by key.
            inputs: title and `RuntimeArtifact` by key; on Kubeflow it has no type there.
        """
        artifacts = {key: dict(artifact) for key, (_, artifact) in (inputs or {}).items()}
        if self.place == "vertex":
            for key, (title, _) in (inputs or {}).items():
                artifacts[key]["type"] = self.type_of(title)
        made = {
            key: {"name": key, "uri": f"{self.address}/{key}", "type": self.type_of(outputs[key])} for key in outputs
        }
        # The open-source driver names the local path of its mirror; Vertex AI an address.
        local = f"/minio/{self.address.removeprefix('minio://')}/output_metadata.json"
        executor_input = {
            "inputs": {
                "artifacts": {key: {"artifacts": [artifact]} for key, artifact in artifacts.items()},
                "parameterValues": dict(parameters or {}),
            },
            "outputs": {
                "artifacts": {key: {"artifacts": [artifact]} for key, artifact in made.items()},
                "outputFile": local if self.place == "kubeflow" else f"{self.address}/executor_output.json",
            },
        }
        inputs_spec = {
            "artifacts": {
                key: {"artifactType": {"instanceSchema": f"title: {title}\n"}}
                for key, (title, _) in (inputs or {}).items()
            },
            "parameters": {
                key: {"parameterType": _KINDS.get(type(value), "STRUCT")} for key, value in (parameters or {}).items()
            },
        }
        return json.dumps(executor_input), json.dumps(inputs_spec)

    @property
    def output_file(self) -> Path:
        return self.folder / ("output_metadata.json" if self.place == "kubeflow" else "executor_output.json")

    def read_answer(self) -> Any:
        """The task's output file, parsed as strictly as the open-source launcher does."""
        from google.protobuf import json_format
        from kfp.pipeline_spec import pipeline_spec_pb2

        return json_format.Parse(self.output_file.read_text(encoding="utf-8"), pipeline_spec_pb2.ExecutorOutput())


@pytest.fixture(params=["kubeflow", "vertex"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(place: str, tmp_path: Path) -> Backend:
    return Backend(place, "SomeNode", Storage(str(tmp_path / "stores")))


@pytest.fixture
def kubeflow(tmp_path: Path) -> Backend:
    return Backend("kubeflow", "SomeNode", Storage(str(tmp_path / "stores")))


class CloudStorage(TensorflowFilesystem):
    """gs:// in a folder; what a push asks of it."""

    root: Path

    @classmethod
    def _at(cls, path: str) -> str:
        return str(cls.root / path.removeprefix("gs://"))

    @classmethod
    def open(cls, path: str, mode: str = "r") -> Any:
        os.makedirs(os.path.dirname(cls._at(path)), exist_ok=True)
        return TensorflowFilesystem.open(cls._at(path), mode)

    @classmethod
    def exists(cls, path: str) -> bool:
        return os.path.exists(cls._at(path))

    @classmethod
    def isdir(cls, path: str) -> bool:
        return os.path.isdir(cls._at(path))

    @classmethod
    def makedirs(cls, path: str) -> None:
        os.makedirs(cls._at(path), exist_ok=True)

    @classmethod
    def walk(cls, top: str, topdown: bool = True, onerror: Any = None) -> Iterator[tuple[str, list[str], list[str]]]:
        for folder, folders, files in os.walk(cls._at(top), topdown):
            yield f"gs://{os.path.relpath(folder, cls.root)}", folders, files

    @classmethod
    def copy(cls, src: str, dst: str, overwrite: bool = False) -> None:
        TensorflowFilesystem.copy(cls._at(src), cls._at(dst), overwrite)

    @classmethod
    def rename(cls, src: str, dst: str, overwrite: bool = False) -> None:
        TensorflowFilesystem.rename(cls._at(src), cls._at(dst), overwrite)


@pytest.fixture
def cloud_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where gs:// lies for those that go through TFX's filesystem layer."""
    CloudStorage.root = tmp_path / "cloud"
    registry = filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY
    monkeypatch.setitem(registry._preferred_filesystem_by_scheme, "gs://", CloudStorage)
    return CloudStorage.root


@pytest.fixture
def schema_file() -> Path:
    """A file of the package."""
    return _SCHEMA_FILE


@pytest.fixture
def schema_address(schema_file: Path) -> str:
    """The same, as a compiled job names it."""
    digest = hashlib.sha256(schema_file.read_bytes()).hexdigest()[:16]
    return f"package://detloom.schemas/example_schema.pbtxt?sha256={digest}"


@pytest.fixture
def task_log() -> None:
    """Logging as a container has it."""
    from detloom.pipelines.container.log import log_task

    log_task()
