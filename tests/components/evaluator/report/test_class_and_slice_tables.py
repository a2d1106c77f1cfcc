from evaluations import texts_of

from detloom.components.evaluator.report import class_and_slice_tables


def test_a_class_row_contains_metrics_and_operating_points(evaluation):
    table = class_and_slice_tables.class_table(evaluation)
    titles = [column["title"] for column in table["columns"]]
    cat, dog = table["rows"]
    assert len(titles) == len(cat) == 18
    assert texts_of(dog)[:4] == ["<b>dog</b>", "2", "1.000", "1.000"]
    # The candidate detects all dogs with a score of at least 0.7, the baseline none.
    both = ["0.000", "+1.000"]
    points = ["0.700", "1.000", "1.000", "0.700", "1.000"]
    assert texts_of(dog)[titles.index("Baseline AP") :] == [*both, *both, *points]
    assert texts_of(cat)[titles.index("APs")] == "–"
    assert cat[titles.index("APs")]["value"] is None


def test_the_class_table_is_limited_to_classes_with_the_most_boxes(evaluation, monkeypatch):
    monkeypatch.setattr(class_and_slice_tables, "MAX_ROWS", 1)
    table = class_and_slice_tables.class_table(evaluation)
    assert [row[0]["text"] for row in table["rows"]] == ["<b>dog</b>"]
    assert table["num_more"] == 1


def test_small_slices_are_marked(evaluation):
    table = class_and_slice_tables.slice_table(evaluation.candidate, evaluation.baseline)
    north, south = table["rows"]
    assert texts_of(north)[:4] == ["image/camera=north", "2", "3", "1.000"]
    # AP of the baseline is (1 + 0) / 2.
    assert texts_of(north)[-2:] == ["+0.500", ""]
    assert texts_of(south) == ["image/camera=south", "1", "0", "–", "–", "–", "–", "few images"]


def test_object_slices_have_their_recall(evaluation):
    table = class_and_slice_tables.object_table(evaluation.candidate, evaluation.baseline)
    # The side (square root of the area) is 139 for 120 x 160 pixels and 160 for 160 x 160.
    assert [texts_of(row)[:3] for row in table["rows"]] == [
        ["side_px=below 150", "1", "1.000"],
        ["side_px=150 or more", "2", "1.000"],
    ]
    assert table["rows"][0][-1]["text"] == "few objects"
