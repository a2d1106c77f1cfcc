from detloom.components.pages.bars import bars, histogram


def test_empty_bins_are_left_out_at_the_ends_only():
    rows = histogram("", ["a", "b", "c", "d"], [[0, 3, 0, 1]])["rows"]
    assert [(row["name"], row["text"]) for row in rows] == [("b", "75 %"), ("c", "0 %"), ("d", "25 %")]


def test_bars_are_on_the_scale_of_the_largest_and_what_is_there_can_be_seen():
    rows = bars("", ["a", "b", "c"], [[0.5, 0.0, 0.0001]])["rows"]
    assert [row["bars"][0]["percent"] for row in rows] == [100.0, 0.0, 0.7]
