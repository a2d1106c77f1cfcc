"""Fixtures: addresses without a network, and Beam workers in separate processes."""

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FIRST_UPLOAD = datetime(2026, 3, 1, tzinfo=timezone.utc)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def file_address(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """Return a function that returns the address of a local folder, which is read like one of an object store."""
    from file_addresses import SCHEME, local_path

    from detloom.components.storage.storage import LocalStorage

    monkeypatch.setattr("detloom.components.storage.storage.REMOTE_SCHEMES", (SCHEME,))
    monkeypatch.setattr("detloom.components.storage.storage.BucketStorage", lambda root: LocalStorage(local_path(root)))
    return lambda folder: f"{SCHEME}{folder}"


@pytest.fixture
def portable_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the options of a Flink cluster, with Beam's Python job service instead of Flink's, which needs Java.

    The service starts workers with the command `python`, which must be this one, and which imports this package.
    """
    from apache_beam.runners.portability.local_job_service import LocalJobServicer
    from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)  # not the checkout: workers import only from PYTHONPATH
    jobs = LocalJobServicer(str(tmp_path / "staging"))
    port = jobs.start_grpc_server()
    address, workers = BeamFnExternalWorkerPoolServicer.start(use_process=True)
    service = ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}"]
    yield [*service, "--environment_type=EXTERNAL", f"--environment_config={address}", "--parallelism=2"]
    jobs.stop()
    workers.stop(1)


class FakeVertex:
    """Google's client with a model registry and at most one endpoint.

    Attributes:
        models: the registry by resource name.
        deployed: resource names of the deployed models by id.
        traffic: percentages by id.
    """

    def __init__(self) -> None:
        self.models: dict[str, SimpleNamespace] = {}
        self.deployed: dict[str, str] = {}
        self.traffic: dict[str, int] = {}
        self.num_deployments = 0
        self.endpoints: list[Any] = []
        self.initialized_with: dict[str, str] = {}
        self.Endpoint = SimpleNamespace(list=self._list_endpoints, create=self._create_endpoint)
        self.Model = _FakeModel(self)

    def init(self, **options: str) -> None:
        self.initialized_with = options

    def upload(self, uri: str = "", **labels: str) -> str:
        """Register a model, later than those before it; return its resource name."""
        name = f"projects/1/models/{len(self.models) + 1}"
        at = FIRST_UPLOAD + timedelta(days=len(self.models))
        model = SimpleNamespace(resource_name=name, uri=uri, create_time=at, labels=labels, wait=lambda: None)
        model.update = lambda labels: setattr(model, "labels", labels)
        model.deploy = lambda endpoint, traffic_percentage, **_: self.deploy(name, traffic_percentage)
        self.models[name] = model
        return name

    def deploy(self, name: str, percent: int) -> None:
        """Deploy a model; those before it share the rest of the traffic."""
        if not self.endpoints:
            self._create_endpoint("cells")
        self.traffic = {each: old * (100 - percent) // 100 for each, old in self.traffic.items()}
        number = str(self.num_deployments)
        self.num_deployments += 1
        self.deployed[number], self.traffic[number] = name, percent

    def undeploy(self, name: str) -> None:
        for each in [each for each, model in self.deployed.items() if model == name]:
            del self.deployed[each]
            self.traffic.pop(each, None)

    def _create_endpoint(self, display_name: str, labels: Any = None) -> Any:
        vertex = self

        class Endpoint:
            name, resource_name = "77", "projects/1/endpoints/77"
            traffic_split = property(lambda _: vertex.traffic)

            def list_models(self) -> list[SimpleNamespace]:
                return [
                    SimpleNamespace(id=each, model=name, create_time=FIRST_UPLOAD + timedelta(hours=int(each)))
                    for each, name in reversed(vertex.deployed.items())
                ]

            def undeploy(self, deployed_model_id: str) -> None:
                del vertex.deployed[deployed_model_id], vertex.traffic[deployed_model_id]

        endpoint = Endpoint()
        self.endpoints.append((display_name, endpoint))
        return endpoint

    def _list_endpoints(self, filter: str) -> list[Any]:
        return [endpoint for name, endpoint in self.endpoints if filter == f'display_name="{name}"']


class _FakeModel:
    def __init__(self, vertex: FakeVertex) -> None:
        self._vertex = vertex

    def __call__(self, name: str) -> SimpleNamespace:
        return self._vertex.models[name]

    def list(self, filter: str) -> list[SimpleNamespace]:
        key, _, value = filter.removeprefix("labels.").partition("=")
        return [model for model in self._vertex.models.values() if model.labels.get(key) == value.strip('"')]

    def upload(self, display_name: str, artifact_uri: str, serving_container_image_uri: str) -> SimpleNamespace:
        return self._vertex.models[self._vertex.upload(artifact_uri)]


@pytest.fixture
def vertex(monkeypatch: pytest.MonkeyPatch) -> FakeVertex:
    """Replace Google's client, for TFX as well; no network access."""
    from google.cloud import aiplatform  # the attribute that is replaced
    from tfx.extensions.google_cloud_ai_platform import prediction_clients

    assert aiplatform
    fake = FakeVertex()
    monkeypatch.setattr("google.cloud.aiplatform", fake)
    monkeypatch.setattr(prediction_clients, "aiplatform", fake)
    return fake


@pytest.fixture(scope="session")
def png_without_last_row() -> bytes:
    """A black PNG of 64 x 64 pixels whose data end one row early: Pillow decodes it, TensorFlow does not."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = (64).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress(bytes(63 * (1 + 3 * 64)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
