import json
import logging

import grpc
import pytest
import requests

from detloom.components.beam_job import BeamJobError, explain_job_failure
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
