import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook
from detloom.schemas.run_file.read_run_file import read_run_file

EMAIL = {"host": "smtp.example.org", "sender": "runs@example.org", "recipients": ("team@example.org",)}
RUN = """
name: cats
data: {format: voc, path: photos, splits: {train: a, eval: b, test: c}}
train: {batch_size: 2, num_steps: 3}
"""


def read(tmp_path, text):
    (tmp_path / "photos").mkdir(exist_ok=True)
    (tmp_path / "run.yaml").write_text(RUN + text)
    return read_run_file(tmp_path / "run.yaml").notifications


def test_notifications_are_read_from_the_run_file(tmp_path):
    text = """
notifications:
  events: [failed, pushed]
  webhook: {url: "env:HOOK", authorization: "secret_manager:projects/p/secrets/t/versions/latest"}
  email: {host: smtp.example.org, sender: a@example.org, recipients: [team@example.org], user: env:U, password: env:P}
"""
    found = read(tmp_path, text)
    assert found.events == ("failed", "pushed")
    assert found.webhook.url == "env:HOOK"
    assert found.email.port == 587
    assert found.email.encryption == "starttls"
    assert from_json(Notifications, to_canonical_json(found)) == found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "https://hooks.example.org/services/T0/B0/hunter2"}, r"url: got .*, allowed: .*env:"),
        ({"url": "hunter2"}, r"url: got .*, allowed: .*env:"),
        ({"url": ""}, r"^url: must not be empty"),
        ({"url": "env:HOOK", "authorization": "Bearer hunter2"}, r"authorization: got .*allowed: env:NAME"),
    ],
)
def test_invalid_webhook_is_rejected(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        Webhook(**settings)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": ""}, r"host: got '', allowed: the name of a server"),
        ({"host": "smtp.example.org:587"}, r"host: got 'smtp.example.org:587', allowed: .*without a port"),
        ({"host": "smtp\r\nx"}, r"host: got 'smtp\\r\\nx'"),
        ({"port": 0}, r"port: got 0, allowed: 1 to 65535"),
        ({"port": 65536}, r"port: got 65536"),
        ({"recipients": ()}, r"recipients: must not be empty"),
        ({"user": "env:U"}, r"user: got one of user and password, allowed: both or none"),
        ({"password": "env:P"}, r"user: got one of user and password, allowed: both or none"),
        ({"user": "env:U", "password": "env:P", "encryption": "none"}, r"encryption: got 'none' with a password"),
        ({"user": "env:U", "password": "hunter2"}, r"password: got .*allowed: env:NAME"),
        ({"user": "hunter2", "password": "env:P"}, r"user: got .*allowed: env:NAME"),
    ],
)
def test_invalid_email_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        Email(**{**EMAIL, **settings})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "team",
        "@example.org",
        "team@",
        "a@b@c",
        "a@example.org,b@example.org",
        "Team <team@example.org>",
        "team:a@example.org;",
        "team@example.org\r\nBcc: b@example.org",
        "te am@example.org",
        "team\x00@example.org",
        '"team"@example.org',
        "(team)team@example.org",
        f"{'x' * 250}@example.org",
    ],
)
@pytest.mark.parametrize("field", ["sender", "recipients"])
def test_invalid_email_address_is_rejected(field, address):
    value = address if field == "sender" else ("good@example.org", address)
    with pytest.raises(InputError, match=f"{field}: got .*, allowed: a plain address such as team@example.org"):
        Email(**{**EMAIL, field: value})


def test_notifications_need_a_recipient(tmp_path):
    assert read(tmp_path, "") is None
    with pytest.raises(InputError, match=r"run\.yaml:5: notifications\.webhook: .*email"):
        read(tmp_path, "notifications: {events: [failed]}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"events": ("failed", "failed")}, "events: .*'failed' appears twice"),
        *(
            ({"timeout_seconds": seconds}, "timeout_seconds: got .*, allowed: above 0, at most 600")
            for seconds in (0.0, -1.0, 601.0)
        ),
    ],
)
def test_invalid_notifications_are_rejected(settings, message):
    with pytest.raises(InputError, match=message):
        Notifications(webhook=Webhook(url="env:HOOK"), **settings)


@pytest.mark.parametrize(
    "text",
    [
        "notifications: {webhook: https://hooks.example.org/services/T0/B0/hunter2}",
        "notifications: {webhook: {url: https://hooks.example.org/services/T0/B0/hunter2}}",
        "notifications: {webhook: {url: [https://hooks.example.org/services/T0/B0/hunter2]}}",
        "notifications: {webhook: {url: env:HOOK, authorization: [hunter2]}}",
        "notifications: {email: {host: h, sender: a@b, recipients: [c@d], user: env:U, password: [hunter2]}}",
        "notifications: {email: {host: h, sender: a@b, recipients: [c@d], user: env:U, password: hunter2}}",
        "kubeflow: {image: i, token: hunter2}",
    ],
)
def test_secret_in_a_run_file_is_rejected_and_not_shown(tmp_path, text):
    with pytest.raises(InputError, match=r"run\.yaml:5: ") as caught:
        read(tmp_path, text)
    assert "hunter2" not in str(caught.value)
