import email
import email.policy
import json
import os
import socket
import threading

import pytest

from detloom.components.notifier.delivery import NotSentError, build_mail, call_within, post_json, send_mail, try_again
from detloom.components.notifier.messages import Message
from detloom.schemas.run_file.notifications import Email

MESSAGE = Message(event="pushed", pipeline="cells", place="local", run="r1", version="3", reason="Größer ist besser.")


def failing(num_failures, *, is_temporary=True):
    """Return a function that fails `num_failures` times, and the list of its calls."""
    calls = []

    def send():
        calls.append(None)
        if len(calls) <= num_failures:
            raise NotSentError("busy", is_temporary=is_temporary)

    return send, calls


def test_retries_until_success():
    send, calls = failing(2)
    try_again(send, (0, 0))
    assert len(calls) == 3


def test_error_after_the_last_attempt_has_the_number_of_attempts():
    send, calls = failing(9)
    with pytest.raises(NotSentError, match=r"^busy, 3 "):
        try_again(send, (0, 0))
    assert len(calls) == 3


def test_permanent_error_is_not_retried():
    send, calls = failing(9, is_temporary=False)
    with pytest.raises(NotSentError, match=r"^busy$"):
        try_again(send, (0, 0))
    assert len(calls) == 1


def test_call_returns_and_raises_like_the_function():
    assert call_within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        call_within(5, lambda: {}[1])


def test_call_that_takes_too_long_is_abandoned():
    done = threading.Event()
    try:
        with pytest.raises(NotSentError, match=r"0\.01 s"):
            call_within(0.01, done.wait)
    finally:
        done.set()


def post(url, **settings):
    post_json(url, {"text": "hello ü"}, **{"message_id": "id1", "timeout_seconds": 5.0, **settings})


def post_error(url, **settings):
    with pytest.raises(NotSentError) as caught:
        post(url, **settings)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value


def test_message_is_posted_as_json_with_headers(web):
    post(f"{web.url}/services/T0/B0?x=1", authorization="Bearer geheim")
    (request,) = web.requests
    assert request.path == "/services/T0/B0?x=1"
    assert json.loads(request.body) == {"text": "hello ü"}
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Authorization"] == "Bearer geheim"
    assert request.headers["Idempotency-Key"] == "id1"


def test_netrc_is_not_used_for_authorization(web, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password geheim\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    post(web.url)
    assert "Authorization" not in web.requests[0].headers


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_success_status_is_accepted(web, status):
    web.statuses = [status]
    post(web.url)
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("status", "is_temporary"), [(400, False), (401, False), (404, False), (429, True), (503, True)]
)
def test_error_status_is_reported(web, status, is_temporary):
    web.statuses = [status]
    error = post_error(web.url)
    assert str(status) in str(error)
    assert error.is_temporary is is_temporary


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(web, status):
    web.statuses, web.headers = [status], {"Location": f"{web.url}/elsewhere"}
    assert f"redirect ({status})" in str(post_error(web.url))
    assert len(web.requests) == 1


def test_body_of_the_response_is_not_read(web):
    sent = []

    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1 << 14):  # 1 GiB, unless the client closes the connection
            handler.wfile.write(b"x" * (1 << 16))
            sent.append(None)

    web.answer = answer
    post(web.url)
    assert len(sent) < 1 << 10


def test_endless_headers_are_an_error(web):
    def answer(handler):
        handler.send_response(200)
        for number in range(10_000):
            handler.send_header(f"X-{number}", "x" * 100)
        handler.end_headers()

    web.answer = answer
    assert str(post_error(web.url)).startswith("no connection")


def test_slow_web_server_times_out_without_a_retry(web):
    web.answer = lambda handler: handler.rfile.read(1)  # until the client gives up
    error = post_error(web.url, timeout_seconds=0.2)
    assert "in time" in str(error)
    assert not error.is_temporary


def test_closed_connection_can_be_retried(web):
    web.answer = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
    error = post_error(web.url)
    assert str(error).startswith("no connection (")
    assert error.is_temporary


def test_refused_http_connection_can_be_retried():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = post_error(f"http://127.0.0.1:{port}/geheim")
    assert "ConnectionRefusedError" in str(error)
    assert error.is_temporary


def test_untrusted_certificate_is_refused(https_web):
    error = post_error(https_web.url)
    assert "certificate" in str(error)
    assert not error.is_temporary
    assert https_web.requests == []


def test_a_certificate_for_another_name_ends_it(https_web, trusted):
    assert "certificate" in str(post_error(https_web.url.replace("127.0.0.1", "localhost")))


def test_trusted_certificate_is_accepted(https_web, trusted):
    post(https_web.url, authorization="Bearer geheim")
    assert len(https_web.requests) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "not a web address"),
        ("ftp://host/x", "not a web address"),
        ("data:,geheim", "not a web address"),
        ("geheim", "not a web address"),
        ("https://", "not a web address"),
        ("https://host:port/geheim", "not a web address"),
        ("https://[geheim/", "not a web address"),
        ("https://host/geheim two", "not a web address"),
        ("https://host/\r\nX: geheim", "not a web address"),
        ("https://hößt/geheim", "not a web address"),
        ("https://me:geheim@host/", "notifications.webhook.authorization"),
    ],
)
def test_invalid_address_is_refused_and_not_repeated(url, message):
    error = post_error(url)
    assert message in str(error)
    assert "geheim" not in str(error)


@pytest.mark.parametrize("value", ["Bearer a\r\nX: geheim", "Bearer geheimü", "Bearer geheim\x00"])
def test_invalid_authorization_is_refused_and_not_repeated(web, value):
    error = post_error(web.url, authorization=value)
    assert "Authorization" in str(error)
    assert "geheim" not in str(error)
    assert web.requests == []


def test_authorization_is_not_sent_unencrypted():
    error = post_error("http://hooks.example.org/x", authorization="Bearer geheim")
    assert "http://" in str(error)
    assert "Authorization" in str(error)


def test_proxies_of_the_environment_are_used(web, monkeypatch):
    monkeypatch.setitem(os.environ, "HTTP_PROXY", web.url)
    monkeypatch.setitem(os.environ, "NO_PROXY", "")
    post("http://hooks.invalid/x")
    assert web.requests[0].path == "http://hooks.invalid/x"


def make_settings(port=587, **settings):
    defaults = {"encryption": "none", "sender": "runs@example.org", "recipients": ("a@example.org", "b@example.org")}
    return Email(host="127.0.0.1", port=port, **{**defaults, **settings})


def deliver(settings, *, message=MESSAGE, user="", password="", timeout_seconds=5.0):
    mail = build_mail(message, settings)
    send_mail(mail, settings, user=user, password=password, timeout_seconds=timeout_seconds)


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
    deliver(make_settings(smtp.port))
    mail = received(smtp)
    assert mail["From"] == "runs@example.org"
    assert mail["To"] == "a@example.org, b@example.org"
    assert mail["Subject"] == "[detloom] cells: version 3 was pushed"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"] == f"<{MESSAGE.id}@example.org>"
    assert mail.get_content().replace("\r\n", "\n") == MESSAGE.to_text() + "\n"
    assert [each for each in smtp.commands if each.startswith("RCPT")] == [
        "RCPT TO:<a@example.org>",
        "RCPT TO:<b@example.org>",
    ]


def test_starttls_sends_only_the_greeting_unencrypted(smtp, trusted):
    deliver(make_settings(smtp.port, encryption="starttls"), user="me", password="geheim")
    assert smtp.encrypted == [True]
    before = smtp.commands[: smtp.commands.index("STARTTLS")]
    assert [each.split(" ")[0] for each in before] == ["EHLO"]


def test_tls_connection_uses_no_starttls(smtps, trusted):
    deliver(make_settings(smtps.port, encryption="tls"), user="me", password="geheim")
    assert smtps.encrypted == [True]
    assert "STARTTLS" not in smtps.commands


@pytest.mark.parametrize("encryption", ["starttls", "tls"])
def test_untrusted_certificate_ends_the_connection_before_the_login(smtp, smtps, encryption):
    server = smtp if encryption == "starttls" else smtps
    settings = make_settings(server.port, encryption=encryption)
    assert "certificate" in str(mail_error(settings, user="me", password="geheim"))
    assert not any(each.startswith("AUTH") for each in server.commands)


def test_server_without_starttls_gets_no_password(smtp, trusted):
    smtp.offers = ["AUTH PLAIN"]
    error = mail_error(make_settings(smtp.port, encryption="starttls"), user="me", password="geheim")
    assert "STARTTLS" in str(error)
    assert not any(each.startswith("AUTH") for each in smtp.commands)


@pytest.mark.parametrize(
    ("verb", "code", "is_temporary"),
    [("EHLO", 421, True), ("MAIL", 550, False), ("RCPT", 550, False), ("RCPT", 450, True), ("DATA", 554, False)],
)
def test_error_response_is_reported_with_its_code(smtp, verb, code, is_temporary):
    smtp.answers[verb] = f"{code} geheim"
    if verb == "EHLO":
        smtp.answers["HELO"] = smtp.answers[verb]
    error = mail_error(make_settings(smtp.port))
    assert str(code) in str(error)
    assert ("recipients" in str(error)) == (verb == "RCPT")
    assert error.is_temporary is is_temporary


def test_refused_login_is_reported_without_the_servers_text(smtp, trusted):
    smtp.answers["AUTH"] = "535 user me with geheim is unknown"
    error = mail_error(make_settings(smtp.port, encryption="starttls"), user="me", password="geheim")
    assert "login" in str(error)
    assert "535" in str(error)


def test_error_for_a_non_ascii_password_does_not_contain_it(smtp, trusted):
    error = mail_error(make_settings(smtp.port, encryption="starttls"), user="me", password="geheimü")
    assert "ASCII" in str(error)


def test_mail_counts_as_sent_if_one_recipient_is_accepted(smtp, caplog):
    smtp.answers["RCPT TO:<b@example.org>"] = "550 no"
    deliver(make_settings(smtp.port))
    assert len(smtp.mails) == 1
    assert "notifications.email: the server refused 1 of 2 recipients" in caplog.text
    assert "b@example.org" not in caplog.text


def test_error_after_the_mail_was_accepted_is_ignored(smtp):
    smtp.answers["QUIT"] = "500 what"
    deliver(make_settings(smtp.port))
    assert len(smtp.mails) == 1


def test_slow_mail_server_times_out(smtp):
    smtp.answers["EHLO"] = "hang"
    assert "in time" in str(mail_error(make_settings(smtp.port), timeout_seconds=0.2))


def test_refused_smtp_connection_can_be_retried():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = mail_error(make_settings(port))
    assert "ConnectionRefusedError" in str(error)
    assert error.is_temporary


def test_line_breaks_in_a_name_add_no_header(smtp):
    node = "Trainer\r\nBcc: evil@example.org\r\n\r\nbody"
    deliver(make_settings(smtp.port), message=Message(event="failed", pipeline="p", place="local", node=node))
    mail = received(smtp)
    assert mail["Bcc"] is None
    assert mail["Subject"] == r"[detloom] p failed in Trainer\r\nBcc: evil@example.org\r\n\r\nbody"


def test_line_with_a_single_dot_does_not_end_the_mail(smtp):
    message = Message(event="failed", pipeline=".", place="local", node=".", reason=".")
    deliver(make_settings(smtp.port), message=message)
    assert "Run: local" in received(smtp).get_content()
