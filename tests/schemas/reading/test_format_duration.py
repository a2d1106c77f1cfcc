import pytest

from detloom.schemas.reading.format_duration import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.085, "85 ms"),
        (1, "1 s"),
        (2.44, "2.4 s"),
        (59.9, "59.9 s"),
        (60, "1 min"),
        (185.4, "3 min 5 s"),
        (3599.6, "1 h"),
        (7455, "2 h 4 min"),
    ],
)
def test_durations_have_at_most_two_units(seconds, text):
    assert format_duration(seconds) == text
