import logging
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.console import NodeLog, format_table

ROOT = Path(detloom.__file__).parents[1]


def emit(log, message, *arguments, path="elsewhere.py", level=logging.INFO, name="absl"):
    log.emit(logging.LogRecord(name, level, str(path), 1, message, arguments, None))


def test_every_node_is_one_line_with_its_number_and_time(capsys):
    log = NodeLog(verbose=False)
    log.num_nodes = 2
    emit(log, "Component %s is running.", "Trainer")
    emit(log, "Component %s is finished.", "Trainer")
    emit(log, "Component %s is running.", "Pusher")
    emit(log, "A cached execution %d is used.", 7)
    emit(log, "Component %s is finished.", "Pusher")
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == ["[1/2] Trainer", "done in 0.0 s", "[2/2] Pusher", "answered from the cache"]
    assert log.current == "Pusher"


def test_a_node_that_its_condition_leaves_out_says_why(capsys):
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


def test_who_wants_to_know_is_told_when_a_node_begins_and_ends():
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
def test_our_lines_and_errors_are_shown_and_the_chatter_of_libraries_is_not(capsys, path, level, is_shown):
    emit(NodeLog(verbose=False), "something", path=path, level=level)
    assert ("something" in capsys.readouterr().err) == is_shown


def test_verbose_shows_everything(capsys):
    emit(NodeLog(verbose=True), "something")
    assert "something" in capsys.readouterr().err


def test_a_table_is_aligned():
    assert format_table([("a", "1"), ("long", "2")]) == "  a     1\n  long  2"
