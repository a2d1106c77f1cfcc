import email
import email.policy
import json
import socket

import pytest

from detloom.components.notifier.run_message import NotSentError, RunMessage
from detloom.components.notifier.webhook_and_email import post_webhook, send_mail
from detloom.schemas.run_file.notifications import Email, Webhook

MESSAGE = RunMessage(
    event="pushed", pipeline="cells", place="local", run="r1", version="3", reason="Größer ist besser."
)


@pytest.fixture
def post(monkeypatch):
    """Return a function that sends the message to an address."""

    def call(url, authorization="", timeout_seconds=5.0):
        monkeypatch.setenv("HOOK", url)
        monkeypatch.setenv("AUTHORIZATION", authorization)
        webhook = Webhook(url="env:HOOK", authorization="env:AUTHORIZATION" if authorization else "")
        post_webhook(MESSAGE, webhook, timeout_seconds)

    return call


@pytest.fixture
def post_error(post):
    """Return a function that sends the message and returns the error."""

    def call(url, **settings):
        with pytest.raises(NotSentError) as caught:
            post(url, **settings)
        assert "127.0.0.1" not in str(caught.value)
        assert "geheim" not in str(caught.value)
        return caught.value

    return call


def test_message_is_posted_as_json_with_headers(web, post):
    post(f"{web.url}/services/T0/B0?x=1", authorization="Bearer geheim")
    (request,) = web.requests
    assert request.path == "/services/T0/B0?x=1"
    assert json.loads(request.body) == MESSAGE.to_payload()
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Authorization"] == "Bearer geheim"
    assert request.headers["Idempotency-Key"] == MESSAGE.id


def test_only_text_sends_nothing_but_the_text(web, hook):
    post_webhook(MESSAGE, Webhook(url=hook.url, only_text=True), 5.0)
    assert json.loads(web.requests[0].body) == {"text": MESSAGE.to_text()}
    assert "Authorization" not in web.requests[0].headers


@pytest.mark.parametrize(
    ("status", "is_temporary"), [(302, False), (308, False), (400, False), (404, False), (429, True), (500, True)]
)
def test_error_status_is_reported_and_redirects_are_not_followed(web, post_error, status, is_temporary):
    web.statuses, web.headers = [status], {"Location": f"{web.url}/elsewhere"}
    error = post_error(web.url)
    assert str(status) in str(error)
    assert error.is_temporary is is_temporary
    assert len(web.requests) == 1


def test_slow_web_server_times_out_without_a_retry(web, post_error):
    web.answer = lambda handler: handler.rfile.read(1)  # until the client gives up
    error = post_error(web.url, timeout_seconds=0.2)
    assert "in time" in str(error)
    assert not error.is_temporary


def test_closed_and_refused_connections_can_be_retried(web, post_error):
    web.answer = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused = (post_error(f"http://127.0.0.1:{port}/geheim"), mail_error(make_settings(port)))
    assert all("ConnectionRefusedError" in str(error) for error in refused)
    assert all(error.is_temporary for error in (post_error(web.url), *refused))


def test_certificate_must_be_trusted_and_have_the_name(https_web, post, post_error, request):
    untrusted = post_error(https_web.url)
    assert "certificate" in str(untrusted)
    assert not untrusted.is_temporary
    request.getfixturevalue("trusted")
    assert "certificate" in str(post_error(https_web.url.replace("127.0.0.1", "localhost")))
    assert https_web.requests == []
    post(https_web.url, authorization="Bearer geheim")
    assert len(https_web.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "geheim",
        "https://",
        "https://host:port/geheim",
        "https://[geheim/",
        "https://host/geheim two",
        "https://host/\r\nX: geheim",
        "https://h/hößt/geheim",
        "https://me:geheim@host/",
        "https://me:geheim@localhost:1/",
    ],
)
def test_invalid_address_is_refused_and_not_repeated(url, post_error):
    error = post_error(url)
    assert "not a web address" in str(error)
    assert not error.is_temporary


@pytest.mark.parametrize("value", ["Bearer a\r\nX: geheim", "Bearer geheim☃"])
def test_invalid_authorization_is_refused(web, post_error, value):
    assert "Authorization" in str(post_error(web.url, authorization=value))
    assert web.requests == []


def test_authorization_is_not_sent_unencrypted(post_error):
    error = str(post_error("http://hooks.example.org/x", authorization="Bearer geheim"))
    assert "http://" in error
    assert "Authorization" in error


def test_proxies_of_the_environment_are_used(web, post, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", web.url)
    monkeypatch.setenv("NO_PROXY", "")
    post("http://hooks.invalid/x")
    assert web.requests[0].path == "http://hooks.invalid/x"


def make_settings(port=587, **settings):
    defaults = {"encryption": "none", "sender": "runs@example.org", "recipients": ("a@example.org", "b@example.org")}
    return Email(host="127.0.0.1", port=port, **{**defaults, **settings})


@pytest.fixture
def with_login(monkeypatch):
    """Return a function that makes settings with a user and a password."""

    def make(port, encryption="starttls", password="geheim"):
        monkeypatch.setenv("MAIL_USER", "me")
        monkeypatch.setenv("MAIL_PASSWORD", password)
        return make_settings(port, encryption=encryption, user="env:MAIL_USER", password="env:MAIL_PASSWORD")

    return make


def deliver(settings, message=MESSAGE, timeout_seconds=5.0):
    send_mail(message, settings, timeout_seconds)


def mail_error(settings, **arguments):
    with pytest.raises(NotSentError) as caught:
        deliver(settings, **arguments)
    assert "127.0.0.1" not in str(caught.value)
    assert "geheim" not in str(caught.value)
    return caught.value


def received(server):
    (mail,) = server.mails
    return email.message_from_bytes(mail, policy=email.policy.default)


def test_mail_has_headers_recipients_and_text(smtp):
    smtp.answers["QUIT"] = "500 what"  # the mail was accepted before
    deliver(make_settings(smtp.port))
    mail = received(smtp)
    assert mail["From"] == "runs@example.org"
    assert mail["To"] == "a@example.org, b@example.org"
    assert mail["Subject"] == "[detloom] cells: version 3 was pushed"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"] == f"<{MESSAGE.id}@example.org>"
    assert mail.get_content().replace("\r\n", "\n") == MESSAGE.to_text() + "\n"
    recipients = [each for each in smtp.commands if each.startswith("RCPT")]
    assert recipients == ["RCPT TO:<a@example.org>", "RCPT TO:<b@example.org>"]


@pytest.mark.usefixtures("trusted")
def test_starttls_sends_only_the_greeting_unencrypted(smtp, with_login):
    deliver(with_login(smtp.port))
    assert smtp.encrypted == [True]
    before = smtp.commands[: smtp.commands.index("STARTTLS")]
    assert [each.split(" ")[0] for each in before] == ["EHLO"]
    assert any(each.startswith("AUTH") for each in smtp.commands)


@pytest.mark.usefixtures("trusted")
def test_tls_connection_uses_no_starttls(smtps, with_login):
    deliver(with_login(smtps.port, "tls"))
    assert smtps.encrypted == [True]
    assert "STARTTLS" not in smtps.commands


@pytest.mark.parametrize("encryption", ["starttls", "tls"])
def test_untrusted_certificate_ends_the_connection_before_the_login(smtp, smtps, with_login, encryption):
    server = smtp if encryption == "starttls" else smtps
    assert "certificate" in str(mail_error(with_login(server.port, encryption)))
    assert not any(each.startswith("AUTH") for each in server.commands)


@pytest.mark.usefixtures("trusted")
def test_server_without_starttls_gets_no_password(smtp, with_login):
    smtp.offers = ("AUTH PLAIN",)
    error = mail_error(with_login(smtp.port))
    assert "NotSupported" in str(error)
    assert not error.is_temporary
    assert not any(each.startswith("AUTH") for each in smtp.commands)


@pytest.mark.parametrize(
    ("verb", "code", "is_temporary"),
    [("EHLO", 421, True), ("MAIL", 550, False), ("RCPT", 550, False), ("RCPT", 450, True), ("DATA", 554, False)],
)
def test_error_response_is_reported_with_its_code(smtp, verb, code, is_temporary):
    smtp.answers = {verb: f"{code} geheim"}
    if verb == "EHLO":
        smtp.answers["HELO"] = smtp.answers[verb]
    error = mail_error(make_settings(smtp.port))
    assert str(code) in str(error)
    assert ("recipients" in str(error)) == (verb == "RCPT")
    assert error.is_temporary is is_temporary


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(("password", "reason"), [("geheim", "535"), ("geheimü", "ASCII")])
def test_refused_login_is_reported_without_password_and_text_of_the_server(smtp, with_login, password, reason):
    smtp.answers["AUTH"] = "535 user me with geheim is unknown"
    assert reason in str(mail_error(with_login(smtp.port, password=password)))


def test_mail_counts_as_sent_if_one_recipient_is_accepted(smtp, caplog):
    smtp.answers["RCPT TO:<b@example.org>"] = "550 no"
    deliver(make_settings(smtp.port))
    assert len(smtp.mails) == 1
    assert "notifications.email: 1 of 2 recipients were refused" in caplog.text
    assert "b@example.org" not in caplog.text


def test_slow_mail_server_times_out(smtp):
    smtp.answers["EHLO"] = "hang"
    assert "in time" in str(mail_error(make_settings(smtp.port), timeout_seconds=0.2))


def test_line_breaks_in_a_name_add_no_header_and_a_dot_does_not_end_the_mail(smtp):
    node = "Trainer\r\nBcc: evil@example.org\r\n\r\nbody"
    message = RunMessage(event="failed", pipeline=".", place="local", node=node, reason=".")
    deliver(make_settings(smtp.port), message)
    mail = received(smtp)
    assert mail["Bcc"] is None
    assert mail["Subject"] == r"[detloom] . failed in Trainer\r\nBcc: evil@example.org\r\n\r\nbody"
    assert "Run: local" in mail.get_content()
