import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.run_file.nodes import NodeSettings, Retry, retry_of, settings_of


def test_missing_retry_settings_come_from_the_common_entry():
    nodes = (
        NodeSettings(node="Trainer", max_retries=5, time_limit_minutes=90),
        NodeSettings(node="*", max_retries=1, backoff_seconds=10, backoff_factor=3, max_backoff_seconds=60),
        NodeSettings(node="Pusher", max_retries=0),
    )
    expected = {"backoff_seconds": 10, "backoff_factor": 3, "max_backoff_seconds": 60}
    assert retry_of(nodes, "Trainer") == Retry(max_retries=5, time_limit_seconds=5400, **expected)
    assert retry_of(nodes, "BaselineResolver") == Retry(max_retries=1, **expected)
    assert retry_of(nodes, "Pusher").max_retries == 0
    assert (retry_of((), "Trainer").max_retries, retry_of((), "Trainer").time_limit_seconds) == (0, None)


def test_waiting_time_grows_up_to_the_limit_and_may_be_0():
    retry = Retry(backoff_seconds=30, backoff_factor=2, max_backoff_seconds=200)
    assert [retry.wait_seconds(number) for number in (1, 2, 3, 4)] == [30, 60, 120, 200]
    assert Retry(backoff_factor=10, max_backoff_seconds=200).wait_seconds(5000) == 200
    assert [Retry(backoff_seconds=0).wait_seconds(number) for number in (3, 5000)] == [0, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_retries", -1),
        ("backoff_seconds", -1.0),
        ("backoff_factor", 0.5),
        ("max_backoff_seconds", 0.0),
        ("time_limit_minutes", 0.0),
    ],
)
def test_number_out_of_range_is_rejected(field, value):
    with pytest.raises(FieldError, match=f"{field}: got {value}"):
        NodeSettings(node="Trainer", **{field: value})


@pytest.mark.parametrize(("node", "image"), [("*", "x/detloom:1"), ("Trainer", "Not An Image")])
def test_an_image_is_an_address_and_for_one_node(node, image):
    with pytest.raises(FieldError, match=f"image: got '{image}'"):
        NodeSettings(node=node, image=image)


def test_only_nodes_that_use_beam_have_options_of_beam():
    assert NodeSettings(node="*", beam_args=("--runner=FlinkRunner",)).beam_args == ("--runner=FlinkRunner",)
    with pytest.raises(FieldError, match=r"beam_args: .*Trainer.*StatisticsGen"):
        NodeSettings(node="Trainer", beam_args=("--runner=FlinkRunner",))


def test_empty_options_of_beam_replace_those_of_the_common_entry():
    nodes = (
        NodeSettings(node="*", beam_args=("--runner=FlinkRunner",)),
        NodeSettings(node="StatisticsGen", beam_args=()),
    )
    assert settings_of(nodes, "StatisticsGen").beam_args == ()
    assert settings_of(nodes, "DetectionEvaluator").beam_args == ("--runner=FlinkRunner",)


def test_secrets_among_the_options_of_beam_are_refused_without_their_value():
    with pytest.raises(FieldError, match=r"^beam_args: got --s3_secret_key, allowed: [^=]*$"):
        NodeSettings(node="StatisticsGen", beam_args=("--s3_secret_key=abc",))
