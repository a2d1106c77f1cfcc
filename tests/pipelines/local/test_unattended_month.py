"""An unattended month on one machine: what happens to classes, gates, spans and pushed models, and what follows.

The days are the rows of the table "What the next run does" in docs/push.md. All nodes are real except training, as in
test_twelve_days.py.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from message_server import serve_messages

from detloom.components.pusher import component as pusher_executor
from detloom.components.pusher.push import list_versions, push_model, roll_back
from detloom.pipelines.local.run_local import run_locally, warnings_of
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.trainer_module import tfx_run

RUN = """
gates: {latency: {num_images: 0}, baseline: {num_resamples: 100, min_ap_change: 0.0}}
push: {allow_class_change: none}
"""
OTHER_CLASSES = "serves other classes than this model"


def no_check(folder: Path) -> None:
    """Accept every copy."""


def roll_back_bad(serving: str) -> None:
    roll_back(serving, reason="misses squares", check=no_check)


def push_by_hand(serving: str) -> None:
    """Push the model again that the newest version has replaced."""
    push_model(Path(serving, str(list_versions(serving)[-2])), Path(serving), check=no_check)


def push_newest_by_hand(serving: str) -> None:
    """Push the newest model that was trained."""
    models = Path(serving).parent.glob("**/Trainer/model/*/Format-Serving")
    push_model(max(models, key=lambda path: int(path.parent.name)), Path(serving), check=no_check)


def block_pushes(serving: str) -> None:
    Path(serving, ".push.lock").unlink()
    Path(serving, ".push.lock").mkdir()


@dataclass(frozen=True, kw_only=True)
class Day:
    """A change before the run of a day, and the expected result.

    Attributes:
        span: number of the span that is written.
        labels: arguments of `write_span`.
        edit: a replacement in the run file: old and new text.
        act: what a person does to the push folder.
        is_trained: whether a model is trained.
        outcome: event of the notification.
        reason: expression in its reason.
        warning: text that is logged before the run.
    """

    span: int | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    edit: tuple[str, str] = ("", "")
    act: Callable[[str], None] | None = None
    is_trained: bool = False
    outcome: str
    reason: str = ""
    warning: str = ""


THREE = {1: "red", 2: "green", 3: "blue"}


def trained(span: int, outcome: str, reason: str = "", classes: dict[int, str] | None = None, **labels: int) -> Day:
    of_span = {**labels, "classes": classes} if classes else labels
    return Day(span=span, labels=of_span, is_trained=True, outcome=outcome, reason=reason)


MONTH = {
    "first model": trained(1, "pushed"),
    "class lost": trained(2, "refused", f"{OTHER_CLASSES} .id 2: green before, none now.*class-change", {1: "red"}),
    "nothing new after a refusal": Day(outcome="skipped", reason="no new span since span 2"),
    "class added": trained(3, "refused", rf"{OTHER_CLASSES} .id 3: none before, blue now", THREE),
    "growth allowed": Day(
        edit=("class_change: none", "class_change: grow"),
        outcome="pushed",
        reason="on the 2 of 3 classes that both have",
    ),
    "nothing new after a push": Day(outcome="skipped", reason="no new span since span 3"),
    "renumbered": trained(4, "refused", f"{OTHER_CLASSES} .id 1: red", {1: "green", 2: "red", 3: "blue"}),
    "renamed": trained(5, "refused", f"{OTHER_CLASSES} .id 1: red", {1: "rot", 2: "green", 3: "blue"}),
    "as before": trained(6, "pushed", "differs by .0.000 from the baseline", THREE),
    "rolled back": Day(act=roll_back_bad, outcome="skipped", reason="model of the last training run was rolled back"),
    "gate tightened after a rollback": Day(
        edit=("gates: {", "gates: {floors: [{metric: AP50, min: 0.5}], "),
        outcome="refused",
        reason="was served before and was rolled back.*detloom push",
    ),
    "pushed by hand": Day(act=push_by_hand, outcome="skipped", reason="no new span since span 6"),
    "empty span": Day(
        act=lambda serving: Path(serving, "../../spans/7").mkdir(),
        outcome="skipped",
        reason="no new span since span 6",
        warning="spans/7: newer, but without files",
    ),
    "worse model": trained(8, "refused", "Not blessed: AP", THREE, labels_below=16),
    "refused model pushed by hand": Day(act=push_newest_by_hand, outcome="skipped", reason="no new span since span 8"),
    "another model pushed by hand": Day(act=push_by_hand, outcome="skipped", reason="no new span since span 8"),
    "gate loosened": Day(
        edit=("floors: [{metric: AP50, min: 0.5}], ", "no_floor_reason: It is only a test., "),
        outcome="refused",
        reason="Not blessed: AP",
    ),
    "gate loosened more": Day(edit=("min_ap_change: 0.0", "min_ap_change: -1.0"), outcome="pushed"),
    "push failed": Day(
        act=block_pushes, span=9, labels={"classes": THREE}, is_trained=True, outcome="failed", reason="push.lock"
    ),
    "push repeated": Day(act=lambda serving: Path(serving, ".push.lock").rmdir(), outcome="pushed"),
    "last day": Day(outcome="skipped", reason="no new span since span 9"),
}


@pytest.mark.nightly
@pytest.mark.timeout(3600)  # about four minutes on two idle cores
def test_each_day_of_a_month_has_the_decision_of_the_table(tmp_path, monkeypatch):
    from fake_training.learner import make_learner
    from fake_training.spans import RUN_FILE, write_span

    run_file, journal, spans = tmp_path / "run.yaml", tmp_path / "journal.txt", tmp_path / "spans"
    run_file.write_text(RUN_FILE + RUN)
    spans.mkdir()
    monkeypatch.setattr(tfx_run, "run", make_learner(journal))
    monkeypatch.setattr(pusher_executor, "check_serves", lambda folder, seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve_messages() as server:
        monkeypatch.setenv("HOOK", server.url)
        for name, day in MONTH.items():
            if day.span is not None:
                write_span(spans, day.span, **day.labels)
            text = run_file.read_text()
            assert day.edit[0] in text, name
            run_file.write_text(text.replace(*day.edit) if day.edit[0] else text)
            run = read_run_file(run_file)
            if day.act is not None:
                day.act(run.push_to)
            before = list_versions(run.push_to)
            journal.write_text("")
            with pytest.raises(Exception, match=day.reason) if day.outcome == "failed" else contextlib.nullcontext():
                summary = run_locally(run)
            assert bool(journal.read_text()) == day.is_trained, name
            assert len(list_versions(run.push_to)) - len(before) == (day.outcome == "pushed"), name
            (message,) = server.take()
            assert message["event"] == day.outcome, (name, message)
            assert re.search(day.reason, message["reason"]), (name, message["reason"])
            assert day.warning in " ".join(warnings_of(run)), name
            repeated = day.edit[0] and "changed after the last training run" in summary
            assert bool(repeated) == (bool(day.edit[0])), name
            if day.edit[0]:
                assert re.search(r"^  training +not repeated: ", summary, re.MULTILINE), name
