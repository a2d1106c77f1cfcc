import json
import logging
import os
import signal
import time
from types import SimpleNamespace

import apache_beam as beam
import grpc
import pytest
import requests
from apache_beam.runners.portability.flink_uber_jar_job_server import FlinkBeamJob
from apache_beam.runners.runner import PipelineResult, PipelineRunner

from detloom.components.beam_job import BeamJobError, cancel_unfinished_jobs, explain_job_failure
from detloom.schemas.errors import InputError

# Of Flink 1.19 with Beam 2.61, with fewer frames.
PYTHON_TRACE = """\
java.util.concurrent.ExecutionException: java.lang.RuntimeException: Error received from SDK harness for instruction \
3: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1501, in apache_beam.runners.common.DoFnRunner.process
  File "/data/fails.py", line 9, in fail
    raise {kind}("{message}")
{kind}: {message}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/apache_beam/runners/worker/sdk_worker.py", line 311, in _execute
    response = task()
  File "/data/fails.py", line 9, in fail
    raise {kind}("{message}")
{again}{kind}: {message} [while running 'Step-ptransform-17']

\tat java.base/java.util.concurrent.CompletableFuture.get(CompletableFuture.java:2073)
Caused by: java.lang.RuntimeException: Error received from SDK harness for instruction 3: Traceback (most recent call):
  File "apache_beam/runners/common.py", line 1501, in apache_beam.runners.common.DoFnRunner.process
{again}{kind}: {message} [while running 'Step-ptransform-17']

\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient$ResponseStreamObserver.onNext(x.java:180)
"""
POOL_TRACE = """\
java.lang.Exception: The user defined 'open()' method caused an exception: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.\
StatusRuntimeException: UNAVAILABLE: io exception
\tat org.apache.flink.runtime.operators.BatchTask.run(BatchTask.java:510)
Caused by: org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.util.concurrent.UncheckedExecutionException: \
org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception
\tat org.apache.beam.runners.fnexecution.environment.ExternalEnvironmentFactory.createEnvironment(x.java:113)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.AbstractChannel$AnnotatedConnectException: \
finishConnect(..) failed: Connection refused: localhost/127.0.0.1:5555
Caused by: java.net.ConnectException: finishConnect(..) failed: Connection refused
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
LOST_TRACE = """\
org.apache.flink.runtime.jobmaster.JobMasterException: TaskManager with id 10.77.0.11:40717-ebd287 is no longer \
reachable.
\tat org.apache.flink.runtime.jobmaster.JobMaster$TaskManagerHeartbeatListener.notifyTargetUnreachable(x.java:1496)
"""


def sentence_for(error):
    with pytest.raises(BeamJobError) as raised, explain_job_failure():
        raise error
    assert raised.value.__cause__ is error
    return str(raised.value)


def failed(trace):
    return RuntimeError(f"Pipeline job-393255e6 failed in state FAILED: {trace}")


def python_trace(kind, message):
    again = "" if kind.endswith("InputError") else "RuntimeError: "
    return PYTHON_TRACE.format(kind=kind, message=message, again=again)


def test_a_users_mistake_in_a_worker_is_the_cause():
    trace = python_trace("detloom.schemas.errors.InputError", "record 7: got a, allowed: b.")
    with pytest.raises(InputError) as raised, explain_job_failure():
        raise failed(trace)
    assert type(raised.value) is InputError  # the same job would fail again
    assert str(raised.value) == "the Beam job ended in state FAILED: record 7: got a, allowed: b (in step Step)."


@pytest.mark.parametrize(
    ("trace", "parts"),
    [
        (
            python_trace("OSError", "[Errno 28] No space left on device: '/data/x'"),
            ("FAILED: OSError: [Errno 28] No space left on device: '/data/x' (in step Step).",),
        ),
        (python_trace("KeyError", "first\nsecond"), ("KeyError: first second (in step",)),
        (
            POOL_TRACE,
            (": finishConnect(..) failed: Connection refused: localhost/127.0.0.1:5555; a pool", "environment_config"),
        ),
        (LOST_TRACE, (": TaskManager with id 10.77.0.11:40717-ebd287 is no longer reachable; with restart-strategy",)),
    ],
)
def test_the_cause_of_a_failure_is_one_line_with_its_step_or_address(trace, parts):
    sentence = sentence_for(failed(trace))
    assert all(part in sentence for part in parts)


def test_a_response_of_the_rest_server_is_read():
    errors = [
        "Internal server error.",
        "<Exception on server side:\nx.FlinkException: a\nCaused by: y.Error: b\n\tat z",
    ]
    answer = f"Request to http://flink:8081/v1/jars failed with status 500: {json.dumps({'errors': errors})}"
    assert sentence_for(RuntimeError(answer)) == "Flink refused the Beam job: b."
    assert ": <html>" in sentence_for(RuntimeError("Request to http://flink failed with status 502: <html>"))


def test_a_rest_server_that_does_not_answer_is_named():
    request = requests.Request("POST", "http://user:secret@10.77.0.2:9999/v1/jars/upload").prepare()
    error = requests.ConnectionError("Max retries ... [Errno 111] Connection refused'))", request=request)
    sentence = sentence_for(error)
    assert "10.77.0.2:9999 does not answer (Connection refused)" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (grpc.FutureTimeoutError(), "job_endpoint"),
        (ValueError('Unable to parse jar URL "/no.jar". If using a full URL, make'), '"/no.jar"; `scripts/flink_'),
        (RuntimeError("Unable to fetch remote job server jar at https://x/y-2.61.0.jar: 404. If"), "y-2.61.0.jar: 404"),
    ],
)
def test_other_failures_name_what_to_check(error, named):
    assert named in sentence_for(error)


@pytest.mark.parametrize("error", [KeyError("a bug"), OSError(28, "No space"), BeamJobError("known")])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as raised, explain_job_failure():
        raise error
    assert raised.value is error


def test_the_traces_that_the_runner_logs_are_only_shown_on_request(caplog):
    caplog.set_level(logging.INFO)
    path = "/venv/apache_beam/runners/portability/portable_runner.py"
    root = logging.getLogger()
    with explain_job_failure():
        with explain_job_failure():  # as in a node of a run
            pass
        for module in (path, "/venv/other.py"):
            root.handle(root.makeRecord("root", logging.ERROR, module, 1, "%s", ("a trace",), None))
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.ERROR]
    assert root.filters == []


class Job(PipelineResult):
    """A job on a cluster, in this state while it is awaited."""

    def __init__(self, state, wait, send_cancel=lambda: None):
        super().__init__(state)
        self.wait, self.send_cancel, self.cancelled = wait, send_cancel, 0

    def wait_until_finish(self, duration=None):
        self.wait()

    def cancel(self):
        self.send_cancel()
        self.cancelled, self._state = self.cancelled + 1, "CANCELLING"


class Cluster(PipelineRunner):
    def __init__(self, job):
        self.job = job

    def run_pipeline(self, pipeline, options):
        return self.job


def wait_for(job):
    with cancel_unfinished_jobs(), cancel_unfinished_jobs(), beam.Pipeline(Cluster(job)) as pipeline:
        pipeline | beam.Create([1])


def fail():
    raise OSError("the node fails")


def receive_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


@pytest.mark.parametrize(("state", "cancelled"), [("RUNNING", 1), ("PENDING", 1), ("DONE", 0), ("FAILED", 0)])
def test_a_job_that_runs_when_its_node_fails_is_cancelled(state, cancelled):
    job = Job(state, fail)
    with pytest.raises(OSError, match="the node fails"):
        wait_for(job)
    assert job.cancelled == cancelled


def test_sigterm_cancels_the_job_and_ends_the_process():
    job = Job("RUNNING", receive_sigterm)
    with pytest.raises(SystemExit) as ended:
        wait_for(job)
    assert (ended.value.code, job.cancelled) == (143, 1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_job_that_cannot_be_cancelled_is_logged_and_the_error_is_the_node_s(caplog):
    with pytest.raises(OSError, match="the node fails"):
        wait_for(Job("RUNNING", fail, send_cancel=lambda: 1 / 0))
    assert "could not be cancelled (division by zero); it continues" in caplog.text


def test_a_job_of_flink_is_cancelled_by_its_rest_api(monkeypatch):
    sent = []
    answer = SimpleNamespace(status_code=202, text="")
    monkeypatch.setattr(requests, "patch", lambda url, params: sent.append((url, params)) or answer)
    monkeypatch.setattr(FlinkBeamJob, "delete_jar", lambda job: None)
    flink_job = FlinkBeamJob.__new__(FlinkBeamJob)
    flink_job._master_url, flink_job._flink_job_id = "http://flink:8081", "a1b2"
    with pytest.raises(OSError, match="the node fails"):
        wait_for(Job("RUNNING", fail, send_cancel=lambda: flink_job.cancel()))
    assert sent == [("http://flink:8081/v1/jobs/a1b2", {"mode": "cancel"})]
