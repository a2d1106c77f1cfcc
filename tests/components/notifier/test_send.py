import json
import logging

import pytest

from detloom.components.notifier import send as module
from detloom.components.notifier.run_message import RunMessage
from detloom.components.notifier.send import SENT_FILE, SentMessages, send
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook

MESSAGE = RunMessage(event="refused", pipeline="cells", place="local", run="r1", reason="AP 0.1 is below 0.3.")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(module, "_WAITS_SECONDS", (0, 0))


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="absl")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def mail_to(server):
    return Email(host="127.0.0.1", port=server.port, encryption="none", sender="a@b.c", recipients=("d@e.f",))


def test_message_is_sent_to_all_receivers(web, hook, smtp, log):
    send(MESSAGE, Notifications(webhook=hook, email=mail_to(smtp)))
    assert json.loads(web.requests[0].body) == MESSAGE.to_payload()
    assert len(smtp.mails) == 1
    assert log() == [
        ("INFO", "notifications.webhook: sent 'cells: the model was refused'."),
        ("INFO", "notifications.email: sent 'cells: the model was refused'."),
    ]


def test_disabled_event_is_not_sent(web, hook):
    send(MESSAGE, Notifications(events=("failed", "pushed", "skipped"), webhook=hook))
    assert web.requests == []


@pytest.mark.parametrize(
    ("statuses", "num_requests", "level"),
    [([503], 3, "WARNING"), ([503, 503, 200], 3, "INFO"), ([404], 1, "WARNING")],
)
def test_temporary_error_is_retried_twice_with_the_same_id(statuses, num_requests, level, web, hook, log):
    web.statuses = list(statuses)
    send(MESSAGE, Notifications(webhook=hook))
    assert {request.headers["Idempotency-Key"] for request in web.requests} == {MESSAGE.id}
    assert len(web.requests) == num_requests
    ((logged, text),) = log()
    assert logged == level
    assert "notifications.webhook" in text
    assert "'cells: the model was refused'" in text
    assert level == "INFO" or str(statuses[0]) in text


def test_failed_receiver_does_not_prevent_the_other(smtp, monkeypatch, log):
    monkeypatch.delenv("HOOK", raising=False)
    send(MESSAGE, Notifications(webhook=Webhook(url="env:HOOK"), email=mail_to(smtp)))
    assert len(smtp.mails) == 1
    level, text = log()[0]
    assert level == "WARNING"
    assert text.startswith("notifications.webhook: 'cells: the model was refused'")
    assert "HOOK is not set" in text


def test_unexpected_error_is_logged_without_its_text(hook, monkeypatch, log):
    def fail(*_):
        raise RuntimeError("geheim")

    monkeypatch.setattr(module, "post_webhook", fail)
    send(MESSAGE, Notifications(webhook=hook))
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
    send(MESSAGE, Notifications(webhook=Webhook(url=hook.url, authorization="env:TOKEN")))
    assert web.requests[0].headers["Authorization"] == "Bearer sehrgeheim"
    assert "geheim" not in caplog.text
    assert "127.0.0.1" not in caplog.text


def test_sent_message_is_not_repeated_but_a_failed_one_is(web, hook, smtp, tmp_path):
    notifications = Notifications(webhook=hook, email=mail_to(smtp))
    for status, counts in ((404, (1, 1)), (200, (2, 1)), (200, (2, 1))):
        web.statuses = [status]
        send(MESSAGE, notifications, SentMessages(tmp_path / "node"))
        assert (len(web.requests), len(smtp.mails)) == counts
    sent = SentMessages(tmp_path / "node")
    assert [sent.has(MESSAGE.id, way) for way in ("webhook", "email", "other")] == [True, True, False]
    assert not sent.has("b", "webhook")


def test_list_with_invalid_utf8_is_still_read(tmp_path):
    (tmp_path / SENT_FILE).write_bytes(b"\xff\xfe\na email\n")
    assert SentMessages(tmp_path).has("a", "email")


def test_list_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "node").write_text("a file")
    SentMessages(tmp_path / "node").add("a", "email")
    assert "sent_messages.txt cannot be written (" in caplog.text
