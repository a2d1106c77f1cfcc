"""A report is kept when its node fails."""

from pathlib import Path

from detloom.components.artifact_types import keep_after_failure


def test_a_report_is_copied_next_to_the_outputs_and_replaces_an_earlier_copy(tmp_path):
    report = tmp_path / "node/report/7"
    report.mkdir(parents=True)
    for text in ("first", "second"):
        (report / "report.json").write_text(text)
        kept = Path(keep_after_failure(str(report)))
    assert kept == tmp_path / "node/failed/report/7"
    assert (kept / "report.json").read_text() == "second"


def test_a_report_that_cannot_be_copied_does_not_hide_the_failure(tmp_path):
    assert keep_after_failure(str(tmp_path / "node/report/7")) == str(tmp_path / "node/report/7")


def test_a_url_is_returned_unchanged():
    assert keep_after_failure("gs://bucket/node/report/7") == "gs://bucket/node/report/7"
