import base64
import contextlib
import json

import pytest
from google.auth import exceptions

from detloom.components.notifier import read_secret as module
from detloom.components.notifier.delivery import NotSentError
from detloom.components.notifier.read_secret import read_secret, secret_variables, variable_name
from detloom.schemas.reading.redact import SecretReference, parse_secret_reference
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook

NAME = "projects/p1/secrets/hook/versions/latest"
MANAGED = f"secret_manager:{NAME}"


class Answer(contextlib.AbstractContextManager):
    """A response of `requests`."""

    def __init__(self, status, body):
        self.status_code, self._body = status, body

    def iter_content(self, size):
        yield from (self._body[start : start + size] for start in range(0, len(self._body), size))

    def __exit__(self, *_):
        return None


class ManagerSession:
    """A session that responds like Secret Manager and stores the requests."""

    def __init__(self, status=200, body=b"", error=None):
        self.asked, self._answer, self._error = [], Answer(status, body), error

    def get(self, url, **settings):
        self.asked.append((url, settings))
        if self._error is not None:
            raise self._error
        return self._answer


def payload(data: bytes) -> bytes:
    return json.dumps({"name": NAME, "payload": {"data": base64.b64encode(data).decode()}}).encode()


def refusal_of(text, **settings):
    with pytest.raises(NotSentError) as caught:
        read_secret(text, **{"timeout_seconds": 5.0, **settings})
    return caught.value


def test_empty_reference_is_an_empty_secret():
    assert read_secret("", timeout_seconds=1) == ""


def test_trailing_line_break_of_an_environment_variable_is_removed(monkeypatch):
    monkeypatch.setenv("DETLOOM_WEBHOOK", "https://host/ geheim \r\n")
    assert read_secret("env:DETLOOM_WEBHOOK", timeout_seconds=1) == "https://host/ geheim "


def test_missing_or_empty_variable_is_named(monkeypatch):
    monkeypatch.delenv("DETLOOM_WEBHOOK", raising=False)
    assert "DETLOOM_WEBHOOK is not set" in str(refusal_of("env:DETLOOM_WEBHOOK"))
    monkeypatch.setenv("DETLOOM_WEBHOOK", "\n")
    assert "DETLOOM_WEBHOOK is empty" in str(refusal_of("env:DETLOOM_WEBHOOK"))


def test_kubernetes_secret_is_read_from_its_environment_variable(monkeypatch):
    # printf 'hooks.team/slack-url' | sha256sum
    name = "DETLOOM_SECRET_HOOKS_TEAM_SLACK_URL_b0aad226"
    monkeypatch.setenv(name, "https://host/geheim")
    assert read_secret("kubernetes:hooks.team/slack-url", timeout_seconds=1) == "https://host/geheim"
    monkeypatch.delenv(name)
    error = str(refusal_of("kubernetes:hooks.team/slack-url"))
    assert name in error
    assert "hooks.team/slack-url" in error


def test_similar_secret_names_have_different_variables():
    names = ["a-b/c", "a/b-c", "a.b/c", "a/b_c", "a/b.c"]
    assert len({variable_name(parse_secret_reference(f"kubernetes:{name}")) for name in names}) == 5


def test_variable_name_is_valid_in_kubernetes():
    name = variable_name(SecretReference(kind="kubernetes", name="x" * 253, key="..-_" * 60))
    assert name.replace("_", "").isalnum()
    assert len(name) <= 64


def test_only_kubernetes_secrets_become_variables_of_a_job():
    notifications = Notifications(
        webhook=Webhook(url="kubernetes:hooks/url", authorization="env:TOKEN"),
        email=Email(host="h", sender="a@b", recipients=("c@d",), user=MANAGED, password="kubernetes:mail/password"),
    )
    found = secret_variables(notifications)
    assert list(found) == sorted(found)
    assert set(found.values()) == {
        SecretReference(kind="kubernetes", name="hooks", key="url"),
        SecretReference(kind="kubernetes", name="mail", key="password"),
    }
    assert all(variable_name(reference) == name for name, reference in found.items())
    assert secret_variables(Notifications(webhook=Webhook(url="env:HOOK"))) == {}


def test_secret_manager_request_and_response():
    session = ManagerSession(body=payload(b"geheim\n"))
    secret = read_secret(MANAGED, timeout_seconds=7.0, session=session, endpoint="http://127.0.0.1:1")
    assert secret == "geheim"
    assert session.asked == [
        (f"http://127.0.0.1:1/v1/{NAME}:access", {"timeout": 7.0, "allow_redirects": False, "stream": True})
    ]


def test_request_with_googles_own_session(web):
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    def answer(handler):
        body = payload(b"geheim")
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    web.answer = answer
    web.requests.clear()
    # A GET has no body, but the test server needs its length.
    session = AuthorizedSession(AnonymousCredentials())
    session.headers["Content-Length"] = "0"
    assert read_secret(MANAGED, timeout_seconds=5.0, session=session, endpoint=web.url) == "geheim"
    assert web.requests[0].path == f"/v1/{NAME}:access"


@pytest.mark.parametrize(
    ("status", "reason", "is_temporary"),
    [
        (401, "credentials", False),
        (403, "secretmanager.secretAccessor", False),
        (404, "no such version", False),
        (302, "302", False),
        (503, "503", True),
    ],
)
def test_error_status_of_secret_manager_has_a_reason(status, reason, is_temporary):
    error = refusal_of(MANAGED, session=ManagerSession(status, b"geheim"))
    assert NAME in str(error)
    assert reason in str(error)
    assert "geheim" not in str(error)
    assert error.is_temporary is is_temporary


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"payload": {"data": 5}}',
        b'{"payload": {"data": "%%%"}}',
        payload(b"\xff\xfe"),
        b"[" * 100_000,
        payload(b"x" * (1 << 20)),
    ],
    ids=["empty", "list", "nothing", "number", "no base64", "no UTF-8", "deep", "huge"],
)
def test_invalid_response_of_secret_manager_is_an_error(body):
    error = refusal_of(MANAGED, session=ManagerSession(body=body))
    assert NAME in str(error)
    assert "UTF-8" in str(error)


@pytest.mark.parametrize(
    "error", [ConnectionError("https://geheim"), exceptions.RefreshError("geheim"), exceptions.TransportError("geheim")]
)
def test_connection_error_of_secret_manager_can_be_retried(error):
    found = refusal_of(MANAGED, session=ManagerSession(error=error))
    assert NAME in str(found)
    assert type(error).__name__ in str(found)
    assert "geheim" not in str(found)
    assert found.is_temporary


def test_missing_google_credentials_are_reported(monkeypatch):
    def fail():
        raise exceptions.DefaultCredentialsError("geheim")

    monkeypatch.setattr(module, "_make_session", fail)
    error = str(refusal_of(MANAGED))
    assert NAME in error
    assert "credentials" in error
    assert "geheim" not in error
