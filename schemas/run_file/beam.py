"""Dataflow and Flink, which can run the work of nodes that use Apache Beam."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import check, check_fields

BeamNode = Literal["DetectionExampleGen", "StatisticsGen", "DatasetValidator", "DetectionEvaluator"]


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Google Cloud Dataflow, for Vertex AI and Kubeflow with artifacts at gs://; its workers can read addresses
    only."""

    project: str
    """Id of the Google Cloud project."""
    region: str
    """Region, such as us-central1."""
    temp_location: str
    """A gs:// folder for temporary files."""
    worker_image: str
    """Container image of the workers, built with the target `beam` of detloom's Dockerfile from the same version as the
    pipeline's image."""
    machine_type: str = "n1-standard-4"
    """Machine type of the workers."""
    max_workers: int = 8
    """Largest number of workers."""
    service_account: str = ""
    """E-mail address of the workers' service account; empty for the project's default."""
    subnetwork: str = ""
    """Subnetwork, such as regions/us-central1/subnetworks/name; empty for the default network."""

    def __post_init__(self) -> None:
        check(bool(self.project), "project", "nothing", "the id of a project")
        check(bool(self.region), "region", "nothing", "a region such as us-central1")
        is_address = self.temp_location.startswith("gs://") and len(self.temp_location) > len("gs://")
        allowed = "an image built with the target `beam` of detloom's Dockerfile"
        check(bool(self.worker_image), "worker_image", "nothing", allowed)
        check(is_address, "temp_location", repr(self.temp_location), "a folder at gs://")
        check_fields(self, "1 or more", "max_workers")


@dataclass(frozen=True, kw_only=True)
class Flink:
    """An Apache Flink cluster whose task managers can read the same folders or addresses as the node."""

    master: str
    """Address of the REST server, such as flink-jobmanager:8081."""
    parallelism: int = 2
    """Number of parallel parts."""
    version: Literal["1.17", "1.18", "1.19", "1.20", "2.0", "2.1", "2.2"] = "1.19"
    """Version of Flink, which the installed Beam must support; Beam 2.61 (TFX 1.16) knows up to 1.19, and Beam 2.77
    (TFX 1.21) 1.19 and newer."""
    job_server_jar: str = ""
    """Path or address of Beam's job server for this version. Empty uses, on one machine, the one that
    `scripts/flink_cluster.py jar` has built in the user's cache folder; Maven Central has none for these versions of
    Beam."""
    environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS", "LOOPBACK"] = "EXTERNAL"
    """Method by which task managers start Python; EXTERNAL uses a worker pool next to each of them, which runs
    detloom's image."""
    environment_config: str = "localhost:50000"
    """With EXTERNAL the address of the worker pool, with DOCKER an image, with PROCESS a JSON text with the command."""

    def __post_init__(self) -> None:
        check(":" in self.master, "master", repr(self.master), "host:port")
        check_fields(self, "1 or more", "parallelism")
        needs_config = self.environment_type != "LOOPBACK"
        has_config = bool(self.environment_config) or not needs_config
        allowed = f"a value for {self.environment_type}"
        check(has_config, "environment_config", "nothing", allowed, "environment_type")


@dataclass(frozen=True, kw_only=True)
class Beam:
    """External runners for nodes that use Apache Beam."""

    nodes: tuple[BeamNode, ...] = ("StatisticsGen", "DetectionEvaluator")
    """Nodes whose work runs on Dataflow or Flink; other nodes use `beam_args`."""
    dataflow: Dataflow | None = None
    """Run on Dataflow; if the pipeline runs on one machine, the nodes run locally instead."""
    flink: Flink | None = None
    """Run on a Flink cluster."""

    def __post_init__(self) -> None:
        is_one = (self.dataflow is None) != (self.flink is None)
        check(is_one, "dataflow", "both or none of dataflow and flink", "one of the two", "flink")
        check(len(set(self.nodes)) == len(self.nodes) > 0, "nodes", list(self.nodes), "at least one, each once")
