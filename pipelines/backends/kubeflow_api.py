"""Send requests to the API of Kubeflow Pipelines: kfp.Client signs in, its generated classes make the calls."""

import base64
import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kfp_server_api
import urllib3
from kfp.client import Client

from detloom.pipelines.backends.api_errors import ApiError, Kind, Server, translate_errors
from detloom.pipelines.backends.kubeflow_logs import log_path, node_path, tail_of
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import parse_secret_reference
from detloom.schemas.run_file.kubeflow import Kubeflow

_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_MAX_ARCHIVED_BYTES = 1 << 27  # of the answer, which is a third larger than the log
_CONNECT_RETRIES = 2  # nothing was sent yet; a request that was sent is never repeated


class _Client(Client):  # type: ignore[misc, unused-ignore]
    """A client whose constructor does not request the namespace from the server (five tries, five seconds apart)."""

    def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
        return kfp_server_api.V2beta1GetHealthzResponse(multi_user=False)


@dataclass(frozen=True, kw_only=True)
class KubeflowApi:
    """The API at one address.

    Attributes:
        api_client: the client of kfp_server_api.
    """

    server: Server
    api_client: Any

    def call(self, service: str, method: str, action: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of a generated class, such as "Run", "get_run".

        kfp.Client's own methods have no timeouts and treat a sign-in page as an empty list.

        Args:
            action: completes "could not" in messages, such as "read the run".

        Raises:
            ApiError: if the request failed.
        """
        api = getattr(kfp_server_api, f"{service}ServiceApi")(self.api_client)
        prefix = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in service).lstrip("_")
        # kfp_server_api 2.0; later versions have longer names
        function = getattr(api, f"{method}_with_http_info", None)
        function = function or getattr(api, f"{prefix}_service_{method}_with_http_info")
        limits = (_CONNECT_SECONDS, _READ_SECONDS)
        with translate_errors(self.server, action):
            try:
                answer, _, headers = function(*arguments, **options, _request_timeout=limits)
            except (AttributeError, TypeError, ValueError) as error:  # raised while parsing the response
                raise kfp_server_api.ApiException(status=502, reason=f"not a response of the API ({error})") from None
        content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
        if "json" not in content_type.lower():
            raise self.server.error("signed out", action, "got a page instead of a response of the API")
        return answer

    def send(self, method: str, path: str, action: str, **query: str) -> Any:
        """Send a request that no generated class knows, and return its JSON.

        Args:
            path: after the address of the API, quoted.

        Raises:
            ApiError: if the request failed.
        """
        with translate_errors(self.server, action):
            answer, _, _ = self.api_client.call_api(
                path,
                method,
                query_params=list(query.items()),
                response_type="object",
                auth_settings=["Bearer"],
                _request_timeout=(_CONNECT_SECONDS, _READ_SECONDS),
            )
        return answer

    def read_log(self, run_id: str, node: str) -> str:
        """Return the end of a node's log, from its pod or the archive.

        The user interface, which is the usual address, passes on requests for archived artifacts only.

        Raises:
            ApiError: if the request failed. A log that does not exist is the API's error as text.
        """
        try:
            with self._stream(log_path(run_id, node)) as answer:
                return tail_of(answer.stream(1 << 16))
        except ApiError as error:
            if error.kind != "not found":
                raise
        with self._stream(f"/apis/v2beta1/{node_path(run_id, node)}/artifacts/main-logs:read") as answer:
            try:
                return tail_of([base64.b64decode(json.loads(answer.read(_MAX_ARCHIVED_BYTES))["data"])])
            except (ValueError, KeyError, TypeError):  # a page, or too large
                return ""

    @contextlib.contextmanager
    def _stream(self, path: str) -> Iterator[Any]:
        with translate_errors(self.server, "read a log"):
            answer = self.api_client.call_api(
                path,
                "GET",
                auth_settings=["Bearer"],
                _preload_content=False,
                _request_timeout=(_CONNECT_SECONDS, _READ_SECONDS),
            )
            try:
                yield answer
            finally:
                answer.close()


def connect_kubeflow(settings: Kubeflow) -> KubeflowApi:
    """Sign in without sending a request.

    Besides `token`, kfp.Client supports cookies in ~/.config/kfp/context.json, Application Default Credentials for
    addresses at googleusercontent.com, and its environment variables KF_PIPELINES_*.

    Raises:
        InputError: for a missing address, token or certificate.
    """
    if not settings.host:
        raise InputError(
            "kubeflow.host: this is empty; set the address of the API, such as https://kubeflow.example.org/pipeline."
        )
    if settings.ca_certificate and not Path(settings.ca_certificate).is_file():
        raise InputError(
            f"kubeflow.ca_certificate: '{settings.ca_certificate}' is not a file; get it from the cluster's operators."
        )
    token = read_token(settings.token)
    server = Server(
        name=f"Kubeflow Pipelines at {settings.host}",
        next_steps=_next_steps(settings),
        secrets=(token,),
    )
    # it warns about each retry; the last failure is reported in any case
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    with warnings.catch_warnings(), translate_errors(server, "sign in"):
        warnings.simplefilter("ignore")  # kfp warns that it does not support servers older than 2.0
        try:
            client = _Client(
                host=settings.host,
                namespace=settings.namespace,
                existing_token=token or None,
                ssl_ca_cert=settings.ca_certificate or None,
            )
        except ValueError:
            raise InputError("~/.config/kfp/context.json: this is not JSON; remove or correct it.") from None
    api_client = client._run_api.api_client  # shared by all services of the client
    retries = urllib3.Retry(connect=_CONNECT_RETRIES, read=0, other=0, status=0, backoff_factor=0.5)
    api_client.rest_client.pool_manager.connection_pool_kw["retries"] = retries
    return KubeflowApi(server=server, api_client=api_client)


def read_token(reference: str) -> str:
    """Return the bearer token; empty without a reference.

    Raises:
        InputError: if the reference cannot be resolved here, or its value is not a token; the message hides the value.
    """
    if not reference:
        return ""
    secret = parse_secret_reference(reference)
    if secret.kind != "env":
        raise InputError(
            f"kubeflow.token: got a reference of kind '{secret.kind}', which only containers can resolve; "
            "allowed for commands: env:NAME, the name of an environment variable."
        )
    token = os.environ.get(secret.name, "").strip()
    if not token:
        raise InputError(
            f"kubeflow.token: the environment variable {secret.name} is not set; set it to a token of the API."
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(
            f"kubeflow.token: the value of {secret.name} must not contain spaces, line breaks or special characters."
        )
    return token


def _next_steps(settings: Kubeflow) -> dict[Kind, str]:
    variable = parse_secret_reference(settings.token).name if settings.token else ""
    new_token = f"get a new token and set {variable} to it" if variable else "set kubeflow.token, such as env:KFP_TOKEN"
    return {
        "signed out": new_token,
        "forbidden": f"ask for permission to use pipelines in the namespace '{settings.namespace}'",
        "not found": "check the id and kubeflow.host, which ends with /pipeline behind a dashboard",
        "unreachable": "check kubeflow.host, the network and proxies, or use `kubectl port-forward`",
        "tls": "set kubeflow.ca_certificate to the certificate of the authority that signed it",
    }
