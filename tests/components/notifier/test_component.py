import json
import logging
from dataclasses import replace

import pytest
from artifacts import make_artifact
from tfx import v1 as tfx
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import Channel
from tfx.types.standard_artifacts import ModelBlessing, PushedModel

from detloom.components.artifact_types import RetrainDecision
from detloom.components.notifier import component as module
from detloom.components.notifier.component import Executor, Notifier, NotifierParams, notify_failure
from detloom.components.notifier.message_events import build_result_message
from detloom.components.properties import arguments_of
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.notifications import Notifications, Webhook

ALL_EVENTS = ("failed", "refused", "pushed", "skipped")
PARAMS = NotifierParams(
    pipeline="cells",
    notifications=Notifications(events=ALL_EVENTS, webhook=Webhook(url="env:HOOK")),
    place="kubeflow",
    kubeflow_host="https://k.example",
    nonce="n1",
    code_fingerprint="aa",
)
ARGUMENTS = arguments_of(PARAMS)
RAN = replace(PARAMS, run_name="cells of monday", run_id="1a-2b")  # as the backend fills it in


LOCAL = replace(PARAMS, place="local").to_properties()


def properties_of(params):
    return {**params.to_properties(), "run_name": params.run_name, "run_id": params.run_id}


def make_blessing(*, blessed, blessing_metrics='{"AP": 0.512, "AP50": 0.8}'):
    message = "AP 0.512 is at least 0.300."
    return make_artifact(
        ModelBlessing, blessed=int(blessed), blessing_message=message, blessing_metrics=blessing_metrics
    )


def make_pushed(*, pushed=1, version="7", **properties):
    versions = {"pushed_version": version} if version else {}
    return make_artifact(PushedModel, pushed=pushed, pushed_destination="/srv/models/7", **versions, **properties)


def make_decision(train):
    return make_artifact(RetrainDecision, train=train, reason="No reason to train: span 4 was seen.")


def inputs(blessing=None, pushed=None, decision=None):
    given = {"model_blessing": blessing, "pushed_model": pushed, "decision": decision}
    return {name: [] if artifact is None else [artifact] for name, artifact in given.items()}


@pytest.mark.parametrize(
    ("place", "run_name", "run_id"),
    [
        ("local", "", ""),
        ("kubeflow", "{{$.pipeline_job_name}}", "{{$.pipeline_job_uuid}}"),
        ("vertex", "{{$.pipeline_job_name}}", "{{$.pipeline_job_resource_name}}"),
    ],
)
def test_backend_placeholders_for_name_and_id_of_the_run(place, run_name, run_id):
    properties = replace(PARAMS, place=place).to_properties()
    assert (properties["run_name"], properties["run_id"]) == (run_name, run_id)


def test_all_inputs_are_optional_and_there_are_no_outputs():
    kinds = {"blessing": ModelBlessing, "pushed_model": PushedModel, "decision": RetrainDecision}
    node = Notifier(**ARGUMENTS, **{name: Channel(type=kind) for name, kind in kinds.items()})
    assert set(node.inputs) == {"model_blessing", "pushed_model", "decision"}
    assert dict(node.outputs) == {}
    assert arguments_of(NotifierParams.from_properties(node.exec_properties)) == ARGUMENTS
    assert set(Notifier(**ARGUMENTS, decision=Channel(type=RetrainDecision)).inputs) == {"decision"}


def test_kubernetes_secret_is_refused_on_vertex():
    notifications = Notifications(webhook=Webhook(url="kubernetes:hooks/url"))
    with pytest.raises(InputError, match=r"notifications: .*Kubernetes secret, .*secret_manager"):
        Notifier(pipeline="p", notifications=notifications, place="vertex")


def message_of(artifacts):
    return build_result_message(artifacts, RAN.about_run())


def test_push_message_has_version_destination_and_metrics():
    payload = message_of(inputs(make_blessing(blessed=True), make_pushed(), make_decision(1))).to_payload()
    assert payload["event"] == "pushed"
    assert payload["version"] == "7"
    assert payload["destination"] == "/srv/models/7"
    assert payload["numbers"] == {"AP": 0.512, "AP50": 0.8}
    assert payload["run"] == "cells of monday"
    assert payload["links"] == {"Page of the run": "https://k.example/#/runs/details/1a-2b"}


@pytest.mark.parametrize(
    ("artifacts", "event", "reason"),
    [
        (
            inputs(make_blessing(blessed=False), make_pushed(pushed=0, version="")),
            "refused",
            "AP 0.512 is at least 0.300.",
        ),
        (
            inputs(make_blessing(blessed=True), make_pushed(pushed=0, reason="it was rolled back")),
            "refused",
            "it was rolled back",
        ),
        (inputs(decision=make_decision(0)), "skipped", "No reason to train: span 4 was seen."),
    ],
    ids=["not blessed", "rolled back", "not trained"],
)
def test_other_messages_have_event_and_reason(artifacts, event, reason):
    message = message_of(artifacts)
    assert (message.event, message.reason) == (event, reason)
    assert message.numbers == ({} if event == "skipped" else {"AP": 0.512, "AP50": 0.8})


@pytest.mark.parametrize(
    "artifacts",
    [
        inputs(),
        inputs(decision=make_decision(1)),
        inputs(make_blessing(blessed=True)),
        inputs(make_blessing(blessed=True), make_pushed(pushed=0)),
        inputs(make_blessing(blessed=True), make_pushed(pushed_is_new=0)),
    ],
    ids=["nothing", "training", "no push", "not pushed", "served already"],
)
def test_no_message_if_nothing_happened(artifacts):
    assert message_of(artifacts) is None


def test_invalid_metrics_in_a_blessing_are_ignored():
    assert message_of(inputs(make_blessing(blessed=False, blessing_metrics="[1]"))).numbers == {}


def do(artifacts, properties=None, **context):
    properties = properties_of(RAN) if properties is None else properties
    Executor(BaseExecutor.Context(**context)).Do(artifacts, {}, properties)


def payloads(web):
    return [json.loads(request.body) for request in web.requests]


@pytest.mark.usefixtures("hook")
def test_do_sends_the_message_with_the_same_id_on_a_retry(web):
    for run_id in ("1", "1", "2"):
        do(inputs(decision=make_decision(0)), properties_of(replace(RAN, run_id=run_id)))
    first, again, other = payloads(web)
    assert first["text"].startswith("cells: training was skipped\nNo reason to train")
    assert first["id"] == again["id"] != other["id"]


@pytest.mark.usefixtures("hook")
def test_do_logs_if_there_is_no_message(web, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    do(inputs())
    assert web.requests == []
    assert "Notifier: nothing to report." in caplog.text


def test_do_never_raises(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("geheim")

    do(inputs(), {})  # not even without parameters
    monkeypatch.setattr(module, "build_result_message", fail)
    do(inputs())
    assert "(RuntimeError)" in caplog.text
    assert "geheim" not in caplog.text


@pytest.fixture
def do_locally(web, hook, tmp_path):
    """Return a function that runs the node like TFX's local runner and returns the sent events."""

    def run(artifacts, number):
        web.requests.clear()
        folder = tmp_path / "Notifier" / ".system" / "stateful_working_dir" / f"run-{number}"
        do(artifacts, LOCAL, pipeline_run_id=f"run-{number}", stateful_working_dir=f"{folder}/")
        return [payload["event"] for payload in payloads(web)]

    return run


def test_repeated_run_sends_each_message_once(do_locally, tmp_path):
    refused = make_blessing(blessed=False)
    refused.uri = "/run/blessing/1"
    assert do_locally(inputs(refused), 1) == ["refused"]
    assert do_locally(inputs(refused), 2) == []
    assert (tmp_path / "Notifier" / "sent_messages.txt").is_file()
    refused.uri = "/run/blessing/9"
    assert do_locally(inputs(refused), 3) == ["refused"]


@pytest.mark.reliability("kill", "metadata")
def test_push_of_a_killed_run_is_reported_once_by_the_next_run(do_locally):
    blessed = make_blessing(blessed=True)
    assert do_locally(inputs(blessed, make_pushed(pushed_is_new=0)), 1) == [
        "pushed"
    ]  # pushed by a run that sent no message
    assert do_locally(inputs(blessed, make_pushed(pushed_is_new=0)), 2) == []
    assert do_locally(inputs(blessed, make_pushed(pushed_is_new=1, version="8")), 3) == ["pushed"]


def test_each_run_that_skips_training_sends_a_message(do_locally):
    assert do_locally(inputs(decision=make_decision(0)), 1) == ["skipped"]
    assert do_locally(inputs(decision=make_decision(0)), 2) == ["skipped"]


@pytest.mark.usefixtures("hook")
def test_repeated_run_of_the_local_dag_runner_sends_one_message(web, tmp_path):
    (tmp_path / "blessing").mkdir()
    (tmp_path / "blessing" / "NOT_BLESSED").write_text("")
    for nonce in ("first", "second"):
        blessing = tfx.dsl.Importer(
            source_uri=str(tmp_path / "blessing"),
            artifact_type=ModelBlessing,
            custom_properties={"blessed": 0, "blessing_message": "AP 0.100 is below 0.300."},
        ).with_id("Blessing")
        arguments = {"pipeline": "cells", "notifications": PARAMS.notifications, "nonce": nonce}
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="cells",
            pipeline_root=str(tmp_path / "artifacts"),
            components=[blessing, Notifier(**arguments, blessing=blessing.outputs["result"])],
            enable_cache=True,
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
                str(tmp_path / "metadata.sqlite")
            ),
        )
        tfx.orchestration.LocalDagRunner().run(pipeline)
    (payload,) = payloads(web)
    assert payload["reason"] == "AP 0.100 is below 0.300."
    assert payload["run"].startswith("20")  # the start time
    assert (tmp_path / "artifacts" / "Notifier" / "sent_messages.txt").read_text() == f"{payload['id']} webhook\n"


@pytest.mark.usefixtures("hook")
def test_exit_handler_reports_a_failure(web, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    for state in ("SUCCEEDED", "FAILED"):
        do({}, {**properties_of(RAN), "final_status": json.dumps({"state": state})})
    (payload,) = payloads(web)
    assert (payload["event"], payload["run"]) == ("failed", "cells of monday")
    assert "'SUCCEEDED'" in caplog.text


def test_local_failure_has_node_and_error(web, hook):
    notify_failure("cells", Notifications(webhook=hook), "Trainer", InputError("run.yaml:3: the rate is too high."))
    notify_failure("cells", Notifications(events=("pushed",), webhook=hook), None, InputError("x"))
    (payload,) = payloads(web)
    assert payload["text"].splitlines()[:2] == ["cells failed in Trainer", "run.yaml:3: the rate is too high."]
    assert payload["place"] == "local"
    assert payload["machine"]


def test_notify_failure_never_raises(caplog):
    class Mean(Exception):
        def __str__(self):
            raise RuntimeError("geheim")

    notify_failure("cells", PARAMS.notifications, None, Mean())
    assert "(RuntimeError)" in caplog.text
    assert "geheim" not in caplog.text
