import logging

import pytest

from detloom.trainer_module import progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False, raising=False)
    return Clock


def test_without_a_terminal_there_is_a_line_a_period_with_rate_and_eta(clock, caplog):
    caplog.set_level(logging.INFO, logger="detloom")
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


def test_the_last_step_is_always_said(clock, caplog):
    caplog.set_level(logging.INFO, logger="detloom")
    with progress.show_progress("Training", 2, unit="images") as report:
        report.start_at(1)
        clock.now += 1
        report.advance()
    assert caplog.messages == ["Training 2/2"]
