import json
import pickle
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import v1 as tfx
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types.standard_artifacts import ModelBlessing

from detloom.components.notifier.component import Notifier
from detloom.components.notifier.failure import (
    FailureExecutor,
    FailureNotifier,
    build_failure_notifier,
    notify_failure,
)
from detloom.components.notifier.failure_text import describe_error
from detloom.components.notifier.params import NotifierParams
from detloom.schemas.errors import InputError
from detloom.schemas.notifications_config import Notifications, Webhook

HOOK = Notifications(webhook=Webhook(url="env:HOOK"))
JOB = "projects/my-project/locations/us-central1/pipelineJobs/cells-1"


def make_params(place, notifications=HOOK):
    return NotifierParams(pipeline="cells", notifications=notifications, place=place, kubeflow_host="https://k.example")


@pytest.fixture
def hook(web, monkeypatch):
    monkeypatch.setenv("HOOK", f"{web.url}/services/geheim")
    return web


def payloads(web):
    return [json.loads(request.body) for request in web.requests]


def test_the_executor_path_is_stable():
    # Compiled pipelines store it.
    assert FailureNotifier.EXECUTOR_SPEC.class_path == "detloom.components.notifier.failure.FailureExecutor"
    assert pickle.loads(pickle.dumps(FailureExecutor)) is FailureExecutor


def test_it_compiles_as_the_exit_handler_of_a_pipeline(tmp_path):
    params = make_params("kubeflow")
    blessing = tfx.dsl.Importer(source_uri="gs://b/x", artifact_type=ModelBlessing).with_id("Blessing")
    notifier = Notifier(params=params, blessing=blessing.outputs["result"])
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image="image", use_pipeline_spec_2_1=True
        ),
        output_filename="job.yaml",
        output_dir=str(tmp_path),
    )
    runner.set_exit_handler(build_failure_notifier(params))
    runner.run(tfx.dsl.Pipeline(pipeline_name="cells", pipeline_root="", components=[blessing, notifier]))
    job = yaml.safe_load(Path(tmp_path, "job.yaml").read_text())
    json_format.ParseDict(job, pipeline_spec_pb2.PipelineSpec())
    task = job["root"]["dag"]["tasks"]["FailureNotifier"]
    assert task["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert task["dependentTasks"] == ["tfx-dag"]
    assert task["inputs"]["parameters"]["final_status"] == {"taskFinalStatus": {"producerTask": "tfx-dag"}}
    assert task["inputs"]["parameters"]["run_id"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}


def test_the_exit_handler_refuses_a_secret_that_it_could_not_read():
    with pytest.raises(InputError, match="Kubernetes secret"):
        build_failure_notifier(make_params("vertex", Notifications(webhook=Webhook(url="kubernetes:hooks/url"))))


def end(place, status, **properties):
    FailureExecutor(BaseExecutor.Context()).Do(
        {}, {}, {**make_params(place).to_properties(), "final_status": status, **properties}
    )


def test_on_vertex_the_message_names_node_reason_and_page(hook):
    reason = "The DAG failed because some tasks failed. The failed tasks are: [Trainer]."
    status = {"state": "FAILED", "pipelineJobResourceName": JOB, "error": {"code": 9, "message": reason}}
    end("vertex", json.dumps(status), run_name="cells-1", run_id=JOB)
    (payload,) = payloads(hook)
    assert payload["text"].splitlines()[0] == "cells failed in Trainer"
    assert payload["node"] == "Trainer"
    assert payload["reason"] == reason
    assert payload["run"] == "cells-1"
    assert "/locations/us-central1/pipelines/runs/cells-1?project=my-project" in payload["links"]["Page of the run"]


def test_on_kubeflow_the_message_leads_to_the_page(hook):
    status = {"state": "FAILED", "pipelineJobResourceName": "cells-x7k2p", "error": {}}
    end("kubeflow", json.dumps(status), run_name="monday", run_id="1a-2b")
    (payload,) = payloads(hook)
    assert payload["run"] == "monday"
    assert payload["links"] == {"Page of the run": "https://k.example/#/runs/details/1a-2b"}
    assert "which node failed; the page of the run does" in payload["reason"]


def test_a_backend_that_fills_in_nothing_still_says_which_run(hook):
    end("vertex", {"state": "FAILED", "pipelineJobResourceName": JOB})
    (payload,) = payloads(hook)
    assert payload["run"] == JOB
    assert "Page of the run" in payload["links"]


@pytest.mark.parametrize("state", ["SUCCEEDED", "COMPLETE"])
def test_of_a_good_end_nothing_is_told(hook, state):
    end("kubeflow", json.dumps({"state": state}))
    assert hook.requests == []


def test_the_exit_handler_fails_for_nothing(caplog):
    FailureExecutor(BaseExecutor.Context()).Do({}, {}, {})
    assert "FailureNotifier: no message could be made (KeyError)." in caplog.text


def test_on_one_machine_the_node_and_its_sentence_are_told(hook):
    notify_failure("cells", HOOK, "Trainer", InputError("run.yaml:3: the rate is too high."), run_id="r1")
    (payload,) = payloads(hook)
    assert payload["text"].splitlines()[:2] == ["cells failed in Trainer", "run.yaml:3: the rate is too high."]
    assert payload["place"] == "local"
    assert payload["run"] == "r1"
    assert payload["machine"]


def test_failures_that_nobody_wants_to_hear_of_are_not_told(hook):
    notify_failure("cells", Notifications(events=("pushed",), webhook=HOOK.webhook), None, InputError("x"))
    assert hook.requests == []


def test_telling_of_a_failure_never_raises(caplog):
    class Mean(Exception):
        def __str__(self):
            raise RuntimeError("geheim")

    notify_failure("cells", HOOK, None, Mean())
    assert "notifications: no message could be made (RuntimeError)." in caplog.text
    assert "geheim" not in caplog.text


def test_an_error_of_ours_is_its_type_and_first_line():
    assert describe_error(RuntimeError("no memory\n  at 0x1")) == "RuntimeError: no memory"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_secrets_of_the_environment_are_hidden_in_an_errors_text(monkeypatch):
    monkeypatch.setenv("HOOK", "https://hooks.example.org/services/T0/B0/geheim\n")
    monkeypatch.setenv("SMTP_PASSWORD", "sehrgeheim")
    monkeypatch.setenv("PIN_TOKEN", "on")  # too short to be looked for
    error = RuntimeError("POST https://hooks.example.org/services/T0/B0/geheim on: login sehrgeheim")
    assert describe_error(error, ["env:HOOK"]) == "RuntimeError: POST (hidden) on: login (hidden)"
