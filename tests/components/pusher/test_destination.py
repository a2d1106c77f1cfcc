import pytest

from detloom.components.pusher.destination import leftover_number, next_version
from detloom.schemas.errors import InputError


@pytest.mark.parametrize(
    ("names", "recorded", "expected"),
    [
        ([], [], 1000),
        (["7", "5000"], [], 5001),
        (["0002000"], [], 2001),  # TensorFlow Serving reads it as 2000
        ([".push-3000"], [], 3001),  # another process may still write there
        ([".trash-3000", "12"], [], 3001),
        ([".push-notes", "notes", "٣", "-9000", "9000a"], [], 1000),
        ([], [4000], 4001),  # deleted meanwhile
        (["9223372036854775808", "9" * 300], [2**70], 1000),  # too large for a server
    ],
)
def test_next_version_is_above_every_number_ever_used(names, recorded, expected):
    assert next_version(names, recorded, 1000.9) == expected


def test_highest_possible_version_leaves_no_next_one():
    with pytest.raises(InputError, match="9223372036854775807"):
        next_version(["9223372036854775807"], [], 1000.0)


@pytest.mark.parametrize(
    ("name", "number"),
    [(".push-7", 7), (".trash-8", 8), (".push-notes", None), (".push-", None), (".push-07", None), ("7", None)],
)
def test_leftover_needs_a_prefix_and_a_version(name, number):
    assert leftover_number(name) == number
