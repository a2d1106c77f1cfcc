import re
from pathlib import Path

import pytest

from detloom.components.example_gen import build_example
from detloom.components.example_gen.sources.formats import FORMATS
from detloom.schemas.contracts.rejects import Reason

PAGE = Path(__file__).parents[3] / "docs/ingestion.md"


def first_cells(header: str) -> list[str]:
    """Return the first column of the table with this header."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(f"| {header} |") :].split("\n\n", 1)[0].splitlines()[2:]
    return [re.match(r"\| `([^`]+)` \|", line).group(1) for line in table]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("format", FORMATS),
        ("reason", [reason.value for reason in Reason]),
        ("repair", [value for name, value in vars(build_example).items() if name.startswith("REPAIR_")]),
    ],
)
def test_the_page_lists_exactly_the_reasons_repairs_and_formats(header, expected):
    assert sorted(first_cells(header)) == sorted(expected)
