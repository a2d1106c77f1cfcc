"""Requests to the API of Kubeflow Pipelines: kfp.Client signs in, its generated classes do the calls."""

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kfp_server_api
import urllib3
from kfp.client import Client

from detloom.pipelines.backends.api_errors import Kind, Server, failures_said
from detloom.schemas.errors import InputError
from detloom.schemas.kubeflow_config import Kubeflow
from detloom.schemas.secret_reference import parse_secret_reference

_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_CONNECT_RETRIES = 2  # nothing was sent then; what was sent is never sent again


class _Client(Client):  # type: ignore[misc, unused-ignore]
    """Its constructor asks the server for its namespace (five tries, five seconds apart); we say it ourselves."""

    def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
        return kfp_server_api.V2beta1GetHealthzResponse(multi_user=False)


@dataclass(frozen=True, kw_only=True)
class KubeflowApi:
    """The API at one address.

    Attributes:
        api_client: of kfp_server_api.
    """

    server: Server
    api_client: Any

    def call(self, service: str, method: str, what: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of a generated class, such as "Run", "get_run".

        kfp.Client's own methods are not used, as they know no time limits, and take a sign-in page for an empty list.

        Args:
            what: it is for, such as "read the run", for messages.

        Raises:
            ApiError: if it failed.
        """
        api = getattr(kfp_server_api, f"{service}ServiceApi")(self.api_client)
        prefix = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in service).lstrip("_")
        function = getattr(api, f"{method}_with_http_info", None)  # kfp_server_api 2.0; later ones have longer names
        function = function or getattr(api, f"{prefix}_service_{method}_with_http_info")
        limits = (_CONNECT_SECONDS, _READ_SECONDS)
        with failures_said(self.server, what):
            try:
                answer, _, headers = function(*arguments, **options, _request_timeout=limits)
            except (AttributeError, TypeError, ValueError) as error:  # from reading the answer
                raise kfp_server_api.ApiException(status=502, reason=f"no answer of the API ({error})") from None
        content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
        if "json" not in content_type.lower():
            raise self.server.error("signed out", what, "a page instead of the API's answer")
        return answer


def connect_kubeflow(settings: Kubeflow) -> KubeflowApi:
    """Sign in; nothing is asked yet.

    Beside `token`, kfp.Client knows other ways: cookies in ~/.config/kfp/context.json, Application Default Credentials
    for addresses at googleusercontent.com, and its environment variables KF_PIPELINES_*.

    Raises:
        InputError: for a missing address, token or certificate.
    """
    if not settings.host:
        raise InputError(
            "kubeflow.host: is empty; set the address of the API, such as https://kubeflow.example.org/pipeline."
        )
    if settings.ca_certificate and not Path(settings.ca_certificate).is_file():
        raise InputError(
            f"kubeflow.ca_certificate: '{settings.ca_certificate}' is no file; ask those who run the cluster for it."
        )
    token = read_token(settings.token)
    server = Server(
        name=f"Kubeflow Pipelines at {settings.host}",
        next_steps=_next_steps(settings),
        secrets=(token,),
    )
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each retry; the last failure is said anyway
    with warnings.catch_warnings(), failures_said(server, "sign in"):
        warnings.simplefilter("ignore")  # that servers older than 2.0 are not understood
        try:
            client = _Client(
                host=settings.host,
                namespace=settings.namespace,
                existing_token=token or None,
                ssl_ca_cert=settings.ca_certificate or None,
            )
        except ValueError:
            raise InputError("~/.config/kfp/context.json: is no JSON; remove it, or put it right.") from None
    api_client = client._run_api.api_client  # all its services share this one
    retries = urllib3.Retry(connect=_CONNECT_RETRIES, read=0, other=0, status=0, backoff_factor=0.5)
    api_client.rest_client.pool_manager.connection_pool_kw["retries"] = retries
    return KubeflowApi(server=server, api_client=api_client)


def read_token(reference: str) -> str:
    """The bearer token, or an empty text for no reference.

    Raises:
        InputError: for a reference that cannot be followed here, or a text that can be no token; without the text.
    """
    if not reference:
        return ""
    secret = parse_secret_reference(reference)
    if secret.kind != "env":
        raise InputError(
            f"kubeflow.token: got a reference of kind '{secret.kind}', which only containers can follow; "
            "allowed for commands: env:NAME, an environment variable of yours."
        )
    token = os.environ.get(secret.name, "").strip()
    if not token:
        raise InputError(
            f"kubeflow.token: the environment variable {secret.name} is not set; set it to a token of the API."
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(
            f"kubeflow.token: the environment variable {secret.name} holds no token, but spaces or line ends."
        )
    return token


def _next_steps(settings: Kubeflow) -> dict[Kind, str]:
    variable = parse_secret_reference(settings.token).name if settings.token else ""
    new_token = f"get a new token and set {variable} to it" if variable else "set kubeflow.token, such as env:KFP_TOKEN"
    return {
        "signed out": new_token,
        "forbidden": f"ask for the right to use pipelines in the namespace '{settings.namespace}'",
        "not found": "look at the id, and at kubeflow.host, which ends with /pipeline where a dashboard is in front",
        "unreachable": "look at kubeflow.host, at the network and at proxies, or use `kubectl port-forward`",
        "tls": "set kubeflow.ca_certificate to the certificate of the authority that signed it",
    }
