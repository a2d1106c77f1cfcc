import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.node_config import NodeSettings, Retry, check_nodes, retry_of


def test_a_node_without_settings_is_tried_once_and_as_long_as_it_takes():
    retry = retry_of((), "Trainer")
    assert (retry.max_retries, retry.time_limit_seconds) == (0, None)


def test_what_a_nodes_own_entry_leaves_open_comes_from_the_entry_for_all():
    nodes = (
        NodeSettings(node="Trainer", max_retries=5, time_limit_minutes=90),
        NodeSettings(node="*", max_retries=1, backoff_seconds=10, backoff_factor=3, max_backoff_seconds=60),
    )
    expected = {"backoff_seconds": 10, "backoff_factor": 3, "max_backoff_seconds": 60}
    assert retry_of(nodes, "Trainer") == Retry(max_retries=5, time_limit_seconds=5400, **expected)
    assert retry_of(nodes, "BaselineResolver") == Retry(max_retries=1, **expected)


def test_zero_tries_of_a_node_overrule_those_of_all():
    nodes = (NodeSettings(node="*", max_retries=3), NodeSettings(node="Pusher", max_retries=0))
    assert retry_of(nodes, "Pusher").max_retries == 0


def test_waits_grow_up_to_the_longest():
    retry = Retry(backoff_seconds=30, backoff_factor=2, max_backoff_seconds=200)
    assert [retry.wait_seconds(number) for number in (1, 2, 3, 4)] == [30, 60, 120, 200]


def test_so_many_failures_that_no_float_holds_the_wait_are_the_longest_wait():
    assert Retry(backoff_factor=10, max_backoff_seconds=200).wait_seconds(5000) == 200


def test_a_wait_of_nothing_is_allowed():
    assert Retry(backoff_seconds=0).wait_seconds(3) == 0
    assert Retry(backoff_seconds=0).wait_seconds(5000) == 0


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
def test_a_number_that_makes_no_sense_is_refused_by_field(field, value):
    with pytest.raises(FieldError, match=f"{field}: got {value}"):
        NodeSettings(node="Trainer", **{field: value})


def test_two_entries_of_a_node_are_refused():
    with pytest.raises(FieldError, match="two entries for Trainer"):
        check_nodes((NodeSettings(node="Trainer"), NodeSettings(node="*"), NodeSettings(node="Trainer")))
