import collections
import logging
from pathlib import Path

import numpy as np
import pytest

import detloom
from detloom.pipelines.doctor.check_result import CheckResult, format_results
from detloom.pipelines.local.console import NodeLog, format_next, format_table
from detloom.pipelines.predict.predict_files import Counts
from detloom.pipelines.validate_folder import format_checks
from detloom.trainer_module.inference.prediction import Prediction

ROOT = Path(detloom.__file__).parents[1]
HOSTILE = "cat\x1b[2J\x9b2J\r\nfake\u202e"


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


def print_cases():
    """Yield functions that print a name from data."""
    result = CheckResult(name="data", status="error", detail=HOSTILE, expected=HOSTILE, next_step=HOSTILE)
    rows = {"detection_boxes": np.zeros((1, 4), np.float32), "detection_scores": np.ones(1)}
    report = {"checks": [{"status": "fail", "check": "labels", "sentence": HOSTILE}], "sentence": HOSTILE}
    yield "a line of a node", lambda: emit(NodeLog(verbose=True), "skipped: %s", HOSTILE)
    yield "a table", lambda: print(format_table([(HOSTILE, "1"), ("x", HOSTILE)]))
    yield "the next command", lambda: print(format_next("detloom", "serve", HOSTILE))
    yield "a detection", lambda: print(*Prediction(np.zeros((9, 9, 3), np.uint8), rows, (HOSTILE,)).lines())
    yield "counts", lambda: print(Counts(num_by_class=collections.Counter({HOSTILE: 1})).sentence(0.5))
    yield "doctor", lambda: print(format_results((result,)))
    yield "validate", lambda: print(format_checks(report))


@pytest.mark.reliability("hostile input", "ingest")
@pytest.mark.parametrize("show", [pytest.param(show, id=name) for name, show in print_cases()])
def test_names_from_data_neither_control_the_terminal_nor_start_a_line(show, capsys):
    show()
    text = "".join(capsys.readouterr())
    assert "fake" in text
    assert text.replace("\n", "").isprintable()
    assert not any(line.startswith("fake") for line in text.splitlines())


def test_a_table_is_aligned():
    assert format_table([("a", "1"), ("long", "2")]) == "  a     1\n  long  2"
