"""Settings for pushing models to a folder of versions or to an endpoint."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import FieldError, PositiveInt, Ranged, check, check_fields, check_not_empty

ClassChange = Literal["none", "grow", "any"]
ENDPOINT_SCHEME = "vertex://"
REMOTE_SCHEMES = ("gs://", "s3://", "az://")
LOCK_SECONDS, LOAD_SECONDS = 1800.0, 600.0
_MIN_KEPT = 2  # the one that serves and the previous one
_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_ENDPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,127}")


def check_kept(field: str, number: int) -> None:
    """Raise FieldError for a number of versions or models that leaves none for a rollback."""
    allowed = f"0 (all), or {_MIN_KEPT} or more: the one that serves and the one for a rollback"
    check(number == 0 or number >= _MIN_KEPT, field, number, allowed)


def check_place(project: str, region: str) -> None:
    """Raise FieldError unless the texts look like the id of a Google Cloud project and like a region."""
    check(bool(_PROJECT.fullmatch(project)), "project", repr(project), "the id of a project")
    check(bool(_REGION.fullmatch(region)), "region", repr(region), "a region such as us-central1")


@dataclass(frozen=True, kw_only=True)
class VertexEndpoint(Ranged):
    """An endpoint of Vertex AI, instead of a folder of versions."""

    project: str
    """Id of the Google Cloud project."""
    region: str
    """Region, such as us-central1."""
    endpoint_name: str
    """Display name of the endpoint; the endpoint is created if it does not exist."""
    container_image: str
    """Serving container, such as one of Vertex AI's prebuilt TensorFlow containers."""
    machine_type: str = "n1-standard-4"
    """Machine type for serving."""
    min_replicas: PositiveInt = 1
    """Smallest number of machines."""
    max_replicas: PositiveInt = 1
    """Largest number of machines."""
    accelerator_type: str = ""
    """Accelerator, such as NVIDIA_TESLA_T4; empty for none."""
    accelerator_count: PositiveInt = 1
    """Number of accelerators per machine, with `accelerator_type`."""
    traffic_percent: Annotated[int, "1 to 100"] = 100
    """Percentage of requests for the new model. Less than 100 makes it a canary; the existing models share the rest in
    proportion. The first model of an endpoint gets all requests."""
    keep_deployed: int = 2
    """Number of models to keep deployed of those that detloom has deployed, at least 2; each one costs its machines. A
    push undeploys the oldest ones without requests, which stay in the model registry. 0 keeps all."""

    @property
    def address(self) -> str:
        """The endpoint as one text: vertex://PROJECT/REGION/ENDPOINT_NAME."""
        return f"{ENDPOINT_SCHEME}{self.project}/{self.region}/{self.endpoint_name}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_place(self.project, self.region)
        allowed = "letters, digits, space, '_', '.', '-'; at most 128"
        is_name = bool(_ENDPOINT_NAME.fullmatch(self.endpoint_name))
        check(is_name, "endpoint_name", repr(self.endpoint_name), allowed)  # it is quoted in a filter expression
        check_not_empty(self, "container_image", "machine_type")
        allowed = f"at most max_replicas ({self.max_replicas})"
        check(self.min_replicas <= self.max_replicas, "min_replicas", self.min_replicas, allowed, "max_replicas")
        check_kept("keep_deployed", self.keep_deployed)


@dataclass(frozen=True, kw_only=True)
class Push:
    """Settings for pushing models."""

    allow_class_change: ClassChange = "none"
    """Class lists that may replace that of the model that serves: `none` only the same one, `grow` also one with more
    classes if the others keep their ids, `any` every one."""
    keep_versions: int = 0
    """Number of newest versions to keep in the folder, at least 2; 0 keeps all."""
    load_seconds: float = LOAD_SECONDS
    """Time limit in seconds for the test before the push, which loads a copy of the model and runs it on one image."""
    lock_seconds: float = LOCK_SECONDS
    """Largest waiting time in seconds for another push into the same folder."""
    vertex: VertexEndpoint | None = None
    """Deploy to an endpoint of Vertex AI instead of a folder."""

    def __post_init__(self) -> None:
        check_kept("keep_versions", self.keep_versions)
        if self.vertex is not None and self.keep_versions:
            raise FieldError("keep_versions", "an endpoint has push.vertex.keep_deployed instead.", "vertex")
        check_fields(self, "above 0", "load_seconds", "lock_seconds")


def is_remote(address: str) -> bool:
    """Return True for an address to which models can be pushed, with a path after the scheme."""
    return any(address.startswith(scheme) and len(address) > len(scheme) for scheme in REMOTE_SCHEMES)
