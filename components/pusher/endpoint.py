"""Read what an endpoint of Vertex AI serves, and which models were rolled back there; undeploy models without requests.

An endpoint has no versions. Its models are those in the model registry with the endpoint's label, which `VertexPusher`
sets after a deployment, and all that are deployed now. It serves the model that gets most requests. A rollback at an
endpoint changes the traffic split or removes a deployed model: a model that was uploaded after the served one and gets
no requests was rolled back.
"""

import datetime
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from absl import logging

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.push import ENDPOINT_SCHEME

_ENDPOINT_LABEL = "detloom_endpoint"
_IDENTITY_LABELS = ("detloom_model_1", "detloom_model_2")  # a label has at most 63 characters, an identity has 64
_HALF = 32


@dataclass(frozen=True, kw_only=True)
class EndpointModel:
    """A model that is or was deployed at an endpoint.

    Attributes:
        name: its resource name.
        uri: address of its SavedModel; empty if it has none.
        identity: `Manifest.identity`; empty if something else deployed it.
        traffic_percent: its share of the requests.
    """

    name: str
    uri: str
    uploaded: datetime.datetime
    identity: str
    traffic_percent: int


def is_endpoint(address: str) -> bool:
    """Return True for an address of `VertexEndpoint.address`."""
    return address.startswith(ENDPOINT_SCHEME)


def read_endpoint(address: str) -> list[EndpointModel]:
    """Return all models that are or were deployed and still exist, the newest upload first.

    Raises:
        InputError: Vertex AI does not answer.
    """
    with _google_client(address) as aiplatform:
        endpoint = _find(aiplatform, address)
        if endpoint is None:
            return []
        split, traffic = endpoint.traffic_split, dict[str, int]()
        for deployed in endpoint.list_models():
            traffic[deployed.model] = traffic.get(deployed.model, 0) + split.get(deployed.id, 0)
        listed = aiplatform.Model.list(filter=f'labels.{_ENDPOINT_LABEL}="{endpoint.name}"')
        models = {model.resource_name: model for model in listed}
        models |= {name: aiplatform.Model(name) for name in traffic if name not in models}
        found = (
            EndpointModel(
                name=name,
                uri=model.uri or "",
                uploaded=model.create_time,
                identity="".join(model.labels.get(label, "") for label in _IDENTITY_LABELS),
                traffic_percent=traffic.get(name, 0),
            )
            for name, model in models.items()
        )
        return sorted(found, key=lambda model: model.uploaded, reverse=True)


def find_served(models: Sequence[EndpointModel]) -> EndpointModel | None:
    """Return the model that gets most requests, of several the newest; None if none gets requests."""
    busy = (model for model in models if model.traffic_percent)
    return max(busy, key=lambda model: (model.traffic_percent, model.uploaded), default=None)


def rolled_back_models(models: Sequence[EndpointModel]) -> list[EndpointModel]:
    """Return the models that were rolled back; none if the endpoint serves nothing."""
    served = find_served(models)
    return [each for each in models if served and each.uploaded > served.uploaded and not each.traffic_percent]


def rolled_back_identities_at(address: str) -> set[str]:
    """Return the identities of the models that were rolled back and do not serve under another name."""
    models = read_endpoint(address)
    serving = {model.identity for model in models if model.traffic_percent}
    return {model.identity for model in rolled_back_models(models)} - serving


def label_model(address: str, name: str, identity: str) -> None:
    """Label a deployed model in the registry, so that `read_endpoint` finds it when it is no longer deployed."""
    with _google_client(address) as aiplatform:
        endpoint = _find(aiplatform, address)
        halves = (identity[:_HALF], identity[_HALF:])
        labels = dict(zip(_IDENTITY_LABELS, halves, strict=True))
        model = aiplatform.Model(name)
        model.update(labels={**model.labels, **labels, _ENDPOINT_LABEL: endpoint.name})


def undeploy_old(address: str, keep: int, in_use: Container[str]) -> None:
    """Undeploy the oldest labelled models without requests until `keep` are deployed, because each costs its machines.

    Args:
        in_use: resource names of models that stay deployed although they get no requests now.
    """
    with _google_client(address) as aiplatform:
        endpoint = _find(aiplatform, address)
        listed = aiplatform.Model.list(filter=f'labels.{_ENDPOINT_LABEL}="{endpoint.name}"')
        names, split = {model.resource_name for model in listed}, endpoint.traffic_split
        ours = sorted(
            (deployed for deployed in endpoint.list_models() if deployed.model in names),
            key=lambda deployed: deployed.create_time,
        )
        unused = [each for each in ours if not split.get(each.id) and each.model not in in_use]
        for each in unused[: max(0, len(ours) - keep)]:
            endpoint.undeploy(each.id)
            logging.info("Pusher: undeployed %s, which got no requests.", each.model)


def _find(aiplatform: Any, address: str) -> Any:
    """Return the endpoint as TFX's Pusher finds it; None if there is none."""
    name = address.removeprefix(ENDPOINT_SCHEME).split("/", 2)[2]
    found = aiplatform.Endpoint.list(filter=f'display_name="{name}"')
    return found[0] if found else None


@contextmanager
def _google_client(address: str) -> Iterator[Any]:
    """Yield Google's client for the endpoint's project and region; raise its errors as InputError."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import aiplatform  # late: takes seconds

    project, region, _ = address.removeprefix(ENDPOINT_SCHEME).split("/", 2)
    aiplatform.init(project=project, location=region)
    try:
        yield aiplatform
    except (GoogleAPIError, GoogleAuthError) as error:
        raise InputError(
            f"{address}: a request to Vertex AI failed ({redact(str(error))}); allow the job's account to read and "
            "change endpoints and models (roles/aiplatform.user), or run again later."
        ) from None
