import json

import pytest

from detloom.components.dataset_validator.report_history import earlier_report, keep_report


@pytest.fixture
def history(tmp_path):
    """Reports of spans 3, 5 and 11."""
    folder = tmp_path / "history"
    for span in (5, 3, 11):
        report = tmp_path / "report.json"
        report.write_text(json.dumps({"format": 2, "span": span, "splits": {}}))
        keep_report(str(folder), span, report)
    return folder


def span_of_earlier(history, span):
    with earlier_report(str(history), span) as report:
        return json.loads(report.read_text())["span"] if report else None


@pytest.mark.parametrize(("span", "earlier"), [(12, 11), (11, 5), (10, 5), (4, 3), (3, None), (0, None), (None, None)])
def test_the_latest_span_before_is_chosen_and_never_the_span_itself(history, span, earlier):
    assert span_of_earlier(history, span) == earlier


def test_files_are_named_by_span(history):
    assert sorted(path.name for path in history.iterdir()) == [
        "span-00000003.json",
        "span-00000005.json",
        "span-00000011.json",
    ]


def test_without_a_history_nothing_is_read_or_written(tmp_path):
    keep_report("", 3, tmp_path / "not there")
    assert span_of_earlier("", 4) is None


def test_a_history_that_was_never_written_has_no_report(tmp_path):
    assert span_of_earlier(tmp_path / "nothing", 4) is None


def test_a_report_that_was_cut_off_is_left_out_for_the_one_before(history):
    (history / "span-00000011.json").write_text('{"format": 2, "sp')
    assert span_of_earlier(history, 12) == 5


def test_other_files_are_left_alone(history):
    (history / "span-00000012.json.bak").write_text("{}")
    (history / "notes.txt").write_text("{}")
    assert span_of_earlier(history, 13) == 11


def test_the_copy_is_gone_afterwards(history):
    with earlier_report(str(history), 12) as report:
        assert report.is_file()
    assert not report.exists()
