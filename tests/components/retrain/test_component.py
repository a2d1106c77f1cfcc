"""Constructors, parameters and executors of RetrainDecision and TrainingRecord."""

import json
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from tfx.types import Channel, standard_artifacts

from detloom.components.artifact_types import DatasetReport, RetrainDecision, TrainingRecord
from detloom.components.properties import arguments_of
from detloom.components.pusher.endpoint import label_model
from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.push import push_model, roll_back
from detloom.components.retrain import component, training_record
from detloom.components.retrain.component import DecisionExecutor, RecordExecutor, RetrainParams
from detloom.components.retrain.reuse import ReusingTrainer, ReusingTuner
from detloom.components.retrain.training_record import read_last_record
from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.run_file.data_checks import DataChecks, ShareCheck
from detloom.schemas.run_file.schedule import Retrain


@pytest.fixture
def params(tmp_path):
    return RetrainParams(
        retrain=Retrain(new_span=True, records=str(tmp_path / "records")),
        checks=DataChecks(class_drift=ShareCheck(threshold=0.3)),
        train_split="train",
        config_hash='{"gates": "c0"}',
        pipeline="cells",
        production=str(tmp_path / "pushed"),
        nonce="n",
        code_fingerprint="f",
    )


@pytest.fixture
def inputs(tmp_path, make_report):
    examples, report = standard_artifacts.Examples(), DatasetReport()
    examples.uri, report.uri = str(tmp_path / "examples"), str(tmp_path / "report")
    examples.set_int_custom_property("span", 12)
    examples.set_string_custom_property("input_fingerprint", "abc")
    Path(report.uri).mkdir()
    (Path(report.uri) / "report.json").write_text(json.dumps(make_report()))
    return {"examples": [examples], "dataset_report": [report]}


def decide(inputs, params, folder):
    decision = RetrainDecision()
    decision.uri = str(folder)
    DecisionExecutor().Do(inputs, {"decision": [decision]}, params.to_properties())
    return decision


def record(inputs, params, folder, decision, *, is_blessed, address=""):
    blessing, output = standard_artifacts.ModelBlessing(), TrainingRecord()
    blessing.set_int_custom_property("blessed", int(is_blessed))
    output.uri = str(folder)
    model = standard_artifacts.Model()
    model.uri = str(folder.parent / "model")
    if address:
        model.set_string_custom_property("address", address)
    (Path(model.uri) / "Format-Serving").mkdir(parents=True, exist_ok=True)
    (Path(model.uri) / "Format-Serving" / "saved_model.pb").write_bytes(b"graph")
    inputs = {**inputs, "decision": [decision], "model": [model], "blessing": [blessing]}
    RecordExecutor().Do(inputs, {"record": [output]}, params.to_properties())
    return output


def test_nodes_have_the_inputs_and_outputs_that_the_pipeline_connects(params):
    examples, report = Channel(type=standard_artifacts.Examples), Channel(type=DatasetReport)
    shared = arguments_of(params)
    del shared["records_state"], shared["nonce"]
    decision = component.RetrainDecision(examples, report, **shared)
    assert decision.id == "RetrainDecision"
    assert {name: channel.type for name, channel in decision.outputs.items()} == {"decision": RetrainDecision}
    blessing = Channel(type=standard_artifacts.ModelBlessing)
    model = Channel(type=standard_artifacts.Model)
    node = component.TrainingRecord(examples, report, decision.outputs["decision"], model, blessing, **shared)
    assert node.id == "TrainingRecord"
    assert {name: channel.type for name, channel in node.outputs.items()} == {"record": TrainingRecord}
    for each in (decision, node):
        assert shared.items() <= arguments_of(RetrainParams.from_properties(each.exec_properties)).items()


def test_a_decision_writes_properties_and_a_file(inputs, params, tmp_path):
    decision = decide(inputs, params, tmp_path / "decision")
    assert decision.get_int_custom_property("train") == 1
    reason = decision.get_string_custom_property("reason")
    assert reason.startswith("Training: ")
    assert json.loads((tmp_path / "decision/decision.json").read_text()) == {"train": 1, "reason": reason}


@pytest.mark.parametrize(("is_blessed", "outcome"), [(True, "blessed"), (False, "refused")])
def test_recorded_data_cause_no_further_training(inputs, params, tmp_path, is_blessed, outcome):
    first = decide(inputs, params, tmp_path / "decision")
    output = record(inputs, params, tmp_path / "record", first, is_blessed=is_blessed)
    last = read_last_record(str(tmp_path / "records"), "cells")
    assert (last.outcome, last.span, last.config_hash) == (outcome, 12, params.config_hash)
    assert last.reason == first.get_string_custom_property("reason")
    assert last.data_fingerprint == "ba7816bf8f01cfea"  # SHA-256 of "abc"
    assert last.num_images == {"train": 100, "test": 7}
    assert last.boxes_by_class == {"cat": 50, "dog": 50}
    assert json.loads((Path(output.uri) / "training_record.json").read_text())["time"] == last.time

    second = decide(inputs, params, tmp_path / "second")
    assert second.get_int_custom_property("train") == 0
    assert "no new span since span 12" in second.get_string_custom_property("reason")


@pytest.mark.parametrize("place", ["folder", "endpoint"])
def test_after_a_rollback_the_same_data_cause_no_training_and_changed_data_do(inputs, params, tmp_path, vertex, place):
    record(inputs, params, tmp_path / "record", decide(inputs, params, tmp_path / "first"), is_blessed=True)
    model = tmp_path / "model" / "Format-Serving"
    if place == "folder":
        (tmp_path / "earlier").mkdir()
        (tmp_path / "earlier" / "saved_model.pb").write_bytes(b"earlier")
        for folder in (tmp_path / "earlier", model):
            push_model(folder, params.production, check=lambda copy: None)
        roll_back(params.production, reason="worse", check=lambda copy: None)
    else:
        params = replace(params, production="vertex://my-project/us-central1/cells")
        vertex.deploy(vertex.upload(), 100)
        vertex.deploy(trained := vertex.upload(), 100)
        label_model(params.production, trained, build_manifest(model).identity)
        vertex.traffic = {"0": 100, "1": 0}

    def decision(name):
        return decide(inputs, params, tmp_path / name).get_int_custom_property("train")

    assert decision("second") == 0
    inputs["examples"][0].set_string_custom_property("input_fingerprint", "labels were corrected")
    assert decision("third") == 1
    if place == "folder":
        push_model(model, params.production, check=lambda copy: None)  # by hand: it is good after all
        assert decision("fourth") == 0


def test_after_a_gate_changed_the_trainer_copies_the_last_model_and_its_record_is_replaced(inputs, params, tmp_path):
    record(inputs, params, tmp_path / "record", decide(inputs, params, tmp_path / "first"), is_blessed=False)
    before = read_last_record(str(tmp_path / "records"), "cells")
    params = replace(params, config_hash='{"gates": "c1"}')
    decision = decide(inputs, params, tmp_path / "second")
    assert decision.get_int_custom_property("train") == 1
    model, hyperparameters = standard_artifacts.Model(), standard_artifacts.HyperParameters()
    model.uri, hyperparameters.uri = str(tmp_path / "copy"), str(tmp_path / "nothing")
    ReusingTrainer().Do({"decision": [decision]}, {"model": [model]}, {})
    ReusingTuner().Do({"decision": [decision]}, {"best_hyperparameters": [hyperparameters]}, {})
    assert (tmp_path / "copy/Format-Serving/saved_model.pb").read_bytes() == b"graph"
    record(inputs, params, tmp_path / "record", decision, is_blessed=True)
    after = read_last_record(str(tmp_path / "records"), "cells")
    assert after == replace(before, outcome="blessed", config_hash=params.config_hash)
    assert len(list((tmp_path / "records/training_records/cells").iterdir())) == 1
    assert decide(inputs, params, tmp_path / "third").get_int_custom_property("train") == 0


@pytest.mark.parametrize(("address", "is_reused"), [("gs://bucket/model", True), ("minio://bucket/model", False)])
def test_the_model_of_a_container_is_found_at_its_address(inputs, params, tmp_path, make_bucket, address, is_reused):
    make_bucket("gs").put("model/Format-Serving/saved_model.pb", b"graph")
    first = decide(inputs, params, tmp_path / "first")
    record(inputs, params, tmp_path / "record", first, is_blessed=True, address=address)
    shutil.rmtree(tmp_path / "model")  # the copy of that container
    decision = decide(inputs, replace(params, config_hash='{"gates": "c1"}'), tmp_path / "second")
    assert decision.get_int_custom_property("train") == 1
    reason = decision.get_string_custom_property("reason")
    assert ("its model cannot be read" not in reason) == is_reused
    if is_reused:
        model = standard_artifacts.Model()
        model.uri = str(tmp_path / "copy")
        ReusingTrainer().Do({"decision": [decision]}, {"model": [model]}, {})
        assert (tmp_path / "copy/Format-Serving/saved_model.pb").read_bytes() == b"graph"


def test_a_model_is_not_evaluated_again_on_data_that_give_its_class_names_other_ids(inputs, params, tmp_path):
    record(inputs, params, tmp_path / "record", decide(inputs, params, tmp_path / "first"), is_blessed=True)
    of_data, of_model = tmp_path / "examples/label_map.pbtxt", tmp_path / "model/Format-Serving/assets/label_map.pbtxt"
    for path, names in ((of_data, ["cat", "dog"]), (of_model, ["dog", "cat"])):
        path.parent.mkdir()
        write_label_map(path, LabelMap.from_names(names))
    decision = decide(inputs, replace(params, config_hash='{"gates": "c1"}'), tmp_path / "second")
    assert decision.get_int_custom_property("train") == 0
    assert "but the classes of the data have changed" in decision.get_string_custom_property("reason")


@pytest.mark.parametrize(("changed", "reason"), [("gates", "its model cannot be read"), ("tuner", "Training: tuner")])
def test_a_damaged_label_map_of_the_last_model_causes_training(inputs, params, tmp_path, changed, reason):
    record(inputs, params, tmp_path / "record", decide(inputs, params, tmp_path / "first"), is_blessed=True)
    of_data, of_model = tmp_path / "examples/label_map.pbtxt", tmp_path / "model/Format-Serving/assets/label_map.pbtxt"
    of_data.parent.mkdir()
    write_label_map(of_data, LabelMap.from_names(["cat", "dog"]))
    of_model.parent.mkdir()
    for damaged in (b"item {", b"\xff"):
        of_model.write_bytes(damaged)
        settings = json.dumps({"gates": "c0", changed: "c1"})
        decision = decide(inputs, replace(params, config_hash=settings), tmp_path / "second")
        assert decision.get_int_custom_property("train") == 1
        assert reason in decision.get_string_custom_property("reason")


@pytest.mark.parametrize("is_same", [True, False])
def test_without_a_label_map_of_the_data_the_class_names_are_compared(inputs, params, tmp_path, make_report, is_same):
    record(inputs, params, tmp_path / "record", decide(inputs, params, tmp_path / "first"), is_blessed=True)
    report = make_report()
    report["splits"]["train"]["boxes_by_class"] = {"cat": 1, "dog" if is_same else "cow": 2}
    (tmp_path / "report/report.json").write_text(json.dumps(report))
    decision = decide(inputs, replace(params, config_hash='{"gates": "c1"}'), tmp_path / "second")
    assert decision.get_int_custom_property("train") == int(is_same)


def test_a_record_that_cannot_be_written_fails_the_node(inputs, params, tmp_path):
    decision = decide(inputs, params, tmp_path / "decision")
    (tmp_path / "records").write_text("no folder")
    with pytest.raises(OSError, match="records"):
        record(inputs, params, tmp_path / "record", decision, is_blessed=True)


@pytest.mark.reliability("full disk", "metadata")
def test_a_record_on_a_full_disk_leaves_no_file_and_the_data_cause_another_training(inputs, params, tmp_path, disk):
    params = replace(params, retrain=replace(params.retrain, records=str(disk.folder)))
    decision = decide(inputs, params, tmp_path / "decision")
    disk.fill()
    with pytest.raises(OSError, match="No space left on device"):
        record(inputs, params, tmp_path / "record", decision, is_blessed=True)
    assert not [path for path in disk.folder.rglob("*.json*") if path.is_file()]
    assert decide(inputs, params, tmp_path / "second").get_int_custom_property("train") == 1


@pytest.mark.reliability("clock jump", "metadata")
def test_a_record_after_the_clock_was_moved_back_is_the_newest(inputs, params, tmp_path, monkeypatch):
    def record_on(day, config_hash):
        moment = datetime(2026, 3, day, tzinfo=timezone.utc)
        monkeypatch.setattr(training_record, "current_time", lambda: moment)
        changed = replace(params, config_hash=f'{{"tuner": "{config_hash}"}}')
        record(inputs, changed, tmp_path / "record", decide(inputs, changed, tmp_path / "decision"), is_blessed=True)
        return read_last_record(str(tmp_path / "records"), "cells")

    assert record_on(9, "c0").time == "2026-03-09T00:00:00+00:00"
    found = record_on(2, "c1")
    assert (found.config_hash, found.time) == ('{"tuner": "c1"}', "2026-03-09T00:00:00.000001+00:00")
    assert record_on(10, "c2").time == "2026-03-10T00:00:00+00:00"
