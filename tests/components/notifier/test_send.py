import json
import logging

import pytest

from detloom.components.notifier import send as module
from detloom.components.notifier.messages import Message
from detloom.components.notifier.send import send
from detloom.components.notifier.told import Told
from detloom.schemas.notifications_config import Email, Notifications, Webhook

MESSAGE = Message(event="refused", pipeline="cells", place="local", run="r1", reason="AP 0.1 is below 0.3.")


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="absl")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.fixture
def hook(web, monkeypatch):
    monkeypatch.setenv("HOOK", f"{web.url}/services/geheim")
    return Webhook(url="env:HOOK")


def mail_to(server):
    return Email(host="127.0.0.1", port=server.port, encryption="none", sender="a@b.c", recipients=("d@e.f",))


def test_it_goes_everywhere_it_is_asked_for(web, hook, smtp, log):
    assert send(MESSAGE, Notifications(webhook=hook, email=mail_to(smtp))) == ("webhook", "email")
    assert json.loads(web.requests[0].body) == MESSAGE.to_payload()
    assert len(smtp.mails) == 1
    assert log() == [
        ("INFO", "notifications.webhook: sent 'cells: the model was refused'."),
        ("INFO", "notifications.email: sent 'cells: the model was refused'."),
    ]


def test_an_event_that_nobody_asked_for_is_not_sent(web, hook):
    assert send(MESSAGE, Notifications(events=("failed", "pushed", "skipped"), webhook=hook)) == ()
    assert web.requests == []


def test_a_chat_that_takes_text_only_gets_no_more(web, hook):
    send(MESSAGE, Notifications(webhook=Webhook(url=hook.url, only_text=True)))
    assert json.loads(web.requests[0].body) == {"text": MESSAGE.to_text()}


def test_a_server_in_trouble_is_asked_three_times_with_the_same_id(web, hook, log):
    web.statuses = [503]
    assert send(MESSAGE, Notifications(webhook=hook), waits_seconds=(0, 0)) == ()
    assert {request.headers["Idempotency-Key"] for request in web.requests} == {MESSAGE.id}
    assert len(web.requests) == 3
    assert log() == [
        (
            "WARNING",
            "notifications.webhook: 'cells: the model was refused' was not sent: the server answered 503, 3 tries.",
        )
    ]


def test_a_server_that_recovers_gets_it_once(web, hook):
    web.statuses = [503, 503, 200]
    assert send(MESSAGE, Notifications(webhook=hook), waits_seconds=(0, 0)) == ("webhook",)
    assert len(web.requests) == 3


def test_one_way_that_fails_does_not_keep_the_other(smtp, monkeypatch, log):
    monkeypatch.delenv("HOOK", raising=False)
    notifications = Notifications(webhook=Webhook(url="env:HOOK"), email=mail_to(smtp))
    assert send(MESSAGE, notifications) == ("email",)
    assert log()[0] == (
        "WARNING",
        "notifications.webhook: 'cells: the model was refused' was not sent: the environment variable HOOK is not set.",
    )


def test_a_mistake_of_ours_is_a_warning_without_its_text(hook, monkeypatch, log):
    def fail(*_, **__):
        raise RuntimeError("geheim")

    monkeypatch.setattr(module, "post_json", fail)
    assert send(MESSAGE, Notifications(webhook=hook)) == ()
    assert log() == [("WARNING", "notifications.webhook: 'cells: the model was refused' was not sent: RuntimeError.")]


@pytest.mark.parametrize("status", [200, 302, 404, 500])
def test_no_line_of_the_log_holds_address_or_secret(web, hook, monkeypatch, caplog, status):
    for logger in (None, "absl"):
        caplog.set_level(logging.DEBUG, logger=logger)
    monkeypatch.setenv("TOKEN", "Bearer sehrgeheim")
    web.statuses = [status]
    send(MESSAGE, Notifications(webhook=Webhook(url=hook.url, authorization="env:TOKEN")), waits_seconds=())
    assert web.requests[0].headers["Authorization"] == "Bearer sehrgeheim"
    assert "geheim" not in caplog.text
    assert "127.0.0.1" not in caplog.text


def test_a_server_that_drips_is_left_after_three_times_the_limit(web, hook, log):
    # Each byte comes within the socket's limit; all of them would take minutes.
    def answer(handler):
        for _ in range(3000):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            handler.connection.settimeout(0.05)
            try:
                handler.connection.recv(1)
            except TimeoutError:
                continue
            return

    web.answer = answer
    assert send(MESSAGE, Notifications(webhook=hook, timeout_seconds=0.2)) == ()
    assert log()[0][1].endswith("no answer within 0.6 s.")


def test_a_mail_server_that_never_stops_talking_is_left(smtp, log):
    smtp.answers["EHLO"] = "endless"
    notifications = Notifications(email=mail_to(smtp), timeout_seconds=0.1)
    assert send(MESSAGE, notifications, waits_seconds=()) == ()
    assert "was not sent" in log()[0][1]


def test_what_was_told_is_not_told_again_and_what_was_not_is(web, hook, smtp, tmp_path):
    notifications = Notifications(webhook=hook, email=mail_to(smtp))
    web.statuses = [404]
    assert send(MESSAGE, notifications, Told(str(tmp_path))) == ("email",)
    web.statuses = [200]
    assert send(MESSAGE, notifications, Told(str(tmp_path))) == ("webhook",)
    assert send(MESSAGE, notifications, Told(str(tmp_path))) == ()
    assert (len(web.requests), len(smtp.mails)) == (2, 1)
