import pytest

from detloom.schemas.redact import escape, hide_secrets, is_secret, redact, show_address


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "SMTP_PASSWD",
        "client_secret",
        "KFP_TOKEN",
        "credentials",
        "apiKey",
        "api_key",
        "webhook",
        "Authorization",
    ],
)
def test_names_of_secrets_are_known(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["path", "host", "user", "num_steps", "keypoints", "key"])
def test_other_names_are_not_taken_for_secrets(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:hunter2@bucket/x", "s3://(hidden)@bucket/x"),
        ("s3://hunter2@bucket/x", "s3://(hidden)@bucket/x"),
        ("/run/s3:/key:hunter2@bucket/x", "/run/s3:/(hidden)@bucket/x"),  # a path that lost a slash
        ("https://me:hunter2@more@host/x", "https://(hidden)@host/x"),
        ("s3://key:hunter2/more+hunter2=@bucket/x", "s3://(hidden)@bucket/x"),  # as keys of S3 look
        ("https://host/x?sig=hunter2&name=hunter2", "https://host/x?sig=(hidden)&name=(hidden)"),
        ("'https://me:hunter2@host' and 'gs://bucket/x'", "'https://(hidden)@host' and 'gs://bucket/x'"),
        ("gs://bucket/cats@2/x", "gs://bucket/cats@2/x"),
        ("team@example.org", "team@example.org"),
    ],
)
def test_addresses_are_shown_without_user_and_parameters(text, shown):
    assert hide_secrets(text) == shown
    assert redact(text) == shown


def test_a_long_text_is_cut_and_a_message_stays_on_its_line():
    assert redact("x" * 121) == "x" * 120 + "..."
    assert redact("a\nb\x1b") == r"a\nb\x1b"
    assert escape("a\tb") == r"a\tb"


def test_an_address_is_shown_whole():
    assert show_address(f"s3://me:hunter2@host/{'x' * 200}/a\nb") == f"s3://(hidden)@host/{'x' * 200}/a\\nb"


@pytest.mark.timeout(60)  # linear: a second; quadratic: hours
@pytest.mark.parametrize("part", [":/", ":/a:", "://u:p/", "?", "?a", "&a", "x", "' "])
def test_a_text_made_to_take_long_does_not(part):
    text = part * 500_000
    assert hide_secrets(text) == text
    assert hide_secrets(f"@{text}") == f"@{text}"


def test_a_secret_is_hidden_however_long_it_is():
    assert redact(f"s3://me:{'x' * 5000}@host/a") == "s3://(hidden)@host/a"
    assert redact(f"https://host/a?sig={'x' * 5000}") == "https://host/a?sig=(hidden)"
    assert hide_secrets("a?b?c=d&e=f s3://u:p/q@r@h/x:/y:z 'u:/v:w@h'") == (
        "a?b?c=(hidden)&e=(hidden) s3://(hidden)@h/x:/y:z 'u:/(hidden)@h'"
    )
