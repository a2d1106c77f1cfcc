import json
import os
import socket

import pytest

from detloom.components.notifier.delivery import NotSentError
from detloom.components.notifier.webhook import post_json


def post(url, **settings):
    post_json(url, {"text": "hello ü"}, **{"message_id": "id1", "timeout_seconds": 5.0, **settings})


def refusal_of(url, **settings):
    with pytest.raises(NotSentError) as caught:
        post(url, **settings)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value


def test_the_message_arrives_as_json_with_its_headers(web):
    post(f"{web.url}/services/T0/B0?x=1", authorization="Bearer geheim")
    (request,) = web.requests
    assert request.path == "/services/T0/B0?x=1"
    assert json.loads(request.body) == {"text": "hello ü"}
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Authorization"] == "Bearer geheim"
    assert request.headers["Idempotency-Key"] == "id1"


def test_without_a_secret_there_is_no_header_even_where_the_user_has_a_netrc(web, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password geheim\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    post(web.url)
    assert "Authorization" not in web.requests[0].headers


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_an_answer_of_success_is_one(web, status):
    web.statuses = [status]
    post(web.url)
    assert len(web.requests) == 1


@pytest.mark.parametrize(("status", "may_pass"), [(400, False), (401, False), (404, False), (429, True), (503, True)])
def test_an_answer_of_error_is_told_by_its_number(web, status, may_pass):
    web.statuses = [status]
    error = refusal_of(web.url)
    assert str(error) == f"the server answered {status}"
    assert error.may_pass is may_pass


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(web, status):
    web.statuses, web.headers = [status], {"Location": f"{web.url}/elsewhere"}
    assert str(refusal_of(web.url)) == f"the server answered with a redirect ({status}), which is not followed"
    assert len(web.requests) == 1


def test_of_a_huge_answer_nothing_is_read(web):
    sent = []

    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1 << 14):  # 1 GiB, unless the other side hangs up
            handler.wfile.write(b"x" * (1 << 16))
            sent.append(None)

    web.answer = answer
    post(web.url)
    assert len(sent) < 1 << 10


def test_headers_without_end_are_refused(web):
    def answer(handler):
        handler.send_response(200)
        for number in range(10_000):
            handler.send_header(f"X-{number}", "x" * 100)
        handler.end_headers()

    web.answer = answer
    assert str(refusal_of(web.url)).startswith("no connection")


def test_a_slow_server_is_not_waited_for_and_not_asked_again(web):
    web.answer = lambda handler: handler.rfile.read(1)  # until the other side gives up
    error = refusal_of(web.url, timeout_seconds=0.2)
    assert str(error) == "the server did not answer in time"
    assert not error.may_pass


def test_a_server_that_hangs_up_may_be_asked_again(web):
    web.answer = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
    error = refusal_of(web.url)
    assert str(error).startswith("no connection (")
    assert error.may_pass


def test_a_server_that_is_not_there_may_be_asked_again():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = refusal_of(f"http://127.0.0.1:{port}/geheim")
    assert str(error) == "no connection (ConnectionRefusedError)"
    assert error.may_pass


def test_a_certificate_that_nobody_trusts_ends_it(https_web):
    error = refusal_of(https_web.url)
    assert str(error) == "the server's certificate cannot be verified"
    assert not error.may_pass
    assert https_web.requests == []


def test_a_certificate_for_another_name_ends_it(https_web, trusted):
    assert "certificate" in str(refusal_of(https_web.url.replace("127.0.0.1", "localhost")))


def test_a_trusted_certificate_is_enough(https_web, trusted):
    post(https_web.url, authorization="Bearer geheim")
    assert len(https_web.requests) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "no web address"),
        ("ftp://host/x", "no web address"),
        ("data:,geheim", "no web address"),
        ("geheim", "no web address"),
        ("https://", "no web address"),
        ("https://host:port/geheim", "no web address"),
        ("https://[geheim/", "no web address"),
        ("https://host/geheim two", "no web address"),
        ("https://host/\r\nX: geheim", "no web address"),
        ("https://hößt/geheim", "no web address"),
        ("https://me:geheim@host/", "holds a user"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url, message):
    error = refusal_of(url)
    assert message in str(error)
    assert "geheim" not in str(error)


@pytest.mark.parametrize("value", ["Bearer a\r\nX: geheim", "Bearer geheimü", "Bearer geheim\x00"])
def test_a_secret_that_is_no_header_is_refused_without_repeating_it(web, value):
    error = refusal_of(web.url, authorization=value)
    assert str(error) == "the secret for the header Authorization holds more than one line of ASCII"
    assert web.requests == []


def test_a_token_is_not_sent_unencrypted():
    error = refusal_of("http://hooks.example.org/x", authorization="Bearer geheim")
    assert str(error) == "the address is http://, and the header Authorization goes to https:// only"


def test_proxies_are_those_of_the_environment(web, monkeypatch):
    monkeypatch.setitem(os.environ, "HTTP_PROXY", web.url)
    monkeypatch.setitem(os.environ, "NO_PROXY", "")
    post("http://hooks.invalid/x")
    assert web.requests[0].path == "http://hooks.invalid/x"
