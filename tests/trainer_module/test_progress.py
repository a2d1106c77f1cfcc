import io
import logging

import pytest
from rich.console import Console

from detloom.trainer_module import progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False, raising=False)
    return Clock


@pytest.fixture(autouse=True)
def _info_is_heard(caplog):
    caplog.set_level(logging.INFO, logger="detloom")


def show_on_terminal(width, use):
    """What stands on a terminal after `use` has had the reporter."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with progress.build_bar(console) as bar:
        use(progress.Reporter("Training", 25_000, "images", 8, bar))
        bar.stop()
        console.file.seek(0)
        console.file.truncate()
        console.print(bar.get_renderable())
        return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_without_a_terminal_there_is_a_line_a_period_with_rate_and_eta(clock, caplog):
    with progress.show_progress("Training", 100, unit="images", units_each=8) as report:
        clock.now += 30  # the first call traces; its time does not count for the rate
        report.advance(20, loss=2.0)
        clock.now += 10
        report.advance(20, loss=1.5)  # ten seconds after the last line: none yet
        clock.now += 10
        report.advance(20, loss=1.0)
    # 40 steps of 8 images in 20 s are 16 images/s; 40 more at 2 steps/s take 20 s
    assert caplog.messages == [
        "Training 20/100  loss 2",
        "Training 60/100  16.0 images/s  loss 1  ETA 0:20",
    ]


def test_the_last_step_is_always_said_and_only_once(clock, caplog):
    with progress.show_progress("Training", 2, unit="images") as report:
        report.start_at(1)
        clock.now += 1
        report.advance()
    assert caplog.messages == ["Training 2/2"]


def test_waiting_for_data_is_said_as_a_share(clock, caplog):
    with progress.show_progress("Training", 2, unit="images") as report:
        report.advance(2, loss=0.5, learning_rate=0.001, input_share=0.254)
    assert caplog.messages == ["Training 2/2  loss 0.5  learning rate 0.001  input-bound: 25 %"]


def test_the_eta_of_a_resumed_run_is_of_what_is_left_at_the_speed_of_now(clock, caplog):
    with progress.show_progress("Training", 1_000, unit="images") as report:
        report.start_at(900)
        report.advance(10)
        clock.now += 25
        report.advance(10)
    # 10 steps in 25 s; the 80 steps left take 200 s. The 900 before count for neither.
    assert caplog.messages == ["Training 920/1000  0.4 images/s  ETA 3:20"]


def test_an_evaluation_does_not_slow_the_rate_but_is_expected_again(clock, caplog):
    with progress.show_progress("Training", 100, unit="images") as report:
        report.advance(20)
        clock.now += 10
        report.advance(20)
        with report.pause():
            clock.now += 20
        clock.now += 10
        report.advance(20)
    # 40 steps in 20 s without the evaluation. 40 steps left: 20 s, and 20 s of evaluation for 60 steps make 13.3 more.
    assert caplog.messages == ["Training 60/100  2.0 images/s  ETA 0:33"]


def test_after_going_back_the_rate_is_still_that_of_the_work_done(clock, caplog):
    with progress.show_progress("Training", 100, unit="images") as report:
        report.advance(20)
        clock.now += 10
        report.advance(20)
        report.start_at(20)
        clock.now += 10
        report.advance(20)
    # At step 40 again, 40 steps in 20 s; 60 left.
    assert caplog.messages == ["Training 40/100  2.0 images/s  ETA 0:30"]


def use_for_two_calls(clock):
    def use(report):
        report.start_at(12_000)
        for _ in range(2):
            clock.now += 10
            report.advance(20, loss=1.25, learning_rate=0.001, input_share=0.12)

    return use


def test_a_terminal_shows_the_bar_over_the_numbers(clock):
    bar, numbers = show_on_terminal(80, use_for_two_calls(clock))
    assert bar.startswith("Training ━")
    assert bar.endswith("ETA 1:48:00")  # 12,960 steps at 2 a second
    assert "12040/25000" in bar
    assert numbers == "  16.0 images/s  loss 1.25  learning rate 0.001  input-bound: 12 %"


def test_a_narrow_terminal_cuts_the_numbers_and_keeps_the_bar(clock):
    bar, numbers = show_on_terminal(60, use_for_two_calls(clock))
    assert bar.endswith("12040/25000 0:00:00 ETA 1:48:00")
    assert numbers.endswith("…")
    assert len(numbers) <= 60


def test_nothing_is_logged_beside_a_bar(clock, caplog):
    show_on_terminal(80, lambda report: report.advance(25_000))
    assert caplog.messages == []


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3_599, "59:59"), (3_723, "1:02:03")])
def test_clocks_have_hours_only_where_needed(seconds, text):
    assert progress.format_clock(seconds) == text
