import re

import pytest

from detloom.components.pages.line_chart import FILE_LOOK, PAGE_LOOK, Line, format_svg, ticks


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


def test_a_picture_in_a_file_has_a_white_background_and_says_its_names():
    svg = format_svg("the title", "x", "y", [Line(name="one", points=[(0, 1)])])
    assert 'fill="white"' in svg
    assert ">the title</text>" in svg
    assert ">one</text>" in svg


def test_an_axis_covers_the_range_that_is_set():
    lines = [Line(name="one", points=[(0.5, 0.25)])]
    svg = format_svg("title", "x", "y", lines, x_range=(0.25, 1.25), y_range=(0, 1))
    assert 'points="234.0,289.0"' in svg  # 64 + 680 * 0.25 / 1; 372 - 332 * 0.25
    assert re.findall(r">(\d[.\d]*)</text>", svg)[6:] == ["0.4", "0.6", "0.8", "1", "1.2"]  # after 6 of y


def test_a_picture_in_a_page_has_the_colours_of_the_page_alone():
    line = Line(name="one", points=[(0, 0), (1, 1)], band=[(0, 0, 1), (1, 0, 1)])
    svg = format_svg("title", "x", "y", [line, line], marked_ys=(0.5,), look=PAGE_LOOK)
    colors = set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg))
    assert colors == {"currentColor", "none", "var(--line)", "var(--soft)", "var(--s0)", "var(--s1)"}


def test_a_picture_in_a_page_leaves_title_and_names_to_the_page_and_tells_screen_readers():
    svg = format_svg('"a" < b', "x", "y", [Line(name="one", points=[(0, 1)])], look=PAGE_LOOK)
    assert 'role="img" aria-label="&quot;a&quot; &lt; b"' in svg
    assert not {"one", '"a" < b'} & set(re.findall(r">([^<]*)</text>", svg))


@pytest.mark.parametrize("look", [FILE_LOOK, PAGE_LOOK])
def test_the_label_of_y_is_turned_round_its_own_middle(look):
    svg = format_svg("title", "x", "how many", [], look=look)
    x, y, turn = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*rotate\(-90 ([^)]*)\)">how many<', svg)[0]
    assert [float(x), float(y)] == [float(number) for number in turn.split()]
