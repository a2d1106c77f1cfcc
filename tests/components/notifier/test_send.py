import json
import logging

import pytest

from detloom.components.notifier import send as module
from detloom.components.notifier.messages import RunMessage
from detloom.components.notifier.send import MAX_ENTRIES, SENT_FILE, SentMessages, send
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook

MESSAGE = RunMessage(event="refused", pipeline="cells", place="local", run="r1", reason="AP 0.1 is below 0.3.")


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


def test_message_is_sent_to_all_receivers(web, hook, smtp, log):
    assert send(MESSAGE, Notifications(webhook=hook, email=mail_to(smtp))) == ("webhook", "email")
    assert json.loads(web.requests[0].body) == MESSAGE.to_payload()
    assert len(smtp.mails) == 1
    assert log() == [
        ("INFO", "notifications.webhook: sent 'cells: the model was refused'."),
        ("INFO", "notifications.email: sent 'cells: the model was refused'."),
    ]


def test_disabled_event_is_not_sent(web, hook):
    assert send(MESSAGE, Notifications(events=("failed", "pushed", "skipped"), webhook=hook)) == ()
    assert web.requests == []


def test_only_text_sends_nothing_but_the_text(web, hook):
    send(MESSAGE, Notifications(webhook=Webhook(url=hook.url, only_text=True)))
    assert json.loads(web.requests[0].body) == {"text": MESSAGE.to_text()}


def test_server_error_is_retried_twice_with_the_same_id(web, hook, log):
    web.statuses = [503]
    assert send(MESSAGE, Notifications(webhook=hook), waits_seconds=(0, 0)) == ()
    assert {request.headers["Idempotency-Key"] for request in web.requests} == {MESSAGE.id}
    assert len(web.requests) == 3
    ((level, text),) = log()
    assert level == "WARNING"
    parts = ("notifications.webhook", "'cells: the model was refused'", "503")
    assert [part for part in parts if part not in text] == []


def test_retry_stops_after_success(web, hook):
    web.statuses = [503, 503, 200]
    assert send(MESSAGE, Notifications(webhook=hook), waits_seconds=(0, 0)) == ("webhook",)
    assert len(web.requests) == 3


def test_failed_receiver_does_not_prevent_the_other(smtp, monkeypatch, log):
    monkeypatch.delenv("HOOK", raising=False)
    notifications = Notifications(webhook=Webhook(url="env:HOOK"), email=mail_to(smtp))
    assert send(MESSAGE, notifications) == ("email",)
    level, text = log()[0]
    assert level == "WARNING"
    assert text.startswith("notifications.webhook: 'cells: the model was refused'")
    assert "HOOK is not set" in text


def test_unexpected_error_is_logged_without_its_text(hook, monkeypatch, log):
    def fail(*_, **__):
        raise RuntimeError("geheim")

    monkeypatch.setattr(module, "post_json", fail)
    assert send(MESSAGE, Notifications(webhook=hook)) == ()
    ((level, text),) = log()
    assert level == "WARNING"
    assert "RuntimeError" in text
    assert "geheim" not in text


@pytest.mark.parametrize("status", [200, 302, 404, 500])
def test_log_contains_neither_address_nor_secret(web, hook, monkeypatch, caplog, status):
    for logger in (None, "absl"):
        caplog.set_level(logging.DEBUG, logger=logger)
    monkeypatch.setenv("TOKEN", "Bearer sehrgeheim")
    web.statuses = [status]
    send(MESSAGE, Notifications(webhook=Webhook(url=hook.url, authorization="env:TOKEN")), waits_seconds=())
    assert web.requests[0].headers["Authorization"] == "Bearer sehrgeheim"
    assert "geheim" not in caplog.text
    assert "127.0.0.1" not in caplog.text


def test_sent_message_is_not_repeated_but_a_failed_one_is(web, hook, smtp, tmp_path):
    notifications = Notifications(webhook=hook, email=mail_to(smtp))
    web.statuses = [404]
    assert send(MESSAGE, notifications, SentMessages(str(tmp_path))) == ("email",)
    web.statuses = [200]
    assert send(MESSAGE, notifications, SentMessages(str(tmp_path))) == ("webhook",)
    assert send(MESSAGE, notifications, SentMessages(str(tmp_path))) == ()
    assert (len(web.requests), len(smtp.mails)) == (2, 1)


def test_list_is_stored_in_the_folder(tmp_path):
    SentMessages(str(tmp_path / "node")).add("a", "webhook")
    sent = SentMessages(str(tmp_path / "node"))
    assert sent.has("a", "webhook")
    assert not sent.has("a", "email")
    assert not sent.has("b", "webhook")


def test_without_a_folder_the_list_is_not_stored():
    sent = SentMessages(None)
    sent.add("a", "email")
    assert sent.has("a", "email")
    assert not SentMessages(None).has("a", "email")


def test_oldest_entries_are_dropped(tmp_path):
    (tmp_path / SENT_FILE).write_text("".join(f"{number} email\n" for number in range(MAX_ENTRIES)))
    SentMessages(str(tmp_path)).add("new", "email")
    sent = SentMessages(str(tmp_path))
    assert sent.has("new", "email")
    assert sent.has("1", "email")
    assert not sent.has("0", "email")


def test_list_with_invalid_utf8_is_still_read(tmp_path):
    (tmp_path / SENT_FILE).write_bytes(b"\xff\xfe\na email\n")
    assert SentMessages(str(tmp_path)).has("a", "email")


def test_unreadable_or_unwritable_list_is_a_warning(tmp_path, caplog):
    (tmp_path / "node").write_text("a file")
    sent = SentMessages(str(tmp_path / "node"))
    sent.add("a", "email")
    assert sent.has("a", "email")
    assert "sent_messages.txt cannot be read (" in caplog.text
    assert "sent_messages.txt cannot be written (" in caplog.text
