import logging
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.local.console import NodeLog, format_table

ROOT = Path(detloom.__file__).parents[1]


def emit(log, message, *arguments, path="elsewhere.py", level=logging.INFO, name="absl"):
    log.emit(logging.LogRecord(name, level, str(path), 1, message, arguments, None))


def test_every_node_prints_its_number_and_duration(capsys):
    log = NodeLog(verbose=False)
    log.num_nodes = 2
    emit(log, "Component %s is running.", "Trainer")
    emit(log, "Component %s is finished.", "Trainer")
    emit(log, "Component %s is running.", "Pusher")
    emit(log, "A cached execution %d is used.", 7)
    emit(log, "Component %s is finished.", "Pusher")
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == ["[1/2] Trainer", "done in 0.0 s", "[2/2] Pusher", "cached"]
    assert log.current == "Pusher"


def test_a_skipped_node_prints_the_reason(capsys):
    log = NodeLog(verbose=False)
    log.num_nodes = 2
    for node in ("Trainer", "SkipNotifier"):
        emit(log, "Component %s is running.", node)
        emit(log, "[%s] Resolved inputs: %s", node, ())
        emit(log, "Component %s is finished.", node)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "[1/2] Trainer",
        "skipped: no reason to train",
        "[2/2] SkipNotifier",
        "skipped: there is reason to train",
    ]


def test_callbacks_are_called_when_a_node_starts_and_finishes():
    log, seen = NodeLog(verbose=False), []
    log.on_start, log.on_finish = (
        (lambda node: seen.append(f"{node} starts")),
        (lambda node: seen.append(f"{node} ends")),
    )
    emit(log, "Component %s is running.", "Trainer")
    emit(log, "Component %s is finished.", "Trainer")
    assert seen == ["Trainer starts", "Trainer ends"]


@pytest.mark.parametrize(
    ("path", "level", "is_shown"),
    [
        (ROOT / "components" / "pusher" / "executor.py", logging.INFO, True),
        (ROOT / ".venv" / "lib" / "site-packages" / "tfx" / "launcher.py", logging.INFO, False),
        (ROOT / ".venv" / "lib" / "site-packages" / "tfx" / "components" / "base.py", logging.WARNING, False),
        ("beam.py", logging.ERROR, True),
    ],
)
def test_only_our_lines_and_errors_are_shown(capsys, path, level, is_shown):
    emit(NodeLog(verbose=False), "something", path=path, level=level)
    assert ("something" in capsys.readouterr().err) == is_shown


def test_verbose_shows_everything(capsys):
    emit(NodeLog(verbose=True), "something")
    assert "something" in capsys.readouterr().err


def test_a_table_is_aligned():
    assert format_table([("a", "1"), ("long", "2")]) == "  a     1\n  long  2"
