"""Parameters of Notifier and FailureNotifier; their names in TFX stand here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detloom.components.notifier.read_secret import references_of
from detloom.schemas.errors import InputError
from detloom.schemas.notifications_config import Notifications
from detloom.schemas.run_file import Place
from detloom.schemas.secret_reference import parse_secret_reference
from detloom.schemas.typed_dict import from_json, to_canonical_json

PIPELINE = "pipeline"
NOTIFICATIONS = "notifications"  # canonical JSON of `Notifications`
PLACE = "place"
KUBEFLOW_HOST = "kubeflow_host"
RUN_NAME = "run_name"
RUN_ID = "run_id"
NONCE = "nonce"
CODE_FINGERPRINT = "code_fingerprint"
FINAL_STATUS = "final_status"
PROPERTY_TYPES: dict[str, type] = {
    PIPELINE: str,
    NOTIFICATIONS: str,
    PLACE: str,
    KUBEFLOW_HOST: str,
    RUN_NAME: str,
    RUN_ID: str,
    NONCE: str,
    CODE_FINGERPRINT: str,
}
_MARK = "{{$"
# Both backends put these in place of a parameter that is such a constant: kubeflow/pipelines,
# backend/src/v2/driver/resolve.go, and the constants PIPELINE_JOB_* of sdk/python/kfp/dsl/__init__.py.
_RUN_NAME_ON_CLUSTERS = "{{$.pipeline_job_name}}"
_RUN_IDS: dict[Place, str] = {"kubeflow": "{{$.pipeline_job_uuid}}", "vertex": "{{$.pipeline_job_resource_name}}"}


@dataclass(frozen=True, kw_only=True)
class NotifierParams:
    """Who is told, and of which pipeline.

    Attributes:
        kubeflow_host: address of the interface, for a link to the run.
        nonce: another one for each run keeps TFX's cache from answering.
        code_fingerprint: of the node's source; only makes TFX's cache see a change of code.
    """

    pipeline: str
    notifications: Notifications
    place: Place
    kubeflow_host: str = ""
    nonce: str = ""
    code_fingerprint: str = ""

    def to_properties(self) -> dict[str, Any]:
        return {
            PIPELINE: self.pipeline,
            NOTIFICATIONS: to_canonical_json(self.notifications),
            PLACE: self.place,
            KUBEFLOW_HOST: self.kubeflow_host,
            RUN_NAME: "" if self.place == "local" else _RUN_NAME_ON_CLUSTERS,
            RUN_ID: _RUN_IDS.get(self.place, ""),
            NONCE: self.nonce,
            CODE_FINGERPRINT: self.code_fingerprint,
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "NotifierParams":
        """Other properties, which TFX adds, are left alone."""
        return cls(
            pipeline=properties[PIPELINE],
            notifications=from_json(Notifications, properties[NOTIFICATIONS]),
            place=properties[PLACE],
            kubeflow_host=properties.get(KUBEFLOW_HOST, ""),
            nonce=properties.get(NONCE, ""),
            code_fingerprint=properties.get(CODE_FINGERPRINT, ""),
        )


def run_property(properties: Mapping[str, Any], name: str) -> str:
    """RUN_NAME or RUN_ID as the backend filled it in; "" where it did not."""
    value = str(properties.get(name) or "")
    return "" if _MARK in value else value


def check_reachable(notifications: Notifications, place: Place) -> None:
    """Raise InputError for a secret that a job at this place can never read."""
    kinds = {parse_secret_reference(each).kind for each in references_of(notifications)}
    if place == "vertex" and "kubernetes" in kinds:
        raise InputError(
            "notifications: got a reference to a Kubernetes secret, allowed on Vertex AI: secret_manager:projects/..., "
            "or env:NAME that the image sets. Keep that secret in Secret Manager, or overrule the reference with --set."
        )
