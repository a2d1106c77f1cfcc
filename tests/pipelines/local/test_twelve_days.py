"""Run a daily schedule for twelve days on one machine with all real nodes except training.

`fake_training.learner` replaces training: it learns the offset of the labels, so a model is exactly as good as its
labels. Pushed models are not loaded in another process; other tests do it.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from message_server import serve_messages

import detloom
from detloom.components.pusher import component as pusher_executor
from detloom.components.pusher.push import list_versions
from detloom.components.retrain import training_record
from detloom.pipelines.local.run_local import run_locally
from detloom.pipelines.local.summary import read_latest_run
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.schedule import parse_cron
from detloom.trainer_module import tfx_run

ROOT = Path(detloom.__file__).parents[1]
RUN = """
gates: {latency: {num_images: 0}, baseline: {num_resamples: 100}}
schedule: {cron: 0 3 * * *}
nodes: [{node: Trainer, max_retries: 1, backoff_seconds: 0}]
beam_args: []
"""
LOOK = {"DetectionExampleGen", "StatisticsGen", "ExampleValidator", "PreviousReportResolver", "DatasetValidator"}
TRAINING = {"Trainer", "BaselineResolver", "DetectionEvaluator", "ModelCard", "Pusher", "TrainingRecord", "Notifier"}
TRAINED = LOOK | {"RetrainDecision"} | TRAINING
FIRST_BLESSED = "Blessed: There is no earlier blessed model to compare with"


@dataclass(frozen=True, kw_only=True)
class Day:
    """The input of a day and its expected result.

    Attributes:
        span: number of the span written before the run; None for a day without data.
        labels: arguments of `write_span`.
        edit: a replacement in the run file: old and new text.
        is_killed: the process is killed during training.
        ran: nodes that were neither cached nor skipped.
        trained: lines in the journal of training runs.
        training: reason for training or skipping it in the summary.
        error: beginning of the error of the run.
        outcome: event of the notification.
        reason: beginning of the reason in the notification.
    """

    span: int | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    edit: tuple[str, str] = ("", "")
    is_killed: bool = False
    ran: set[str]
    trained: tuple[str, ...] = ()
    training: str = ""
    error: str = ""
    outcome: str = ""
    reason: str = ""


SAME = "Blessed: AP 1.000 differs by +0.000 from the baseline's 1.000"
BAD_DATA = "DatasetValidator failed: Data set validation failed: check boxes_in_splits"
NO_NEW_SPAN = "skipped: no new span since span 2 (2026-03-02)."


def pushed(span: int | None, training: str = "", **fields: Any) -> Day:
    """Return a day with a new model; by default, with a new span as its reason and as good as the earlier one."""
    fields = {"ran": TRAINED, "trained": ("starts",), "outcome": "pushed", "reason": SAME, **fields}
    return Day(span=span, training=training or f"span {span} is new.", **fields)


DAYS = [
    pushed(1, "no training run has finished yet.", ran=TRAINED | {"ImportSchemaGen"}, reason=FIRST_BLESSED),
    pushed(2),
    Day(  # empty
        ran={"PreviousReportResolver", "RetrainDecision", "SkipNotifier"},
        training=NO_NEW_SPAN,
        outcome="skipped",
        reason=f"Training is {NO_NEW_SPAN}",
    ),
    pushed(3),
    Day(  # bad data
        span=4,
        labels={"without_boxes": "train"},
        ran=LOOK - {"ExampleValidator"},
        error=BAD_DATA,
        outcome="failed",
        reason=BAD_DATA,
    ),
    # still bad data, no new span
    Day(ran={"PreviousReportResolver", "DatasetValidator"}, error=BAD_DATA, outcome="failed", reason=BAD_DATA),
    pushed(5),
    pushed(6, labels={"labels_below": 16}, outcome="refused", reason="Not blessed: "),  # a worse model
    Day(span=7, is_killed=True, ran=LOOK | {"RetrainDecision", "Trainer"}, trained=("starts",)),
    pushed(None, "span 7 is new.", ran={"PreviousReportResolver"} | TRAINING, trained=("resumes",)),
    pushed(
        None,
        "model and training changed after the last training run (2026-03-10).",
        edit=("num_steps: 8", "num_steps: 9"),
        ran={"PreviousReportResolver", "RetrainDecision"} | TRAINING,
    ),
    pushed(8),
]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve_messages() as server:
        monkeypatch.setenv("HOOK", server.url)
        yield server


def run_killed(run_file, journal):
    """Run in a subprocess, which is killed during training."""
    script = Path(__file__).parents[1] / "fakes" / "fake_training" / "run_day.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, str(script), str(run_file), str(journal)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL


def run_in_process(run_file):
    """Return the summary and the error, one of which is empty."""
    try:
        return run_locally(read_run_file(run_file)), ""
    except InputError as error:
        return "", str(error)


@pytest.mark.reliability("kill", "metadata")
@pytest.mark.nightly
@pytest.mark.timeout(1800)  # about three minutes on two idle cores
def test_a_scheduled_pipeline_gives_the_expected_result_on_each_of_twelve_days(tmp_path, server, monkeypatch):
    from fake_training.learner import make_learner
    from fake_training.spans import RUN_FILE, write_span

    run_file, journal, spans = tmp_path / "run.yaml", tmp_path / "journal.txt", tmp_path / "spans"
    run_file.write_text(RUN_FILE + RUN)
    monkeypatch.setattr(tfx_run, "run", make_learner(journal))
    monkeypatch.setattr(pusher_executor, "check_serves", lambda folder, seconds: None)
    spans.mkdir()
    write_span(spans, 1)
    run = read_run_file(run_file)
    times = [datetime(2026, 3, 1, tzinfo=ZoneInfo(run.schedule.timezone))]
    for _ in DAYS:
        times.append(parse_cron(run.schedule.cron).next_after(times[-1]))
    del times[0]
    assert [f"{moment:%d %H:%M}" for moment in times] == [f"{day:02d} 03:00" for day in range(1, 13)]

    num_versions = 0
    for number, (day, moment) in enumerate(zip(DAYS, times, strict=True), 1):
        monkeypatch.setattr(training_record, "current_time", lambda moment=moment: moment)
        if day.span is not None and day.span > 1:
            write_span(spans, day.span, **day.labels)
        run_file.write_text(run_file.read_text().replace(*day.edit) if day.edit[0] else run_file.read_text())
        journal.write_text("")
        summary, error = "", ""
        if day.is_killed:
            run_killed(run_file, journal)
        else:
            summary, error = run_in_process(run_file)

        nodes = read_latest_run(Path(run.workspace) / "metadata.sqlite")
        where = f"day {number}"
        assert {name for name, node in nodes.items() if not node.is_cached} == day.ran, where
        assert tuple(journal.read_text().splitlines()) == day.trained, where
        assert error.startswith(day.error), where
        assert bool(error) == bool(day.error), where
        if day.training:
            assert re.search(rf"^  training +{re.escape(day.training)}$", summary, re.MULTILINE), where
        num_versions += day.outcome == "pushed"
        versions = list_versions(run.push_to)
        assert len(versions) == num_versions, where
        messages = server.take()
        assert [message["event"] for message in messages] == [day.outcome] * bool(day.outcome), where
        for message in messages:
            assert message["pipeline"] == "squares"
            assert message["reason"].startswith(day.reason), where
            assert message.get("version") == (str(versions[-1]) if day.outcome == "pushed" else None)
            assert message.get("node") == ("DatasetValidator" if day.outcome == "failed" else None)
    assert num_versions == 7
    last = training_record.read_last_record(run.push_to, "squares")
    assert (last.span, last.date, last.outcome) == (8, "2026-03-12", "blessed")
    assert len(list(Path(run.push_to, "training_records/squares").iterdir())) == 8  # including the refused one
