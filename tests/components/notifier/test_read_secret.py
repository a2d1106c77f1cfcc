import base64
import contextlib
import json

import pytest
from google.auth import exceptions

from detloom.components.notifier import read_secret as module
from detloom.components.notifier.delivery import NotSentError
from detloom.components.notifier.read_secret import read_secret, secret_variables, variable_name
from detloom.schemas.notifications_config import Email, Notifications, Webhook
from detloom.schemas.secret_reference import SecretReference, parse_secret_reference

NAME = "projects/p1/secrets/hook/versions/latest"
MANAGED = f"secret_manager:{NAME}"


class Answer(contextlib.AbstractContextManager):
    """What `requests` returns."""

    def __init__(self, status, body):
        self.status_code, self._body = status, body

    def iter_content(self, size):
        yield from (self._body[start : start + size] for start in range(0, len(self._body), size))

    def __exit__(self, *_):
        return None


class ManagerSession:
    """Answers as Secret Manager; keeps what it was asked."""

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


def test_nothing_stands_for_nothing():
    assert read_secret("", timeout_seconds=1) == ""


def test_an_environment_variable_loses_the_line_end_that_an_editor_leaves(monkeypatch):
    monkeypatch.setenv("DETLOOM_WEBHOOK", "https://host/ geheim \r\n")
    assert read_secret("env:DETLOOM_WEBHOOK", timeout_seconds=1) == "https://host/ geheim "


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("DETLOOM_WEBHOOK", raising=False)
    assert str(refusal_of("env:DETLOOM_WEBHOOK")) == "the environment variable DETLOOM_WEBHOOK is not set"
    monkeypatch.setenv("DETLOOM_WEBHOOK", "\n")
    assert str(refusal_of("env:DETLOOM_WEBHOOK")) == "the secret DETLOOM_WEBHOOK is empty"


def test_a_kubernetes_secret_comes_in_a_variable_of_its_own(monkeypatch):
    # printf 'hooks.team/slack-url' | sha256sum
    name = "DETLOOM_SECRET_HOOKS_TEAM_SLACK_URL_b0aad226"
    monkeypatch.setenv(name, "https://host/geheim")
    assert read_secret("kubernetes:hooks.team/slack-url", timeout_seconds=1) == "https://host/geheim"
    monkeypatch.delenv(name)
    assert str(refusal_of("kubernetes:hooks.team/slack-url")) == (
        f"the environment variable {name}, which holds the Kubernetes secret hooks.team/slack-url, is not set"
    )


def test_secrets_with_like_names_have_variables_of_their_own():
    names = ["a-b/c", "a/b-c", "a.b/c", "a/b_c", "a/b.c"]
    assert len({variable_name(parse_secret_reference(f"kubernetes:{name}")) for name in names}) == 5


def test_a_variables_name_is_one_that_kubernetes_takes():
    name = variable_name(SecretReference(kind="kubernetes", name="x" * 253, key="..-_" * 60))
    assert name.replace("_", "").isalnum()
    assert len(name) <= 64


def test_a_job_is_told_of_kubernetes_secrets_only():
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


def test_secret_manager_is_asked_for_the_version():
    session = ManagerSession(body=payload(b"geheim\n"))
    secret = read_secret(MANAGED, timeout_seconds=7.0, session=session, endpoint="http://127.0.0.1:1")
    assert secret == "geheim"
    assert session.asked == [
        (f"http://127.0.0.1:1/v1/{NAME}:access", {"timeout": 7.0, "allow_redirects": False, "stream": True})
    ]


def test_over_the_wire_with_googles_own_session(web):
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
    # A GET has no body; the server of these tests wants its length.
    session = AuthorizedSession(AnonymousCredentials())
    session.headers["Content-Length"] = "0"
    assert read_secret(MANAGED, timeout_seconds=5.0, session=session, endpoint=web.url) == "geheim"
    assert web.requests[0].path == f"/v1/{NAME}:access"


@pytest.mark.parametrize(
    ("status", "reason", "may_pass"),
    [
        (401, "Google does not accept the credentials", False),
        (403, "the account may not read it; it needs the role secretmanager.secretAccessor", False),
        (404, "there is no such version", False),
        (302, "Secret Manager answered 302", False),
        (503, "Secret Manager answered 503", True),
    ],
)
def test_an_answer_of_error_says_what_to_do(status, reason, may_pass):
    error = refusal_of(MANAGED, session=ManagerSession(status, b"geheim"))
    assert str(error) == f"the secret {NAME} cannot be read: {reason}"
    assert error.may_pass is may_pass


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
def test_an_answer_that_is_no_secret_is_refused(body):
    error = refusal_of(MANAGED, session=ManagerSession(body=body))
    assert str(error).endswith("Secret Manager's answer is no secret in UTF-8")


@pytest.mark.parametrize(
    "error", [ConnectionError("https://geheim"), exceptions.RefreshError("geheim"), exceptions.TransportError("geheim")]
)
def test_a_manager_that_cannot_be_reached_may_be_asked_again(error):
    found = refusal_of(MANAGED, session=ManagerSession(error=error))
    assert str(found) == (
        f"the secret {NAME} cannot be read: Secret Manager cannot be reached ({type(error).__name__})"
    )
    assert found.may_pass


def test_a_machine_without_credentials_is_told_so(monkeypatch):
    def fail():
        raise exceptions.DefaultCredentialsError("geheim")

    monkeypatch.setattr(module, "_make_session", fail)
    assert str(refusal_of(MANAGED)) == f"the secret {NAME} cannot be read: there are no Google credentials"
