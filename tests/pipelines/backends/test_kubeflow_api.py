import socket
import ssl
import subprocess
import threading

import kfp_server_api
import pytest
import urllib3
from fake_backends.kubeflow import Answer, error

from detloom.pipelines.backends import kubeflow_api
from detloom.pipelines.backends.api_errors import ApiError
from detloom.pipelines.backends.kubeflow_api import connect_kubeflow, read_token
from detloom.schemas.errors import InputError
from detloom.schemas.kubeflow_config import Kubeflow

TOKEN = "eyJhbGciOiJSUzI1NiJ9.planted"


def settings(host, **changes):
    return Kubeflow(host=host, image="x/detloom:1", **changes)


def list_experiments(api):
    return api.call("Experiment", "list_experiments", "read the experiments", namespace="kubeflow")


def refusal(api):
    with pytest.raises(ApiError) as caught:
        list_experiments(api)
    return caught.value


def test_nothing_is_asked_before_the_first_call(cluster):
    api = connect_kubeflow(settings(cluster.host))
    assert cluster.requests == []
    assert list_experiments(api).experiments is None
    assert [each[:2] for each in cluster.requests] == [("GET", "/experiments")]


def test_the_token_is_sent_as_a_bearer_token(cluster, monkeypatch):
    cluster.token = TOKEN
    monkeypatch.setenv("KFP_TOKEN", f"{TOKEN}\n")
    api = connect_kubeflow(settings(cluster.host, token="env:KFP_TOKEN"))
    list_experiments(api)
    assert cluster.requests[0][2]["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(api)


def test_an_expired_token_is_said_with_its_variable_and_never_shown(cluster, monkeypatch):
    cluster.token = "another"
    monkeypatch.setenv("KFP_TOKEN", TOKEN)
    api = connect_kubeflow(settings(cluster.host, token="env:KFP_TOKEN"))
    assert str(refusal(api)) == (
        f"Kubeflow Pipelines at {cluster.host}: could not read the experiments: the credentials were not accepted; "
        "they may have expired ('Request header error: there is no valid token'); get a new token and set KFP_TOKEN to "
        "it."
    )


def test_a_server_that_repeats_the_token_does_not_bring_it_to_the_screen(cluster, monkeypatch):
    monkeypatch.setenv("KFP_TOKEN", TOKEN)
    api = connect_kubeflow(settings(cluster.host, token="env:KFP_TOKEN"))
    cluster.answer_next("GET", "/experiments", error(401, f"the token {TOKEN} has expired"))
    assert "('the token (hidden) has expired')" in str(refusal(api))


def test_without_a_token_the_sentence_names_the_setting(cluster):
    cluster.token = TOKEN
    assert "set kubeflow.token, such as env:KFP_TOKEN" in str(refusal(connect_kubeflow(settings(cluster.host))))


def test_a_missing_permission_is_said_with_the_namespace(cluster):
    message = "Failed to authorize with API: User 'ann' is not authorized with reason: RBAC"
    cluster.answer_next("GET", "/experiments", error(403, message))
    said = refusal(connect_kubeflow(settings(cluster.host, namespace="team")))
    assert said.kind == "forbidden"
    assert f"not allowed to do that ('{message}'); ask for the right to use pipelines in the namespace 'team'." in str(
        said
    )


def test_a_quota_is_said(cluster):
    cluster.answer_next("GET", "/experiments", error(429, "too many requests"))
    said = refusal(connect_kubeflow(settings(cluster.host)))
    assert "a quota or rate limit is used up ('too many requests'); wait and try again" in str(said)


@pytest.mark.parametrize("status", [200, 403])
def test_a_sign_in_page_is_no_empty_answer(cluster, status):
    page = Answer(status, b"<html>Sign in</html>", "text/html; charset=utf-8")
    cluster.answer_next("GET", "/experiments", page)
    said = refusal(connect_kubeflow(settings(cluster.host)))
    assert said.kind == ("signed out" if status == 200 else "forbidden")
    assert "html>" not in str(said)


def test_an_answer_of_another_form_is_said(cluster):
    cluster.answer_next("GET", "/experiments", Answer(body=b'{"experiments": 5}'))
    assert "the server failed ('no answer of the API" in str(refusal(connect_kubeflow(settings(cluster.host))))


def test_an_address_where_nobody_listens_is_said():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
    said = refusal(connect_kubeflow(settings(host)))
    assert said.kind == "unreachable"
    assert "no connection ('[Errno 111] Connection refused'); look at kubeflow.host, at the network" in str(said)


def test_a_name_that_is_not_known_is_said():
    said = refusal(connect_kubeflow(settings("http://kubeflow.invalid")))
    assert said.kind == "unreachable"


def test_a_server_that_does_not_answer_is_asked_once(cluster, monkeypatch):
    monkeypatch.setattr(kubeflow_api, "_READ_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connections = []
        accepting = threading.Thread(target=lambda: connections.append(silent.accept()), daemon=True)
        accepting.start()
        said = refusal(connect_kubeflow(settings(f"http://127.0.0.1:{silent.getsockname()[1]}")))
        accepting.join()
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent.accept()
    assert said.kind == "timeout"
    assert "no answer in time" in str(said)
    connections[0][0].close()


@pytest.fixture
def certificate(tmp_path):
    """Of localhost, signed by itself."""
    key, file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file, key


def test_a_certificate_that_nobody_knows_is_said_until_its_authority_is_named(cluster, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    cluster._server.socket = context.wrap_socket(cluster._server.socket, server_side=True)
    host = cluster.host.replace("http://127.0.0.1", "https://localhost")
    said = refusal(connect_kubeflow(settings(host)))
    assert said.kind == "tls"
    assert "set kubeflow.ca_certificate to the certificate of the authority that signed it" in str(said)
    api = connect_kubeflow(settings(host, ca_certificate=str(certificate[0])))
    assert list_experiments(api).experiments is None


def test_what_is_missing_is_said_before_anything_is_asked(tmp_path):
    with pytest.raises(InputError, match=r"kubeflow\.host: is empty; set the address of the API, such as"):
        connect_kubeflow(settings(""))
    with pytest.raises(InputError, match=r"kubeflow\.ca_certificate: '.*no\.pem' is no file"):
        connect_kubeflow(settings("https://x", ca_certificate=str(tmp_path / "no.pem")))


@pytest.mark.parametrize(
    ("reference", "value", "message"),
    [
        ("kubernetes:kfp/token", None, "got a reference of kind 'kubernetes', which only containers can follow"),
        ("secret_manager:projects/p/secrets/s/versions/1", None, "got a reference of kind 'secret_manager'"),
        ("env:KFP_TOKEN", None, "the environment variable KFP_TOKEN is not set; set it to a token of the API"),
        ("env:KFP_TOKEN", " \n", "the environment variable KFP_TOKEN is not set"),
        ("env:KFP_TOKEN", f"{TOKEN}\r\nX-Evil: 1", "KFP_TOKEN holds no token, but spaces or line ends"),
        ("env:KFP_TOKEN", "tökén", "KFP_TOKEN holds no token"),
    ],
)
def test_a_token_that_cannot_be_is_refused_without_showing_it(monkeypatch, reference, value, message):
    monkeypatch.delenv("KFP_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("KFP_TOKEN", value)
    with pytest.raises(InputError, match=f"kubeflow.token: .*{message}") as refused:
        read_token(reference)
    assert TOKEN not in str(refused.value)


def test_a_context_file_of_kfp_that_is_broken_is_named(cluster, tmp_path):
    (tmp_path / "no_context.json").write_text("{")
    with pytest.raises(InputError, match=r"context\.json: is no JSON; remove it"):
        connect_kubeflow(settings(cluster.host))


def test_no_reference_is_no_token():
    assert read_token("") == ""


def test_methods_are_found_under_the_longer_names_of_later_versions(cluster, monkeypatch):
    """kfp_server_api 2.16, of kfp 2.16, calls list_experiments experiment_service_list_experiments."""
    service = kfp_server_api.ExperimentServiceApi
    short = "list_experiments_with_http_info"
    if not hasattr(service, short):
        pytest.skip("here they have the longer names already")
    monkeypatch.setattr(service, f"experiment_service_{short}", getattr(service, short), raising=False)
    monkeypatch.delattr(service, short)
    assert list_experiments(connect_kubeflow(settings(cluster.host))).experiments is None


def test_requests_that_change_something_are_never_sent_again(cluster):
    api = connect_kubeflow(settings(cluster.host))
    cluster.answer_next("POST", "/experiments", Answer(drop=True))
    with pytest.raises(ApiError, match="no connection"):
        api.call("Experiment", "create_experiment", "x", kfp_server_api.V2beta1Experiment(display_name="e"))
    assert cluster.count("POST", "/experiments") == 1
    retries = api.api_client.rest_client.pool_manager.connection_pool_kw["retries"]
    assert isinstance(retries, urllib3.Retry)
    assert (retries.read, retries.status, retries.other) == (0, 0, 0)
