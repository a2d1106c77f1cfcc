import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from detloom.components.notifier import kubeflow_failures
from detloom.components.notifier.build_message import FinalStatus, build_failure_message
from detloom.components.notifier.component import NotifierParams
from detloom.components.notifier.kubeflow_failures import Entry, failure_sentence, log_nodes, read_failures, tail_of
from detloom.schemas.run_file.notifications import Notifications, Webhook

SPEC = {
    "root": {"dag": {"tasks": {"training": {"componentRef": {"name": "training"}}}}},
    "components": {"training": {"dag": {"tasks": {"Trainer": {"componentRef": {"name": "Trainer"}}}}}, "Trainer": {}},
}
DETAILS = [
    {"display_name": "training", "state": "FAILED", "child_tasks": [{"pod_name": "w-1"}]},
    {"display_name": "Trainer-driver", "state": "SUCCEEDED", "child_tasks": [{"pod_name": "w-2"}]},
    {"display_name": "Trainer", "state": "FAILED", "child_tasks": [{"pod_name": "w-3"}]},
    {"display_name": "executor", "state": "FAILED", "child_tasks": [{"pod_name": "w-4"}]},
    {"task_id": "an execution in ML Metadata", "execution_id": "23"},
]


@pytest.fixture
def api():
    """Run a server; return its answers by path, and the environment of a pod beside it."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(answers.get(self.path, b""))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield (
        answers,
        {"ML_PIPELINE_SERVICE_HOST": "127.0.0.1", "ML_PIPELINE_SERVICE_PORT": str(server.server_port)},
    )
    server.shutdown()
    server.server_close()


def test_the_exit_handler_names_the_failed_task_and_its_cause(api):
    answers, environment = api
    run = {"run_details": {"task_details": DETAILS}, "pipeline_spec": {"pipeline_spec": SPEC, "platform_spec": {}}}
    answers["/apis/v2beta1/runs/r-1"] = json.dumps(run).encode()
    assert read_failures("r-1", environment) == {"Trainer": ""}  # without a log
    answers["/apis/v1alpha1/runs/r-1/nodes/w-4/log"] = b"step 1\nerror: out of memory\nError: exit status 1\n"
    failures = read_failures("r-1", environment)
    assert failures == {"Trainer": "out of memory"}
    params = NotifierParams(
        pipeline="cells", notifications=Notifications(webhook=Webhook(url="env:HOOK")), place="kubeflow"
    )
    message = build_failure_message(FinalStatus(state="FAILED"), params.about_run(), failures)
    assert (message.node, message.reason) == ("Trainer", "out of memory")


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b'{"run_details": null}', b'{"run_details": {}}'])
def test_a_notification_does_not_depend_on_the_api(api, content):
    answers, environment = api
    answers["/apis/v2beta1/runs/r-1"] = content
    assert read_failures("r-1", environment) == {}
    assert read_failures("r-2", environment) == {}
    assert read_failures("r-1", {}) == {}


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


def test_the_log_of_the_only_failed_container_comes_first():
    entries = [Entry(name=each["display_name"], state=each["state"], children=("w-0",)) for each in DETAILS[2:4]]
    entries = [entries[0], Entry(name="executor", state="FAILED", children=("w-8", "w-9"))]
    assert log_nodes("Trainer", entries) == ["w-9", "w-0"]
    assert log_nodes("Trainer", [*entries, entries[1]]) == ["w-0"]  # another task's may be either
    assert log_nodes("Pusher", entries[:1]) == []


def test_only_the_end_of_a_log_is_kept(monkeypatch):
    monkeypatch.setattr(kubeflow_failures, "_TAIL_BYTES", 5)
    assert tail_of(iter([b"abc", b"defg", b"h"])) == "defgh"
