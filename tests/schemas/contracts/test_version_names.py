import pytest

from detloom.schemas.contracts.version_names import parse_version, parse_versions


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0", 0),
        ("1760000000", 1760000000),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("9" * 5000, None),
        ("007", None),
        ("٣", None),
        ("²", None),
        ("-1", None),
        ("1_0", None),
        ("1 ", None),
        ("", None),
    ],
)
def test_a_version_is_a_plain_number_that_a_server_reads(name, number):
    assert parse_version(name) == number


def test_versions_are_sorted_as_numbers():
    assert parse_versions(["10", "9", "notes", "08"]) == [9, 10]
