import pytest

from detloom.components.pusher.destination import leftover_number, next_version, version_numbers
from detloom.schemas.errors import InputError


@pytest.mark.parametrize(
    ("names", "recorded", "expected"),
    [
        ([], [], 1000),
        (["7", "5000"], [], 5001),
        (["0002000"], [], 2001),  # padded: TensorFlow Serving reads it as 2000
        ([".push-3000"], [], 3001),  # somebody may still write there
        ([".trash-3000", "12"], [], 3001),
        ([".push-notes", "notes", "٣", "-9000", "9000a"], [], 1000),
        ([], [4000], 4001),  # deleted since
        (["9223372036854775808", "9" * 300], [2**70], 1000),  # no server can read these
    ],
)
def test_the_next_version_is_above_every_number_that_was_ever_given(names, recorded, expected):
    assert next_version(names, recorded, 1000.9) == expected


def test_a_version_after_which_there_is_none_is_refused():
    with pytest.raises(InputError, match="got the number 9223372036854775807 among the versions"):
        next_version(["9223372036854775807"], [], 1000.0)


def test_a_number_that_no_server_can_read_is_no_version():
    assert version_numbers(["9223372036854775808", "9223372036854775807", "8", "08"]) == [8, 9223372036854775807]


@pytest.mark.parametrize(
    ("name", "number"),
    [(".push-7", 7), (".trash-8", 8), (".push-notes", None), (".push-", None), (".push-07", None), ("7", None)],
)
def test_only_a_prefix_with_a_version_is_a_leftover(name, number):
    assert leftover_number(name) == number
