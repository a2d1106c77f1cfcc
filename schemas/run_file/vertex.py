"""Settings for Vertex AI."""

import re
from dataclasses import dataclass
from typing import Annotated

from detloom.schemas.errors import NotNegativeInt, Positive, PositiveInt, Ranged, check, check_not_empty
from detloom.schemas.run_file.accelerators import CLOUD_TPU, check_vertex_machine
from detloom.schemas.run_file.kubeflow import check_address
from detloom.schemas.run_file.nodes import check_image
from detloom.schemas.run_file.push import check_place

MOUNT = "/gcs/"  # where containers of Vertex AI see gs://
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+")
_NETWORK = re.compile(r"projects/[^/\s]+/global/networks/[^/\s]+")
_KEY = re.compile(r"projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+")


def mounted_path(address: str) -> str:
    """Return the path in containers of Vertex AI for an address at gs://."""
    return address.replace("gs://", MOUNT, 1)


@dataclass(frozen=True, kw_only=True)
class VertexTraining(Ranged):
    """Vertex AI custom job for training, instead of the machine of the pipeline's node."""

    machine_type: str
    """Machine type, such as n1-standard-8 or a2-highgpu-1g; with a TPU `cloud-tpu` (v2, v3) or ct5lp-hightpu-1t, -4t,
    -8t (v5e)."""
    accelerator_type: str = ""
    """Accelerator, such as NVIDIA_TESLA_T4, or TPU_V2, TPU_V3 with `cloud-tpu`; empty for none and for a TPU v5e."""
    accelerator_count: NotNegativeInt = 0
    """Number of GPUs per machine, or of TPU cores."""
    tpu_topology: str = ""
    """Topology of a TPU v5e slice, such as 2x2."""
    workers: PositiveInt = 1
    """Number of machines that train together."""
    image: str = ""
    """Container image instead of `vertex.image`; for a TPU, the image of Dockerfile.tpu."""
    spot: bool = False
    """Use spot machines, which cost less and may be preempted. Vertex AI restarts the job a few times, and training
    resumes."""
    boot_disk_gb: Annotated[int, "100 to 64000"] = 100
    """Boot disk of each machine in GB."""
    time_limit_hours: Positive = 24.0
    """Time limit of the job in hours."""

    @property
    def has_tpu(self) -> bool:
        """True if the machine has a TPU."""
        return self.machine_type == CLOUD_TPU or bool(self.tpu_topology)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_empty(self, "machine_type")
        check_vertex_machine(
            self.machine_type, self.accelerator_type, self.accelerator_count, self.tpu_topology, self.workers
        )
        if self.image:
            check_image("image", self.image)


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """Vertex AI Pipelines."""

    project: str
    """Id of the Google Cloud project."""
    region: str
    """Region, such as us-central1."""
    image: str
    """Container image with detloom, for all nodes without their own."""
    pipeline_root: str
    """Address for artifacts, at gs://."""
    service_account: str = ""
    """E-mail address of the nodes' service account; empty for the project's default."""
    network: str = ""
    """VPC network, such as projects/123/global/networks/name; empty for none."""
    encryption_key: str = ""
    """Resource name of a Cloud KMS key; empty for Google's default encryption."""
    labels: dict[str, str] | None = None
    """Labels of runs and jobs, for example for cost reports."""
    training: VertexTraining | None = None
    """Train in a custom job with its own machines, GPUs or TPU; null trains in the pipeline's node."""
    training_dir: str = ""
    """Address at gs:// of a folder where an interrupted training run is kept, so that the next pipeline run resumes it;
    empty keeps it in the folder of the pipeline run, where only retries of the node find it."""

    def __post_init__(self) -> None:
        check_place(self.project, self.region)
        check_image("image", self.image)
        check_address("pipeline_root", self.pipeline_root, ("gs://",))
        if self.training_dir:
            check_address("training_dir", self.training_dir, ("gs://",))
        for field, form, allowed in (
            ("service_account", _ACCOUNT, "the e-mail address of an account"),
            ("network", _NETWORK, "such as projects/123/global/networks/name"),
            ("encryption_key", _KEY, "such as projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"),
        ):
            value = getattr(self, field)
            check(not value or bool(form.fullmatch(value)), field, repr(value), allowed)
        for key, value in (self.labels or {}).items():
            is_label = bool(_LABEL.fullmatch(key)) and bool(re.fullmatch(r"[a-z0-9_-]{0,63}", value))
            check(is_label, "labels", f"{key}: {value}", "lower case letters, digits, '_', '-'; at most 63")
