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
from detloom.schemas.run_file.kubeflow import Kubeflow

TOKEN = "eyJhbGciOiJSUzI1NiJ9.planted"


def settings(host, **changes):
    return Kubeflow(host=host, image="x/detloom:1", **changes)


def list_experiments(api):
    return api.call("Experiment", "list_experiments", "read the experiments", namespace="kubeflow")


def refusal(api):
    with pytest.raises(ApiError) as caught:
        list_experiments(api)
    return caught.value


def test_connecting_sends_no_request(cluster):
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


def test_an_expired_token_is_reported_by_its_variable_and_never_shown(cluster, monkeypatch):
    monkeypatch.setenv("KFP_TOKEN", TOKEN)
    api = connect_kubeflow(settings(cluster.host, token="env:KFP_TOKEN"))
    cluster.answer_next("GET", "/experiments", error(401, f"the token {TOKEN} has expired"))
    found = refusal(api)
    assert found.kind == "signed out"
    for part in (cluster.host, "read the experiments", "'the token (hidden) has expired'", "KFP_TOKEN"):
        assert part in str(found)


@pytest.mark.parametrize(
    ("answer", "kind", "part"),
    [
        (error(401, "there is no valid token"), "signed out", "kubeflow.token"),
        (error(403, "User 'ann' is not authorized"), "forbidden", "('User 'ann' is not authorized')"),
        (error(403, "RBAC"), "forbidden", "namespace 'team'"),
        # a page to sign in is not an empty response
        (Answer(200, b"<html>Sign in</html>", "text/html; charset=utf-8"), "signed out", "kubeflow.token"),
        (Answer(403, b"<html>Sign in</html>", "text/html; charset=utf-8"), "forbidden", "namespace 'team'"),
        (Answer(body=b'{"experiments": 5}'), "server", "read the experiments"),
    ],
)
def test_an_unusable_response_is_reported_with_the_setting(cluster, answer, kind, part):
    cluster.answer_next("GET", "/experiments", answer)
    found = refusal(connect_kubeflow(settings(cluster.host, namespace="team")))
    assert found.kind == kind
    assert part in str(found)
    assert "html>" not in str(found)


def test_a_refused_connection_is_reported():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
    found = refusal(connect_kubeflow(settings(host)))
    assert found.kind == "unreachable"
    assert "[Errno 111] Connection refused" in str(found)
    assert "kubeflow.host" in str(found)


def test_a_request_without_response_is_sent_once(cluster, monkeypatch):
    monkeypatch.setattr(kubeflow_api, "_READ_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connections = []
        accepting = threading.Thread(target=lambda: connections.append(silent.accept()), daemon=True)
        accepting.start()
        found = refusal(connect_kubeflow(settings(f"http://127.0.0.1:{silent.getsockname()[1]}")))
        accepting.join()
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent.accept()
    assert found.kind == "timeout"
    connections[0][0].close()


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate of localhost, and its key."""
    key, file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file, key


def test_an_unknown_certificate_is_reported_and_accepted_with_its_authority(cluster, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    cluster._server.socket = context.wrap_socket(cluster._server.socket, server_side=True)
    host = cluster.host.replace("http://127.0.0.1", "https://localhost")
    found = refusal(connect_kubeflow(settings(host)))
    assert found.kind == "tls"
    assert "kubeflow.ca_certificate" in str(found)
    api = connect_kubeflow(settings(host, ca_certificate=str(certificate[0])))
    assert list_experiments(api).experiments is None


def test_missing_settings_and_broken_files_are_refused_before_any_request(cluster, tmp_path):
    with pytest.raises(InputError, match=r"^kubeflow\.host: "):
        connect_kubeflow(settings(""))
    with pytest.raises(InputError, match=r"^kubeflow\.ca_certificate: '.*no\.pem'"):
        connect_kubeflow(settings("https://x", ca_certificate=str(tmp_path / "no.pem")))
    (tmp_path / "no_context.json").write_text("{")  # of kfp
    with pytest.raises(InputError, match=r"context\.json: .*JSON"):
        connect_kubeflow(settings(cluster.host))
    assert cluster.requests == []


@pytest.mark.parametrize(
    ("reference", "value", "message"),
    [
        ("kubernetes:kfp/token", None, "kind 'kubernetes'.* env:NAME"),
        ("secret_manager:projects/p/secrets/s/versions/1", None, "kind 'secret_manager'"),
        ("env:KFP_TOKEN", None, "KFP_TOKEN is not set"),
        ("env:KFP_TOKEN", " \n", "KFP_TOKEN is not set"),
        ("env:KFP_TOKEN", f"{TOKEN}\r\nX-Evil: 1", "KFP_TOKEN must not contain"),
        ("env:KFP_TOKEN", "tökén", "KFP_TOKEN must not contain"),
    ],
)
def test_an_invalid_token_is_refused_without_showing_it(monkeypatch, reference, value, message):
    monkeypatch.delenv("KFP_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("KFP_TOKEN", value)
    with pytest.raises(InputError, match=f"kubeflow.token: .*{message}") as refused:
        read_token(reference)
    assert TOKEN not in str(refused.value)


def test_methods_are_found_under_the_longer_names_of_later_kfp_versions(cluster, monkeypatch):
    """Check that `list_experiments` is found as `experiment_service_list_experiments` of kfp_server_api 2.16."""
    service = kfp_server_api.ExperimentServiceApi
    short = "list_experiments_with_http_info"
    if not hasattr(service, short):
        pytest.skip("the installed version has the longer names")
    monkeypatch.setattr(service, f"experiment_service_{short}", getattr(service, short), raising=False)
    monkeypatch.delattr(service, short)
    assert list_experiments(connect_kubeflow(settings(cluster.host))).experiments is None


def test_requests_that_change_something_are_never_repeated(cluster):
    api = connect_kubeflow(settings(cluster.host))
    cluster.answer_next("POST", "/experiments", Answer(drop=True))
    with pytest.raises(ApiError, match="could not x"):
        api.call("Experiment", "create_experiment", "x", kfp_server_api.V2beta1Experiment(display_name="e"))
    assert cluster.count("POST", "/experiments") == 1
    retries = api.api_client.rest_client.pool_manager.connection_pool_kw["retries"]
    assert isinstance(retries, urllib3.Retry)
    assert (retries.read, retries.status, retries.other) == (0, 0, 0)
