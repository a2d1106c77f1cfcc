from types import SimpleNamespace

import pytest

from detloom.pipelines.backends import kubeflow_logs
from detloom.pipelines.backends.kubeflow_logs import failure_sentence, log_nodes, tail_of


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("error: data.path: no such folder.\nI0131 03:00:00.1 1 launcher_v2.go:1] x\n", "data.path: no such folder."),
        ("Traceback (most recent call last):\n  File x\nValueError: 3 > 2\nexit\n", "ValueError: 3 > 2"),
        (
            "a.b.ResourceExhaustedError: OOM when allocating\nE0131 03:00:00.1 1 x",
            "a.b.ResourceExhaustedError: OOM",
        ),
        ("Killed\nError: exit status 137\n", "Killed"),
        ('{"error_message":"Failed to read logs"}', ""),
        ("<html>sign in</html>", ""),
        ("", ""),
        ("error: https://me:secret@host\x1b[2J", "https://(hidden)@host\\x1b[2J"),
    ],
)
def test_the_cause_is_the_last_error_of_the_task(log, sentence):
    assert failure_sentence(log).startswith(sentence)
    assert bool(failure_sentence(log)) == bool(sentence)


def detail(name, *nodes, state="FAILED"):
    children = [SimpleNamespace(pod_name=node) for node in nodes]
    return SimpleNamespace(display_name=name, state=state, child_tasks=children or None)


def test_the_log_of_the_only_failed_container_comes_first():
    details = [
        detail("training", "w-1"),
        detail("Trainer-driver", "w-2", state="SUCCEEDED"),
        detail("Trainer", "w-3"),
        detail("Trainer(0)", "w-4", ""),
        detail("Trainer(1)"),
        detail(None, "w-5"),  # an execution in ML Metadata
    ]
    executor = detail("executor", "w-8", "w-9")
    assert log_nodes("Trainer", [*details, executor]) == ["w-9", "w-4", "w-3"]
    assert log_nodes("Trainer", [*details, executor, executor]) == ["w-4", "w-3"]  # another task's may be either
    assert log_nodes("Pusher", details) == []


def test_only_the_end_of_a_log_is_kept(monkeypatch):
    monkeypatch.setattr(kubeflow_logs, "_TAIL_BYTES", 5)
    assert tail_of(iter([b"abc", b"defg", b"h"])) == "defgh"
