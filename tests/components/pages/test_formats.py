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
def test_shares_are_never_rounded_to_0_or_100_percent(share, text):
    assert formats.format_share(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "+0.012"), (-0.5, "-0.500"), (0.0, "0.000"), (-0.0004, "0.000"), (None, "–")]
)
def test_a_change_that_rounds_to_zero_has_no_sign(value, text):
    assert formats.format_signed(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.5, "50.0 %"), (0.1234, "12.3 %"), (1.0, "100.0 %"), (None, "–")])
def test_a_percentage_has_one_decimal(value, text):
    assert formats.format_percent(value) == text


def test_numbers_have_three_decimals_and_counts_have_separators():
    assert (formats.format_number(0.12345), formats.format_count(1234567.0)) == ("0.123", "1,234,567")


def test_missing_values_are_dashes():
    assert {format(None) for format in (formats.format_number, formats.format_count, formats.format_share)} == {"–"}


def test_a_long_name_is_cut():
    assert formats.shorten("k" * 80) == "k" * 80
    assert formats.shorten("k" * 81) == "k" * 79 + "…"
