import pytest

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.secret_reference import SecretReference, check_secret_reference, parse_secret_reference


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
def test_a_reference_names_its_kind_and_place(text, reference):
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
def test_what_is_no_reference_may_be_the_secret_itself_and_is_not_repeated(text):
    with pytest.raises(InputError, match=r"got no reference to a secret, allowed: env:NAME, kubernetes:") as caught:
        parse_secret_reference(text)
    assert "hunter2" not in str(caught.value).lower()


def test_a_field_is_named_and_an_empty_one_is_none():
    check_secret_reference("password", "")
    check_secret_reference("password", "env:SMTP_PASSWORD")
    with pytest.raises(FieldError, match=r"^password: got no reference to a secret, allowed: env:NAME") as caught:
        check_secret_reference("password", "hunter2")
    assert "hunter2" not in str(caught.value)
