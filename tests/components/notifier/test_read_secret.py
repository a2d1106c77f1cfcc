import base64
import json
from types import SimpleNamespace

import pytest
from google.auth import exceptions

from detloom.components.notifier.read_secret import read_secret, secret_variables, variable_name
from detloom.components.notifier.run_message import NotSentError
from detloom.schemas.reading.redact import SecretReference, parse_secret_reference
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook

NAME = "projects/p1/secrets/hook/versions/latest"
MANAGED = f"secret_manager:{NAME}"


class ManagerSession:
    """A session that responds like Secret Manager and stores the requests."""

    def __init__(self, status=200, body=b"", error=None):
        self.asked, self._answer, self._error = [], SimpleNamespace(status_code=status, content=body), error

    def get(self, url, **settings):
        self.asked.append((url, settings))
        if self._error is not None:
            raise self._error
        return self._answer


@pytest.fixture
def manager(monkeypatch):
    """Return a function that sets the response of Secret Manager and returns the session."""

    def respond(status=200, body=b"", error=None):
        session = ManagerSession(status, body, error)
        monkeypatch.setattr("google.auth.default", lambda scopes: (None, "project"))
        monkeypatch.setattr("google.auth.transport.requests.AuthorizedSession", lambda credentials: session)
        return session

    return respond


def payload(data: bytes) -> bytes:
    return json.dumps({"name": NAME, "payload": {"data": base64.b64encode(data).decode()}}).encode()


def refusal_of(text):
    with pytest.raises(NotSentError) as caught:
        read_secret(text, 5.0)
    return caught.value


def test_empty_reference_is_an_empty_secret():
    assert read_secret("", 1.0) == ""


def test_trailing_line_break_of_an_environment_variable_is_removed(monkeypatch):
    monkeypatch.setenv("DETLOOM_WEBHOOK", "https://host/ geheim \r\n")
    assert read_secret("env:DETLOOM_WEBHOOK", 1.0) == "https://host/ geheim "


def test_missing_or_empty_variable_is_named(monkeypatch):
    monkeypatch.delenv("DETLOOM_WEBHOOK", raising=False)
    assert "DETLOOM_WEBHOOK is not set" in str(refusal_of("env:DETLOOM_WEBHOOK"))
    monkeypatch.setenv("DETLOOM_WEBHOOK", "\n")
    assert "DETLOOM_WEBHOOK is empty" in str(refusal_of("env:DETLOOM_WEBHOOK"))


def test_kubernetes_secret_is_read_from_its_environment_variable(monkeypatch):
    # printf 'hooks.team/slack-url' | sha256sum
    name = "DETLOOM_SECRET_HOOKS_TEAM_SLACK_URL_b0aad226"
    monkeypatch.setenv(name, "https://host/geheim")
    assert read_secret("kubernetes:hooks.team/slack-url", 1.0) == "https://host/geheim"
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


def test_secret_manager_request_and_response(manager):
    session = manager(body=payload(b"geheim\n"))
    assert read_secret(MANAGED, 7.0) == "geheim"
    url = f"https://secretmanager.googleapis.com/v1/{NAME}:access"
    assert session.asked == [(url, {"timeout": 7.0, "allow_redirects": False})]


@pytest.mark.parametrize(
    ("response", "reason", "is_temporary"),
    [
        ({"status": 403}, "secretmanager.secretAccessor", False),
        ({"status": 404}, "404", False),
        ({"status": 302}, "302", False),
        ({"status": 503}, "503", True),
        ({"body": b""}, "UTF-8", False),
        ({"body": b"[]"}, "UTF-8", False),
        ({"body": b'{"payload": {"data": 5}}'}, "UTF-8", False),
        ({"body": b'{"payload": {"data": "%%%"}}'}, "UTF-8", False),
        ({"body": payload(b"\xff\xfe")}, "UTF-8", False),
        ({"error": ConnectionError("https://geheim")}, "ConnectionError", True),
        ({"error": exceptions.RefreshError("geheim")}, "RefreshError", True),
    ],
)
def test_errors_of_secret_manager_have_a_reason_without_the_secret(manager, response, reason, is_temporary):
    manager(**{"body": b"geheim", **response})
    error = refusal_of(MANAGED)
    assert NAME in str(error)
    assert reason in str(error)
    assert "geheim" not in str(error)
    assert error.is_temporary is is_temporary
