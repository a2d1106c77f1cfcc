"""Settings for Kubeflow Pipelines, the open-source backend."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import FieldError, check, check_not_empty, check_unique
from detloom.schemas.reading.redact import check_secret_reference, hide_secrets
from detloom.schemas.run_file.nodes import NodeName, check_image
from detloom.schemas.run_file.schedule import check_timezone

PIPELINE_ROOT_SCHEMES = ("minio://", "s3://", "gs://")
_ACCOUNT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # a DNS name
_THIS_MACHINE = re.compile(r"https?://(localhost|127\.[0-9.]+|\[::1\])(:|/|$)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_address(field: str, address: str, schemes: tuple[str, ...]) -> None:
    """Raise FieldError unless the text is an address at one of the schemes, without a user or parameters."""
    is_address = address.startswith(schemes) and not address.endswith("://")
    check(is_address, field, repr(address), f"an address at {', '.join(schemes)}")
    if hide_secrets(address) != address:
        raise FieldError(field, "must not contain a user or parameters.")


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A Kubernetes volume that is mounted in the nodes whose settings contain a path on it."""

    claim: str
    """Name of the PersistentVolumeClaim, which must allow access from all nodes at the same time."""
    mount_path: str
    """Folder in the containers."""
    nodes: tuple[NodeName, ...] = ()
    """Further nodes that get the volume; "*" for all."""

    def __post_init__(self) -> None:
        check_not_empty(self, "claim")
        check(self.mount_path.startswith("/"), "mount_path", repr(self.mount_path), "an absolute path")


@dataclass(frozen=True, kw_only=True)
class SecretVariable:
    """A Kubernetes secret as an environment variable of every node."""

    variable: str
    """Name of the environment variable."""
    secret: str
    """Name of the secret."""
    key: str
    """Key in the secret."""

    def __post_init__(self) -> None:
        is_name = bool(_ENV_NAME.fullmatch(self.variable))
        check(is_name, "variable", repr(self.variable), "the name of an environment variable")
        check_not_empty(self, "secret", "key")


@dataclass(frozen=True, kw_only=True)
class Kubeflow:
    """Kubeflow Pipelines on a Kubernetes cluster."""

    host: str = ""
    """Address of the API, such as https://kubeflow.example.org/pipeline; required for submitting."""
    ui: str = ""
    """Address of the web interface for links, also in notifications; empty uses `host`, and notifications have no link
    if that is this machine, as with `kubectl port-forward`."""
    namespace: str = "kubeflow"
    """Namespace of the runs."""
    experiment: str = "Default"
    """Experiment of runs and schedules; it is created if it does not exist."""
    token: str = ""
    """Reference to the bearer token of the API, such as env:KFP_TOKEN; empty for none."""
    schedule_timezone: str = "UTC"
    """Time zone of the cluster's schedules (`cronScheduleTimezone` of the installation); `schedule.timezone` must be
    the same."""
    ca_certificate: str = ""
    """File on this machine, relative to the run file, with the CA certificate of the API; empty for the system's CA
    certificates."""
    image: str
    """Container image with detloom, for all nodes without their own; with a digest (name@sha256:...), it is the same in
    all runs."""
    service_account: str = ""
    """Kubernetes service account of the pods, with the rights of the installation's default account; empty uses that
    account."""
    run_as_user: int | None = 1000
    """User id of the containers, not 0; null uses the image's user, for clusters that assign ids, such as OpenShift,
    and for Kubeflow Pipelines before 2.16."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Condition for pulling the image again."""
    image_pull_secrets: tuple[str, ...] = ()
    """Kubernetes secrets with the credentials of a registry."""
    pipeline_root: str = ""
    """Address for artifacts: minio://, s3:// or gs://; empty uses the server's default."""
    volumes: tuple[Volume, ...] = ()
    """Volumes for data or pushed models."""
    secrets: tuple[SecretVariable, ...] = ()
    """Kubernetes secrets as environment variables of every node."""
    training_dir: str = ""
    """Folder on a volume where an interrupted training run is kept, so that the next attempt resumes it; empty starts
    again from the beginning."""

    def __post_init__(self) -> None:
        for field in ("host", "ui"):
            address = getattr(self, field)
            is_host = not address or address.startswith(("http://", "https://"))
            is_bare = not set("@?#") & set(address) and hide_secrets(address) == address  # it is logged
            if not (is_host and is_bare):
                raise FieldError(field, "must begin with http:// or https:// and have no user, query or fragment.")
        check_not_empty(self, "namespace", "experiment")
        check_secret_reference("token", self.token)
        check_timezone("schedule_timezone", self.schedule_timezone)
        check_image("image", self.image)
        is_account = not self.service_account or bool(_ACCOUNT.fullmatch(self.service_account))
        check(is_account, "service_account", repr(self.service_account), "a name in Kubernetes, such as trainer")
        is_user = self.run_as_user is None or self.run_as_user >= 1
        check(is_user, "run_as_user", self.run_as_user, "1 or more, or null")
        if self.pipeline_root:
            check_address("pipeline_root", self.pipeline_root, PIPELINE_ROOT_SCHEMES)
        check_unique("volumes", (volume.mount_path for volume in self.volumes))
        check_unique("secrets", (secret.variable for secret in self.secrets))
        is_path = not self.training_dir or self.training_dir.startswith("/")
        check(is_path, "training_dir", repr(self.training_dir), "an absolute path")

    @property
    def public_ui(self) -> str:
        """Address of the web interface for people at other machines; empty if none is known."""
        return self.ui or ("" if _THIS_MACHINE.match(self.host) else self.host)
