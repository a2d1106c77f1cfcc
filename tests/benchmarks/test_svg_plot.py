import pytest
from tools.svg_plot import Line, format_svg, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 20, [0, 5, 10, 15, 20]),
        (100, 130, [100, 105, 110, 115, 120, 125, 130]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert ticks(low, high) == expected


def test_a_line_runs_from_corner_to_corner_of_the_axes():
    svg = format_svg("title", "x", "y", [Line(name="one", points=[(0, 0), (10, 2)])])
    assert 'points="64.0,372.0 744.0,40.0"' in svg  # 760 - 16 wide and 420 - 48 high, less the margins


def test_a_band_goes_along_its_upper_edge_and_back_along_the_lower():
    line = Line(name="one", points=[(0, 1), (1, 1)], band=[(0, 0, 2), (1, 1, 2)])
    assert 'points="64.0,40.0 744.0,40.0 744.0,206.0 64.0,372.0"' in format_svg("title", "x", "y", [line])


def test_names_are_escaped():
    assert "a &lt; b" in format_svg("a < b", "x", "y", [Line(name="one", points=[(0, 1)])])


def test_no_line_is_an_empty_plot():
    assert format_svg("title", "x", "y", []).endswith("</svg>\n")
