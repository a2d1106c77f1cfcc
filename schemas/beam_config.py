"""Where the work of nodes that use Apache Beam is done, when it is not done in the node itself."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields

BeamNode = Literal["DetectionExampleGen", "StatisticsGen", "DatasetValidator", "DetectionEvaluator"]
_FOLDERS_ONLY = "DatasetValidator"


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Google Cloud Dataflow, for Vertex AI and Kubeflow with artifacts at gs://: its workers see addresses only."""

    project: str
    """Id of the Google Cloud project."""
    region: str
    """Such as us-central1."""
    temp_location: str
    """A gs:// folder for what jobs leave for a while."""
    worker_image: str = ""
    """Image of the workers, made with the target `beam` of our Dockerfile; empty ships the package to Beam's own image,
    where each worker first installs what it needs."""
    machine_type: str = "n1-standard-4"
    """Of the workers."""
    max_workers: int = 8
    """Workers at most."""
    service_account: str = ""
    """E-mail address of the account that workers run as; empty for the project's default."""
    subnetwork: str = ""
    """Such as regions/us-central1/subnetworks/name; empty for the default network."""

    def __post_init__(self) -> None:
        check(bool(self.project), "project", "nothing", "the id of a project")
        check(bool(self.region), "region", "nothing", "a region such as us-central1")
        is_address = self.temp_location.startswith("gs://") and len(self.temp_location) > len("gs://")
        check(is_address, "temp_location", repr(self.temp_location), "a folder at gs://")
        check_fields(self, "1 or more", "max_workers")


@dataclass(frozen=True, kw_only=True)
class Flink:
    """An Apache Flink cluster, whose task managers see the same folders or addresses as the node."""

    master: str
    """Address of the REST server, such as flink-jobmanager:8081."""
    parallelism: int = 2
    """Parts that run side by side."""
    version: Literal["1.17", "1.18", "1.19"] = "1.19"
    """Of Flink: those that Beam 2.61 has a job server for."""
    job_server_jar: str = ""
    """Path or address of Beam's job server for that version; empty takes it from Maven Central."""
    environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS", "LOOPBACK"] = "EXTERNAL"
    """How task managers start Python: EXTERNAL asks a worker pool beside each of them, which runs our image."""
    environment_config: str = "localhost:50000"
    """With EXTERNAL the worker pool's address, with DOCKER an image, with PROCESS a JSON text with its command."""

    def __post_init__(self) -> None:
        check(":" in self.master, "master", repr(self.master), "host:port")
        check_fields(self, "1 or more", "parallelism")
        needs_config = self.environment_type != "LOOPBACK"
        has_config = bool(self.environment_config) or not needs_config
        check(has_config, "environment_config", "nothing", f"what {self.environment_type} needs", "environment_type")


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Where the work of nodes that use Apache Beam is done."""

    nodes: tuple[BeamNode, ...] = ("StatisticsGen", "DetectionEvaluator")
    """Which nodes give their work away; the others do it themselves, as `beam_args` say."""
    dataflow: Dataflow | None = None
    """Give it to Dataflow; on one machine, the nodes then do it themselves."""
    flink: Flink | None = None
    """Give it to a Flink cluster."""

    def __post_init__(self) -> None:
        is_one = (self.dataflow is None) != (self.flink is None)
        check(is_one, "dataflow", "both or neither of dataflow and flink", "one of the two", "flink")
        check(len(set(self.nodes)) == len(self.nodes) > 0, "nodes", list(self.nodes), "at least one, each once")
        is_reachable = self.dataflow is None or _FOLDERS_ONLY not in self.nodes
        got = f"{_FOLDERS_ONLY}, whose workers need a folder that all of them see"
        allowed = "the others with Dataflow, whose workers see addresses only"
        check(is_reachable, "nodes", got, allowed, "dataflow")
