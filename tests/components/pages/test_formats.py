import pytest

from detloom.components.pages import formats


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.01, "1 %"),
        (0.0123, "1.2 %"),
        (0.5, "50 %"),
        (0.9999, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_shares_never_round_to_nothing_or_to_all(share, text):
    assert formats.format_share(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "+0.012"), (-0.5, "-0.500"), (0.0, "0.000"), (-0.0004, "0.000"), (None, "–")]
)
def test_a_change_has_a_sign_if_its_digits_show_one(value, text):
    assert formats.format_signed(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.5, "50.0 %"), (0.1234, "12.3 %"), (1.0, "100.0 %"), (None, "–")])
def test_a_percentage_has_one_decimal(value, text):
    assert formats.format_percent(value) == text


def test_numbers_have_three_decimals_and_counts_a_separator():
    assert (formats.format_number(0.12345), formats.format_count(1234567.0)) == ("0.123", "1,234,567")


def test_what_is_not_known_is_a_dash():
    assert {format(None) for format in (formats.format_number, formats.format_count, formats.format_share)} == {"–"}


def test_a_name_that_is_too_long_is_cut():
    assert formats.shorten("k" * 80) == "k" * 80
    assert formats.shorten("k" * 81) == "k" * 79 + "…"
