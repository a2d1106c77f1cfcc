import io
import logging

import pytest
from rich.console import Console

from detloom.trainer_module.runtime import progress


@pytest.fixture
def clock(monkeypatch):
    """The clock in seconds, set by the test."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False, raising=False)
    return Clock


@pytest.fixture(autouse=True)
def _capture_info(caplog):
    caplog.set_level(logging.INFO, logger="detloom")


def show_on_terminal(width, use):
    """Return the lines on a terminal after `use` was called with the reporter."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with progress.build_bar(console) as bar:
        use(progress.Reporter("Training", 25_000, "images", 8, bar))
        bar.stop()
        console.file.seek(0)
        console.file.truncate()
        console.print(bar.get_renderable())
        return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_periodic_log_lines_show_rate_and_eta_without_a_terminal(clock, caplog):
    with progress.show_progress("Training", 100, unit="images", units_each=8) as report:
        clock.now += 30  # the first call traces, so its time is excluded from the rate
        report.advance(20, loss=2.0)
        clock.now += 10
        report.advance(20, loss=1.5)  # only ten seconds after the last line: no new line
        clock.now += 10
        report.advance(20, loss=1.0)
    # 40 steps of 8 images in 20 s are 16 images/s; 40 more at 2 steps/s take 20 s
    assert caplog.messages == [
        "Training 20/100  loss 2",
        "Training 60/100  16.0 images/s  loss 1  ETA 0:00:20",
    ]


def test_progress_inside_other_work_is_logged_periodically_also_without_a_total(clock, caplog):
    for total in (None, 30):
        report = progress.log_progress("Evaluation", total, unit="images")
        for _ in range(3):
            clock.now += 10
            report.advance(10, memory="2.71 GB")
    assert caplog.messages == [
        "Evaluation 20  1.0 images/s  memory 2.71 GB",
        "Evaluation 20/30  1.0 images/s  memory 2.71 GB  ETA 0:00:10",
    ]


def test_waiting_for_data_is_shown_as_a_share(clock, caplog):
    with progress.show_progress("Training", 2, unit="images") as report:
        report.advance(2, loss=0.5, learning_rate=0.001, input_share=0.254)
    assert caplog.messages == ["Training 2/2  loss 0.5  learning rate 0.001  input-bound: 25 %"]


def test_eta_of_a_resumed_run_uses_the_current_rate(clock, caplog):
    with progress.show_progress("Training", 1_000, unit="images") as report:
        report.start_at(900)
        report.advance(10)
        clock.now += 25
        report.advance(10)
    # 10 steps in 25 s, so the remaining 80 take 200 s. The first 900 are excluded.
    assert caplog.messages == ["Training 920/1000  0.4 images/s  ETA 0:03:20"]


def test_pauses_are_excluded_from_the_rate_but_included_in_the_eta(clock, caplog):
    with progress.show_progress("Training", 100, unit="images") as report:
        report.advance(20)
        clock.now += 10
        report.advance(20)
        with report.pause():
            clock.now += 20
        clock.now += 10
        report.advance(20)
    # 40 steps in 20 s without the pause. Remaining 40 steps: 20 s, plus 20 s * 40 / 60 = 13.3 s of pauses.
    assert caplog.messages == ["Training 60/100  2.0 images/s  ETA 0:00:33"]


def test_rate_after_a_rollback_counts_all_work(clock, caplog):
    with progress.show_progress("Training", 100, unit="images") as report:
        report.advance(20)
        clock.now += 10
        report.advance(20)
        report.start_at(20)
        clock.now += 10
        report.advance(20)
    # At step 40 again: 40 steps in 20 s, 60 remaining.
    assert caplog.messages == ["Training 40/100  2.0 images/s  ETA 0:00:30"]


def use_for_two_calls(clock):
    def use(report):
        report.start_at(12_000)
        for _ in range(2):
            clock.now += 10
            report.advance(20, loss=1.25, learning_rate=0.001, input_share=0.12)

    return use


def test_terminal_shows_bar_and_numbers_on_two_lines(clock):
    bar, numbers = show_on_terminal(80, use_for_two_calls(clock))
    assert bar.startswith("Training ━")
    assert bar.endswith("ETA 1:48:00")  # 12,960 steps at 2 a second
    assert "12040/25000" in bar
    assert numbers == "  16.0 images/s  loss 1.25  learning rate 0.001  input-bound: 12 %"


def test_narrow_terminal_truncates_the_numbers(clock):
    bar, numbers = show_on_terminal(60, use_for_two_calls(clock))
    assert bar.endswith("12040/25000 0:00:00 ETA 1:48:00")
    assert numbers.endswith("…")
    assert len(numbers) <= 60
