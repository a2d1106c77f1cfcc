"""Twelve days of a daily schedule on one machine: all nodes and their decisions are real, only learning is quick.

The training is `fake_training.learner`: it learns from the labels how far they are off, so that a model is worth
exactly what its labels were worth. Loading a pushed model in another process is left out; other tests do it.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import detloom
from detloom.components.pusher import executor as pusher_executor
from detloom.components.pusher.atomic_push import list_versions
from detloom.components.retrain import training_record
from detloom.pipelines.run_local import run_locally
from detloom.pipelines.summary import read_latest_run
from detloom.pipelines.timer.scheduled_run import build_scheduled_run
from detloom.schemas.errors import InputError
from detloom.schemas.read_run_file import read_run_file
from detloom.trainer_module import tfx_run

ROOT = Path(detloom.__file__).parents[1]
RUN = """
name: squares
workspace: workspace
data:
  format: coco
  path: spans/{SPAN}
  images_dir: images
  splits: {train: annotations/train.json, eval: annotations/eval.json, test: annotations/test.json}
train: {batch_size: 4, num_steps: 8}
evaluator: {num_pictures: 0}
gates: {latency: {num_images: 0}, baseline: {num_resamples: 100}}
retrain: {new_span: true}
schedule: {cron: 0 3 * * *}
notifications: {events: [failed, refused, pushed, skipped], webhook: {url: "env:HOOK"}}
nodes: [{node: Trainer, max_retries: 1, backoff_seconds: 0}]
beam_args: []
"""
LOOK = {"DetectionExampleGen", "StatisticsGen", "ExampleValidator", "PreviousReportResolver", "DatasetValidator"}
TRAINING = {"Trainer", "BaselineResolver", "DetectionEvaluator", "ModelCard", "Pusher", "TrainingRecord", "Notifier"}
TRAINED = LOOK | {"RetrainDecision"} | TRAINING
FIRST_BLESSED = "Blessed: There is no earlier blessed model to compare with"
BLESSED = "Blessed: "


@dataclass(frozen=True, kw_only=True)
class Day:
    """What arrives, and what has to become of it.

    Attributes:
        span: written before the run; None for a day without data.
        labels: how they are, as arguments of `write_span`.
        edit: of the run file: what is replaced by what.
        is_killed: in the middle of training.
        ran: nodes that neither the cache answered nor a condition left out.
        trained: what the journal of trainings says.
        training: of the summary: why there was a training, or none.
        error: that the run ended with.
        outcome: of the message that was sent.
        reason: that the message begins with.
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


DAYS = [
    Day(
        span=1,
        ran=TRAINED | {"ImportSchemaGen"},
        trained=("begins",),
        training="no training has finished yet.",
        outcome="pushed",
        reason="Blessed: There is no earlier blessed model to compare with",
    ),
    Day(
        span=2,
        ran=TRAINED,
        trained=("begins",),
        training="span 2 is new.",
        outcome="pushed",
        reason="Blessed: AP 1.000 is +0.000 against the baseline's 1.000",
    ),
    Day(  # empty
        ran={"PreviousReportResolver", "RetrainDecision", "SkipNotifier"},
        training="skipped: no new span since 2 (2026-03-02).",
        outcome="skipped",
        reason="Training is skipped: no new span since 2 (2026-03-02).",
    ),
    Day(
        span=3,
        ran=TRAINED,
        trained=("begins",),
        training="span 3 is new.",
        outcome="pushed",
        reason="Blessed: AP 1.000 is +0.000 against the baseline's 1.000",
    ),
    Day(  # bad data
        span=4,
        labels={"without_boxes": "train"},
        ran=LOOK - {"ExampleValidator"},
        error="DatasetValidator failed: The data set does not pass: check boxes_in_splits",
        outcome="failed",
        reason="DatasetValidator failed: The data set does not pass: check boxes_in_splits",
    ),
    Day(  # nobody has repaired them, and nothing newer has arrived
        ran={"PreviousReportResolver", "DatasetValidator"},
        error="DatasetValidator failed: The data set does not pass: check boxes_in_splits",
        outcome="failed",
        reason="DatasetValidator failed: The data set does not pass: check boxes_in_splits",
    ),
    Day(
        span=5,
        ran=TRAINED,
        trained=("begins",),
        training="span 5 is new.",
        outcome="pushed",
        reason="Blessed: AP 1.000 is +0.000 against the baseline's 1.000",
    ),
    Day(  # a worse model
        span=6,
        labels={"labels_below": 16},
        ran=TRAINED,
        trained=("begins",),
        training="span 6 is new.",
        outcome="refused",
        reason="Not blessed: ",
    ),
    Day(span=7, is_killed=True, ran=LOOK | {"RetrainDecision", "Trainer"}, trained=("begins",)),
    Day(
        ran={"PreviousReportResolver"} | TRAINING,
        trained=("goes on",),
        training="span 7 is new.",
        outcome="pushed",
        reason="Blessed: AP 1.000 is +0.000 against the baseline's 1.000",
    ),
    Day(
        edit=("num_steps: 8", "num_steps: 9"),
        ran={"PreviousReportResolver", "RetrainDecision"} | TRAINING,
        trained=("begins",),
        training="settings or code have changed since 2026-03-10.",
        outcome="pushed",
        reason="Blessed: AP 1.000 is +0.000 against the baseline's 1.000",
    ),
    Day(
        span=8,
        ran=TRAINED,
        trained=("begins",),
        training="span 8 is new.",
        outcome="pushed",
        reason="Blessed: AP 1.000 is +0.000 against the baseline's 1.000",
    ),
]


@pytest.fixture
def server(monkeypatch):
    from fake_training.message_server import serve_messages

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve_messages() as server:
        monkeypatch.setenv("HOOK", server.url)
        yield server


def run_killed(run_file, journal):
    """A run in a process of its own, which the training takes with it."""
    script = Path(__file__).parent / "fakes" / "fake_training" / "run_day.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, str(script), str(run_file), str(journal)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL


def run_in_process(run_file):
    """The summary and the error, of which one is empty."""
    try:
        return run_locally(read_run_file(run_file)), ""
    except InputError as error:
        return "", str(error)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # some three minutes on two idle cores
def test_each_of_twelve_days_ends_as_it_should(tmp_path, server, monkeypatch):
    from fake_training.learner import make_learner
    from fake_training.spans import write_span

    run_file, journal, spans = tmp_path / "run.yaml", tmp_path / "journal.txt", tmp_path / "spans"
    run_file.write_text(RUN)
    monkeypatch.setattr(tfx_run, "run", make_learner(journal))
    monkeypatch.setattr(pusher_executor, "check_serves", lambda folder, seconds: None)
    spans.mkdir()
    write_span(spans, 1)
    run = read_run_file(run_file)
    times = build_scheduled_run(run, run_file).next_times(datetime(2026, 3, 1, tzinfo=timezone.utc), len(DAYS))
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
    assert len(training_record.list_names(f"{run.push_to}/training_records/squares")) == 8  # the refused one, too
