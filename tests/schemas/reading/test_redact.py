import pytest

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.reading.redact import (
    SecretReference,
    check_secret_reference,
    escape,
    escape_lines,
    hide_secrets,
    is_secret,
    parse_secret_reference,
    redact,
    show_address,
)

SECRET_NAMES = "password SMTP_PASSWD client_secret KFP_TOKEN credentials apiKey api_key webhook Authorization"


def test_names_of_secrets_are_recognized():
    names = [*SECRET_NAMES.split(), *("path", "host", "user", "num_steps", "keypoints", "key")]
    assert [name for name in names if is_secret(name)] == SECRET_NAMES.split()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:hunter2@bucket/x", "s3://(hidden)@bucket/x"),
        ("s3://hunter2@bucket/x", "s3://(hidden)@bucket/x"),
        ("/run/s3:/key:hunter2@bucket/x", "/run/s3:/(hidden)@bucket/x"),  # a path with a single slash
        ("https://me:hunter2@more@host/x", "https://(hidden)@host/x"),
        ("s3://key:hunter2/more+hunter2=@bucket/x", "s3://(hidden)@bucket/x"),  # S3 keys contain such characters
        ("https://host/x?sig=hunter2&name=hunter2", "https://host/x?sig=(hidden)&name=(hidden)"),
        ("'https://me:hunter2@host' and 'gs://bucket/x'", "'https://(hidden)@host' and 'gs://bucket/x'"),
        ("https://host/x.tar.gz#token=hunter2", "https://host/x.tar.gz#token=(hidden)"),
        ("https://host/x.tar.gz#sha256=12ab", "https://host/x.tar.gz#sha256=12ab"),
        ("gs://bucket/cats@2/x", "gs://bucket/cats@2/x"),
        ("team@example.org", "team@example.org"),
    ],
)
def test_user_and_parameters_of_addresses_are_hidden(text, shown):
    assert hide_secrets(text) == shown
    assert redact(text) == shown


def test_long_text_is_cut_but_no_address_and_control_characters_are_escaped():
    assert redact("x" * 121) == "x" * 120 + "..."
    assert redact("a\nb\x1b") == r"a\nb\x1b"
    assert escape("a\tb") == r"a\tb"
    assert escape_lines("a\x1b\nb") == "a\\x1b\n  b"
    assert show_address(f"s3://me:hunter2@host/{'x' * 200}/a\nb") == f"s3://(hidden)@host/{'x' * 200}/a\\nb"


@pytest.mark.timeout(60)  # linear: a second; quadratic: hours
@pytest.mark.parametrize("part", [":/", ":/a:", "://u:p/", "?", "?a", "&a", "#a", "x", "' "])
def test_hiding_secrets_takes_linear_time(part):
    text = part * 500_000
    assert hide_secrets(text) == text
    assert hide_secrets(f"@{text}") == f"@{text}"


def test_long_secret_is_hidden():
    assert redact(f"s3://me:{'x' * 5000}@host/a") == "s3://(hidden)@host/a"
    assert redact(f"https://host/a?sig={'x' * 5000}") == "https://host/a?sig=(hidden)"
    assert hide_secrets("a?b?c=d&e=f s3://u:p/q@r@h/x:/y:z 'u:/v:w@h'") == (
        "a?b?c=(hidden)&e=(hidden) s3://(hidden)@h/x:/y:z 'u:/(hidden)@h'"
    )


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("env:DETLOOM_WEBHOOK", SecretReference(kind="env", name="DETLOOM_WEBHOOK")),
        ("env:_x1", SecretReference(kind="env", name="_x1")),
        ("kubernetes:hooks.team/slack_url", SecretReference(kind="kubernetes", name="hooks.team", key="slack_url")),
        ("kubernetes:0a/.dot", SecretReference(kind="kubernetes", name="0a", key=".dot")),
        (
            "secret_manager:projects/my-project/secrets/Hook_1/versions/latest",
            SecretReference(kind="secret_manager", name="projects/my-project/secrets/Hook_1/versions/latest"),
        ),
        (
            "secret_manager:projects/example.com:p1/secrets/h/versions/12",
            SecretReference(kind="secret_manager", name="projects/example.com:p1/secrets/h/versions/12"),
        ),
    ],
)
def test_reference_has_kind_and_name(text, reference):
    assert parse_secret_reference(text) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        "https://hooks.example.org/services/T0/B0/hunter2",
        "env:",
        "env:hunter2 ",
        "env:hunter2\n",
        "env:1hunter2",
        "env:hunter-2",
        "Env:HUNTER2",
        "file:/etc/hunter2",
        "kubernetes:hunter2",
        "kubernetes:/hunter2",
        "kubernetes:Hunter2/key",
        "kubernetes:hunter2/key/more",
        "kubernetes:hunter2/",
        f"kubernetes:{'hunter2' * 40}/key",
        "secret_manager:hunter2",
        "secret_manager:projects/p/secrets/hunter2",
        "secret_manager:projects/p/secrets/hunter2/versions/",
        "secret_manager:projects/p/secrets/hunter2/versions/newest",
        "secret_manager:projects/../secrets/hunter2/versions/1/../../../x",
        "secret_manager:projects/p/secrets/hunter2/versions/1?alt=media",
    ],
)
def test_text_that_is_not_a_reference_is_not_shown(text):
    with pytest.raises(InputError, match=r"got .*allowed: env:NAME, kubernetes:") as caught:
        parse_secret_reference(text)
    assert "hunter2" not in str(caught.value).lower()


def test_error_names_the_field_and_empty_is_allowed():
    check_secret_reference("password", "")
    check_secret_reference("password", "env:SMTP_PASSWORD")
    with pytest.raises(FieldError, match=r"^password: got .*allowed: env:NAME") as caught:
        check_secret_reference("password", "hunter2")
    assert "hunter2" not in str(caught.value)
