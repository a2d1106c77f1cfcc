import logging
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.local.console import NodeLog, format_table

ROOT = Path(detloom.__file__).parents[1]


def emit(log, message, *arguments, path="elsewhere.py", level=logging.INFO, name="absl"):
    log.emit(logging.LogRecord(name, level, str(path), 1, message, arguments, None))


@pytest.mark.parametrize(
    ("node", "end", "line"),
    [
        ("Trainer", "done", "done in 0.0 s"),
        ("Trainer", "cached", "cached"),
        ("BaselineResolver", "failed", "failed"),
        ("Trainer", "skipped", "skipped: no reason to train"),
        ("SkipNotifier", "skipped", "skipped: there is reason to train"),
    ],
)
def test_every_node_prints_its_number_and_end(capsys, node, end, line):
    log = NodeLog(verbose=False)
    log.num_nodes = 2
    log.begin(node)
    log.end(node, end)
    assert [each.strip() for each in capsys.readouterr().err.splitlines()] == [f"[1/2] {node}", line]
    assert log.current == node


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
