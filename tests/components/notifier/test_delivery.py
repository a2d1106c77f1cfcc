import email
import email.policy
import json
import os
import socket

import pytest

from detloom.components.notifier.delivery import NotSentError, post_json, send_mail, try_again
from detloom.components.notifier.messages import RunMessage
from detloom.schemas.run_file.notifications import Email

MESSAGE = RunMessage(
    event="pushed", pipeline="cells", place="local", run="r1", version="3", reason="Größer ist besser."
)


@pytest.mark.parametrize(
    ("num_failures", "is_temporary", "num_calls"), [(0, True, 1), (2, True, 3), (3, True, 3), (9, False, 1)]
)
def test_temporary_errors_are_retried_twice(num_failures, is_temporary, num_calls):
    calls = []

    def send():
        calls.append(None)
        if len(calls) <= num_failures:
            raise NotSentError("busy", is_temporary=is_temporary)

    if num_calls > num_failures:
        try_again(send, (0, 0))
    else:
        with pytest.raises(NotSentError, match=r"^busy$"):
            try_again(send, (0, 0))
    assert len(calls) == num_calls


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


@pytest.mark.parametrize(
    ("status", "is_temporary"), [(302, False), (308, False), (400, False), (404, False), (429, True), (500, True)]
)
def test_error_status_is_reported_and_redirects_are_not_followed(web, status, is_temporary):
    web.statuses, web.headers = [status], {"Location": f"{web.url}/elsewhere"}
    error = post_error(web.url)
    assert str(status) in str(error)
    assert ("redirect" in str(error)) == (status < 400)
    assert error.is_temporary is is_temporary
    assert len(web.requests) == 1


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


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_refused_connections_can_be_retried(free_port):
    errors = (post_error(f"http://127.0.0.1:{free_port}/geheim"), mail_error(make_settings(free_port)))
    assert all("ConnectionRefusedError" in str(error) and error.is_temporary for error in errors)


def test_untrusted_certificate_is_refused(https_web):
    error = post_error(https_web.url)
    assert "certificate" in str(error)
    assert not error.is_temporary
    assert https_web.requests == []


def test_trusted_certificate_is_accepted_for_its_name_only(https_web, trusted):
    assert "certificate" in str(post_error(https_web.url.replace("127.0.0.1", "localhost")))
    post(https_web.url, authorization="Bearer geheim")
    assert len(https_web.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "data:,geheim",
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
def test_invalid_address_is_refused_and_not_repeated(url):
    error = post_error(url)
    assert "not a web address" in str(error)
    assert "geheim" not in str(error)
    assert not error.is_temporary


@pytest.mark.parametrize("value", ["Bearer a\r\nX: geheim", "Bearer geheim☃"])
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
    send_mail(message, settings, user=user, password=password, timeout_seconds=timeout_seconds)


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
    assert "NotSupported" in str(error)
    assert not error.is_temporary
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


def test_line_breaks_in_a_name_add_no_header(smtp):
    node = "Trainer\r\nBcc: evil@example.org\r\n\r\nbody"
    deliver(make_settings(smtp.port), message=RunMessage(event="failed", pipeline="p", place="local", node=node))
    mail = received(smtp)
    assert mail["Bcc"] is None
    assert mail["Subject"] == r"[detloom] p failed in Trainer\r\nBcc: evil@example.org\r\n\r\nbody"


def test_line_with_a_single_dot_does_not_end_the_mail(smtp):
    message = RunMessage(event="failed", pipeline=".", place="local", node=".", reason=".")
    deliver(make_settings(smtp.port), message=message)
    assert "Run: local" in received(smtp).get_content()
