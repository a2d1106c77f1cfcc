import re

import pytest

from detloom.components.pages.charts import FILE_LOOK, PAGE_LOOK, Line, bars, format_svg, histogram, ticks


def test_empty_bins_are_omitted_only_at_the_ends():
    rows = histogram("", ["a", "b", "c", "d"], [[0, 3, 0, 1]])["rows"]
    assert [(row["name"], row["text"]) for row in rows] == [("b", "75 %"), ("c", "0 %"), ("d", "25 %")]


def test_bars_are_scaled_to_the_largest_and_small_ones_stay_visible():
    rows = bars("", ["a", "b", "c"], [[0.5, 0.0, 0.0001]])["rows"]
    assert [row["bars"][0]["percent"] for row in rows] == [100.0, 0.0, 0.7]


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


def test_a_line_is_scaled_to_the_axes():
    svg = format_svg("title", "x", "y", [Line(name="one", points=[(0, 0), (10, 2)])])
    assert 'points="64.0,372.0 744.0,40.0"' in svg  # 760 - 16 wide and 420 - 48 high, less the margins


def test_a_band_is_a_polygon_along_its_upper_and_lower_edges():
    line = Line(name="one", points=[(0, 1), (1, 1)], band=[(0, 0, 2), (1, 1, 2)])
    assert 'points="64.0,40.0 744.0,40.0 744.0,206.0 64.0,372.0"' in format_svg("title", "x", "y", [line])


def test_a_chart_for_a_file_has_a_white_background_escaped_title_and_names():
    svg = format_svg("a < b", "x", "y", [Line(name="one", points=[(0, 1)])])
    assert 'fill="white"' in svg
    assert ">a &lt; b</text>" in svg
    assert ">one</text>" in svg
    assert format_svg("title", "x", "y", []).endswith("</svg>\n")


def test_an_axis_covers_the_given_range():
    lines = [Line(name="one", points=[(0.5, 0.25)])]
    svg = format_svg("title", "x", "y", lines, x_range=(0.25, 1.25), y_range=(0, 1))
    assert 'points="234.0,289.0"' in svg  # 64 + 680 * 0.25 / 1; 372 - 332 * 0.25
    assert re.findall(r">(\d[.\d]*)</text>", svg)[6:] == ["0.4", "0.6", "0.8", "1", "1.2"]  # after 6 of y


def test_a_chart_for_a_page_uses_only_the_colours_of_the_page():
    line = Line(name="one", points=[(0, 0), (1, 1)], band=[(0, 0, 1), (1, 0, 1)])
    svg = format_svg("title", "x", "y", [line, line], look=PAGE_LOOK)
    colors = set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg))
    assert colors == {"currentColor", "none", "var(--line)", "var(--s0)", "var(--s1)"}


def test_a_chart_for_a_page_has_only_a_screen_reader_label_as_title():
    svg = format_svg('"a" < b', "x", "y", [Line(name="one", points=[(0, 1)])], look=PAGE_LOOK)
    assert 'role="img" aria-label="&quot;a&quot; &lt; b"' in svg
    assert not {"one", '"a" < b'} & set(re.findall(r">([^<]*)</text>", svg))


@pytest.mark.parametrize("look", [FILE_LOOK, PAGE_LOOK])
def test_the_y_label_is_rotated_around_its_centre(look):
    svg = format_svg("title", "x", "how many", [], look=look)
    x, y, turn = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*rotate\(-90 ([^)]*)\)">how many<', svg)[0]
    assert [float(x), float(y)] == [float(number) for number in turn.split()]
