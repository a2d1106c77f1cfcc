import email
import email.policy
import socket

import pytest

from detloom.components.notifier.delivery import NotSentError
from detloom.components.notifier.mail import build_mail, send_mail
from detloom.components.notifier.messages import Message
from detloom.schemas.notifications_config import Email

MESSAGE = Message(event="pushed", pipeline="cells", place="local", run="r1", version="3", reason="Größer ist besser.")


def make_settings(port=587, **settings):
    defaults = {"encryption": "none", "sender": "runs@example.org", "recipients": ("a@example.org", "b@example.org")}
    return Email(host="127.0.0.1", port=port, **{**defaults, **settings})


def deliver(settings, *, message=MESSAGE, user="", password="", timeout_seconds=5.0):
    mail = build_mail(message, settings)
    send_mail(mail, settings, user=user, password=password, timeout_seconds=timeout_seconds)


def refusal_of(settings, **arguments):
    with pytest.raises(NotSentError) as caught:
        deliver(settings, **arguments)
    assert "127.0.0.1" not in str(caught.value)
    assert "geheim" not in str(caught.value)
    return caught.value


def received(server):
    (mail,) = server.mails
    return email.message_from_bytes(mail, policy=email.policy.default)


def test_a_mail_arrives_as_it_was_meant(smtp):
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


def test_with_starttls_nothing_but_greetings_goes_unencrypted(smtp, trusted):
    deliver(make_settings(smtp.port, encryption="starttls"), user="me", password="geheim")
    assert smtp.encrypted == [True]
    before = smtp.commands[: smtp.commands.index("STARTTLS")]
    assert [each.split(" ")[0] for each in before] == ["EHLO"]


def test_tls_from_the_first_byte(smtps, trusted):
    deliver(make_settings(smtps.port, encryption="tls"), user="me", password="geheim")
    assert smtps.encrypted == [True]
    assert "STARTTLS" not in smtps.commands


@pytest.mark.parametrize("encryption", ["starttls", "tls"])
def test_a_certificate_that_nobody_trusts_ends_it(smtp, smtps, encryption):
    server = smtp if encryption == "starttls" else smtps
    settings = make_settings(server.port, encryption=encryption)
    assert str(refusal_of(settings, user="me", password="geheim")) == "the server's certificate cannot be verified"
    assert not any(each.startswith("AUTH") for each in server.commands)


def test_a_server_without_starttls_gets_no_password(smtp, trusted):
    smtp.offers = ["AUTH PLAIN"]
    error = refusal_of(make_settings(smtp.port, encryption="starttls"), user="me", password="geheim")
    assert str(error) == "the server does not offer what the settings ask for: STARTTLS, a login, or UTF-8"
    assert not any(each.startswith("AUTH") for each in smtp.commands)


@pytest.mark.parametrize(
    ("verb", "answer", "message", "may_pass"),
    [
        ("EHLO", "421 geheim", "the server answered 421", True),
        ("MAIL", "550 geheim", "the server answered 550", False),
        ("RCPT", "550 geheim", "the server refused all recipients (550)", False),
        ("RCPT", "450 geheim", "the server refused all recipients (450)", True),
        ("DATA", "554 geheim", "the server answered 554", False),
    ],
)
def test_an_answer_of_error_is_told_by_its_number(smtp, verb, answer, message, may_pass):
    smtp.answers[verb] = answer
    if verb == "EHLO":
        smtp.answers["HELO"] = answer
    error = refusal_of(make_settings(smtp.port))
    assert str(error) == message
    assert error.may_pass is may_pass


def test_a_refused_login_is_told_without_the_servers_words(smtp, trusted):
    smtp.answers["AUTH"] = "535 user me with geheim is unknown"
    error = refusal_of(make_settings(smtp.port, encryption="starttls"), user="me", password="geheim")
    assert str(error) == "the server refused the login (535)"


def test_a_password_that_smtp_cannot_send_is_not_repeated(smtp, trusted):
    error = refusal_of(make_settings(smtp.port, encryption="starttls"), user="me", password="geheimü")
    assert str(error) == "the user or the password holds characters that are not ASCII"


def test_a_server_that_refuses_one_recipient_has_taken_it_for_the_other(smtp, caplog):
    smtp.answers["RCPT TO:<b@example.org>"] = "550 no"
    deliver(make_settings(smtp.port))
    assert len(smtp.mails) == 1
    assert "notifications.email: the server refused 1 of 2 recipients." in caplog.text
    assert "b@example.org" not in caplog.text


def test_a_mail_that_is_taken_is_sent_however_the_server_says_goodbye(smtp):
    smtp.answers["QUIT"] = "500 what"
    deliver(make_settings(smtp.port))
    assert len(smtp.mails) == 1


def test_a_slow_server_is_not_waited_for(smtp):
    smtp.answers["EHLO"] = "hang"
    assert str(refusal_of(make_settings(smtp.port), timeout_seconds=0.2)) == "the server did not answer in time"


def test_a_server_that_is_not_there_may_be_asked_again():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = refusal_of(make_settings(port))
    assert str(error) == "no connection (ConnectionRefusedError)"
    assert error.may_pass


def test_line_ends_in_a_name_make_no_header(smtp):
    node = "Trainer\r\nBcc: evil@example.org\r\n\r\nbody"
    deliver(make_settings(smtp.port), message=Message(event="failed", pipeline="p", place="local", node=node))
    mail = received(smtp)
    assert mail["Bcc"] is None
    assert mail["Subject"] == r"[detloom] p failed in Trainer\r\nBcc: evil@example.org\r\n\r\nbody"


def test_a_line_with_a_single_dot_does_not_end_the_mail(smtp):
    message = Message(event="failed", pipeline=".", place="local", node=".", reason=".")
    deliver(make_settings(smtp.port), message=message)
    assert "Run: local" in received(smtp).get_content()
