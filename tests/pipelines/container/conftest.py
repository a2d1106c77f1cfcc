"""Tasks in the form in which the two backends pass them to a container; a folder replaces the object store."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import detloom.schemas.contracts
from detloom.pipelines.container.task_storage import TaskStorage

_ADDRESSES = {"kubeflow": "minio://mlpipeline/v2/demo", "vertex": "gs://bucket/root/123/demo-20260101"}
_KINDS = {str: "STRING", int: "NUMBER_INTEGER", float: "NUMBER_DOUBLE"}
_SCHEMA_FILE = next(
    file for folder in detloom.schemas.contracts.__path__ if (file := Path(folder) / "example_schema.pbtxt").is_file()
)


@dataclass(frozen=True)
class Backend:
    """A task of one backend; `TaskStorage.root` replaces the root of the container's file system."""

    place: str
    node: str
    storage: TaskStorage

    @property
    def address(self) -> str:
        """Return the address above the task's outputs."""
        root = _ADDRESSES[self.place]
        return f"{root}/{self.node}/7f3a" if self.place == "kubeflow" else f"{root}/{self.node}_42"

    @property
    def folder(self) -> Path:
        """Return the path of `address` in the container."""
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
        """Return `ExecutorInput` in the backend's form, and the definitions of the inputs, both as JSON.

        Args:
            outputs: titles by key.
            inputs: title and `RuntimeArtifact` by key; on Kubeflow it has no type.
        """
        artifacts = {key: dict(artifact) for key, (_, artifact) in (inputs or {}).items()}
        if self.place == "vertex":
            for key, (title, _) in (inputs or {}).items():
                artifacts[key]["type"] = self.type_of(title)
        made = {
            key: {"name": key, "uri": f"{self.address}/{key}", "type": self.type_of(outputs[key])} for key in outputs
        }
        # The open-source driver passes the local path of the copy; Vertex AI passes an address.
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

    def read_output(self) -> Any:
        """Parse the output file as strictly as the open-source launcher does."""
        from google.protobuf import json_format
        from kfp.pipeline_spec import pipeline_spec_pb2

        return json_format.Parse(self.output_file.read_text(encoding="utf-8"), pipeline_spec_pb2.ExecutorOutput())


@pytest.fixture(params=["kubeflow", "vertex"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(place: str, tmp_path: Path) -> Backend:
    return Backend(place, "SomeNode", TaskStorage(str(tmp_path / "stores")))


@pytest.fixture
def kubeflow(tmp_path: Path) -> Backend:
    return Backend("kubeflow", "SomeNode", TaskStorage(str(tmp_path / "stores")))


@pytest.fixture
def schema_file() -> Path:
    """Return the path of a file of the package."""
    return _SCHEMA_FILE


@pytest.fixture
def schema_address(schema_file: Path) -> str:
    """Return the address of `schema_file` in compiled jobs."""
    digest = hashlib.sha256(schema_file.read_bytes()).hexdigest()[:16]
    return f"package://detloom.schemas.contracts/example_schema.pbtxt?sha256={digest}"


@pytest.fixture
def task_log() -> None:
    """Configure logging as in a container."""
    from detloom.pipelines.container.run_node import log_task

    log_task()
