import json

import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.local import summary
from detloom.pipelines.local.summary import NodeRun


def cache_row(is_new, *, is_cached, reused=""):
    """Return the row of a run; `is_new`: the Pusher made a version, `is_cached`: the Trainer did not run."""
    decision = pb.Artifact(custom_properties={"reused": pb.Value(string_value=reused)})
    pushed = pb.Artifact(custom_properties={"pushed_is_new": pb.Value(int_value=is_new)})
    nodes = {
        "Gen": NodeRun("Gen", True, False, {}),
        "RetrainDecision": NodeRun("RetrainDecision", True, False, {"decision": decision}),
        "Trainer": NodeRun("Trainer", is_cached, False, {}),
        "BaselineResolver": NodeRun("BaselineResolver", False, False, {}),
        "Pusher": NodeRun("Pusher", False, False, {"pushed_model": pushed}),
    }
    ((_, text),) = summary._cache_rows(nodes)
    return text


def pusher(is_pushed, reason=""):
    properties = {"pushed": pb.Value(int_value=is_pushed), "reason": pb.Value(string_value=reason)}
    pushed = pb.Artifact(custom_properties=properties)
    return {
        "Trainer": NodeRun("Trainer", False, False, {"model": pb.Artifact(uri="runs/model")}),
        "DetectionEvaluator": NodeRun("DetectionEvaluator", False, False, {"evaluation": pb.Artifact(uri="runs/eval")}),
        "ModelCard": NodeRun("ModelCard", False, False, {"model_card": pb.Artifact(uri="runs/card")}),
        "Pusher": NodeRun("Pusher", False, False, {"pushed_model": pushed}),
    }


def test_the_last_line_names_the_next_command():
    assert summary._format_next(pusher(1), "my models") == "Next: detloom serve 'my models'"
    assert summary._format_next(pusher(1), "gs://b/models") == "Next: detloom versions gs://b/models"
    assert summary._format_next(pusher(0, "it was rolled back"), "models") == "Next: detloom versions models"
    assert summary._format_next({}, "models") == "Next: detloom versions models"


def test_a_model_that_is_not_blessed_can_be_pushed_with_a_reason():
    report, push = summary._format_next(pusher(0), "models").splitlines()
    assert report.startswith("Next: open runs/eval/report.html ")
    assert push.endswith(" detloom push runs/model --to models --card runs/card --reason ...")


@pytest.mark.parametrize(("served", "flags"), [("cat", ""), ("dog", "--allow-class-change ")])
def test_the_printed_push_allows_a_change_of_classes_if_there_is_one(served, flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, name in (("runs/model/Format-Serving", "cat"), ("models/1", served)):
        (tmp_path / folder / "assets").mkdir(parents=True)
        (tmp_path / folder / "saved_model.pb").touch()
        (tmp_path / folder / "assets" / "label_map.pbtxt").write_text(f"item {{ id: 1 name: '{name}' }}")
    assert summary._format_next(pusher(0), "models").endswith(f" --card runs/card {flags}--reason ...")


def test_images_and_boxes_are_counted_as_in_the_summary_of_an_ingestion(tmp_path):
    report = {"num_in": 9, "num_written": 8, "num_quarantined": 1, "num_boxes_quarantined": 3, "num_boxes_rejected": 2}
    report["splits"] = {"train": {"num_written": 6}, "eval": {"num_written": 2}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    rows = summary._data_rows(NodeRun("DetectionExampleGen", False, False, {"rejects": pb.Artifact(uri=str(tmp_path))}))
    assert rows == [
        ("ingested", "8 of 9 images (train 6, eval 2)"),
        ("quarantined", f"1 images, 3 boxes: {tmp_path / 'rejects.jsonl'}"),
        ("dropped boxes", "2, of images that were written or are missing"),
    ]


def test_nodes_that_ran_are_shown_and_a_push_that_was_killed_in_the_run_before():
    assert cache_row(1, is_cached=False) == "ran: Trainer, Pusher; cached: Gen, RetrainDecision"
    for reused in ({"is_cached": True}, {"is_cached": False, "reused": '{"model": "runs/model"}'}):
        assert cache_row(1, **reused) == "ran: Pusher; cached: Gen, RetrainDecision, Trainer"
    assert "Pusher" not in cache_row(0, is_cached=True)
