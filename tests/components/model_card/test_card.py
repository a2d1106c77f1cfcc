import dataclasses
import json
import os
import shutil

import evaluations
import pytest

from detloom.components.evaluator.gates import Latency, ModelCosts, OtherForm
from detloom.components.evaluator.report.output_files import write_report
from detloom.components.model_card.card import CardInputs, ModelCardParams, build_card, write_card
from detloom.components.model_card.read_files import reading_json
from detloom.components.model_card.render import format_markdown
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import to_dict
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import Gates, MetricFloor
from detloom.schemas.run_file.model_card import CARD_FILES, ModelCardSettings

HOSTILE = "<b>dog</b>"  # the second class of the folders


@pytest.fixture
def own_folders(folders, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(folders, tmp_path / "run")


@pytest.fixture
def card_of(make_inputs, tmp_path):
    """Return a function that builds the card of another evaluation."""

    def build(**changes):
        (tmp_path / "evaluation").mkdir()
        write_report(str(tmp_path / "evaluation"), evaluations.make_evaluation(**changes), [])
        return build_card(make_inputs(evaluation_dir=str(tmp_path / "evaluation")))

    return build


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_the_card_names_model_versions_and_settings(make_inputs, config):
    card = build_card(make_inputs(trainer_fingerprint="0123456789abcdef"))
    assert (card["format"], card["name"]) == ("detloom_model_card/1", "pets")
    assert card["versions"] == {"detloom": "9.9", "tensorflow": "2.16.2"}
    assert card["trainer_fingerprint"] == "0123456789abcdef"
    assert card["config"] == to_dict(config)
    settings = card["configuration"]
    assert (settings["architecture"], settings["backbone"], settings["neck"]) == ("Ssd", "mobilenet_v2", "Fpn")
    assert settings["input"] == "FixedShapeResizer, 320 x 320 px (height x width)"
    assert settings["augmentations"] == [type(each).__name__ for each in config.train.augmentations]


def test_the_label_map_fingerprint_does_not_depend_on_formatting(make_inputs, own_folders):
    before = build_card(make_inputs())["label_map"]
    path = own_folders / "model/Format-Serving/assets/label_map.pbtxt"
    path.write_text("# comment\n" + path.read_text().replace("  id", "\tid"))
    assert build_card(make_inputs(own_folders))["label_map"] == before
    # printf "item {\n  id: 1\n  name: 'cat'\n}\nitem {\n  id: 2\n  name: '<b>dog</b>'\n}\n" | sha256sum
    assert before == {
        "num_classes": 2,
        "sha256": "b9086fb5b85b87985969af16863a3f2476cbb416227496dd77e26d3e2f31cce6",
    }


def test_classes_have_their_ids_and_boxes_by_split(card):
    assert card["classes"] == [
        {"id": 1, "name": "cat", "num_boxes_by_split": {"train": 30, "eval": 4, "test": 1}},
        {"id": 2, "name": HOSTILE, "num_boxes_by_split": {"train": 0, "eval": 3, "test": 2}},
    ]


def test_the_data_section_has_counts_rejects_checks_and_fingerprints(make_inputs):
    source = {"artifact_id": 3, "span": 4, "version": 1, "files": "num_files:9"}
    data = build_card(make_inputs(sources=[source]))["data"]
    assert [(row["name"], row["num_images"], row["num_boxes"], row["num_files"]) for row in data["splits"]] == [
        ("train", 20, 30, 1),
        ("eval", 5, 7, 1),
        ("test", 3, 3, 1),
    ]
    assert len({row["sha256"] for row in data["splits"]}) == 3
    assert data["sources"] == [source]
    assert data["span"] == 4
    assert data["is_what_was_trained_on"] is True
    assert data["health"]["verdict"] == "warned"
    assert data["health"]["findings"] == [
        {"title": "Tiny boxes", "status": "warned", "sentence": "7 of 9 boxes are tiny"}
    ]
    ingestion = data["ingestion"]
    assert (ingestion["num_records_refused"], ingestion["num_boxes_refused"]) == (2, 10)  # 4 boxes, and 6 in records
    assert ingestion["share_of_boxes_refused"] == 0.2  # 10 of 50
    assert ingestion["subfolders"] == ["span-3", "span-4"]


def test_examples_that_differ_from_the_training_files_are_reported(make_inputs, own_folders):
    (own_folders / "examples/Split-train/data_tfrecord-00000-of-00001").write_bytes(b"other")
    card = build_card(make_inputs(own_folders))
    assert card["data"]["is_what_was_trained_on"] is False
    assert any("training run's files" in sentence for sentence in card["limits"])


def test_training_results_are_read_from_the_run_folder(card):
    training = card["training"]
    assert (training["best_step"], training["best_AP"], training["num_incidents"]) == (80, 0.25, 1)
    assert training["seconds"] == 65.0  # 50 in steps, 10 in the first call, 5 in evaluations
    assert training["images_per_second"] == 16.0
    assert (training["num_parameters"], training["num_trained_parameters"]) == (1000, 600)
    assert training["is_resumed"] is False


def test_masks_and_keypoints_are_shown_beside_the_boxes(make_inputs, own_folders):
    def add(content):
        points = dict.fromkeys(("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl"), 0.5)
        content["masks"] = {"candidate": {**content["candidate"], "AP": 0.375}, "baseline": None}
        content["keypoints"] = {"candidate": {**points, "APl": -1.0}, "baseline": {**points, "AP": 0.25}}

    edit(own_folders / "evaluation/metrics.json", add)
    card = build_card(make_inputs(own_folders))
    evaluation = card["evaluation"]
    assert evaluation["masks"]["AP"] == {
        "value": 0.375,
        "low": None,
        "high": None,
        "baseline": None,
        "change": None,
        "meaning": "mean over IoU 0.50 to 0.95",
    }
    rows = evaluation["keypoints"]
    assert (rows["AP"]["value"], rows["AP"]["change"], rows["APl"]["value"]) == (0.5, 0.25, None)
    text = format_markdown(card)
    assert "### Masks" in text
    assert "### Keypoints" in text


def test_metrics_have_intervals_baseline_and_operating_points(card):
    evaluation = card["evaluation"]
    assert list(evaluation["metrics"])[:3] == ["AP", "AP50", "AP75"]
    metric = evaluation["metrics"]["AP"]
    assert metric["value"] == pytest.approx(1.0)  # it finds all three objects, and one more with a lower score
    assert metric["low"] is not None
    assert metric["high"] is not None
    assert metric["change"] == pytest.approx(metric["value"] - metric["baseline"])
    assert evaluation["metrics"]["APs"] == {
        "value": None,
        "low": None,
        "high": None,
        "meaning": "small, below 32 × 32 px: no ground truth of this size",
        "baseline": None,
        "change": None,
    }
    assert evaluation["best_f1"] == {"min_score": 0.7, "precision": 1.0, "recall": 1.0}
    cat, dog = evaluation["per_class"]
    assert (cat["name"], cat["num_boxes"], dog["name"], dog["num_boxes"]) == ("cat", 1, HOSTILE, 2)
    assert cat["best_f1"] == {"min_score": 0.9, "precision": 1.0, "recall": 1.0}
    assert evaluation["decision"]["blessed"] is True
    assert evaluation["decision"]["sentence"].startswith("Blessed: ")
    assert evaluation["decision"]["gates"][0]["verdict"] == "passed"
    assert evaluation["latency"] == {"median_ms": 41.26, "p95_ms": 55.0, "num_images": 50}
    assert evaluation["model_bytes"] == 3 * 2**20


def test_small_slices_are_marked(card):
    evaluation = card["evaluation"]
    assert [(row["name"], row["num_images"], row["is_small"]) for row in evaluation["slices"]] == [
        ("image/camera=north", 2, False),
        ("image/camera=south", 1, True),
    ]
    assert [row["name"] for row in evaluation["object_slices"]] == ["side_px=below 150", "side_px=150 or more"]
    assert [(row["name"], row["AP"]) for row in evaluation["sizes"]] == [("wee", None)]


def test_limits_follow_from_the_numbers(make_inputs):
    limits = build_card(make_inputs(evaluator=EvaluatorSettings(min_slice_count=2)))["limits"]
    for parts in (
        ("3 images", "split 'test'"),
        ("fewer than 2 objects", "cat (1)"),
        ("no objects of the sizes", "wee"),
        ("Tiny boxes", "7 of 9 boxes"),
        ("training boxes", HOSTILE),
        ("Ingestion", "6.7 %", "20 %"),
        ("2 boxes", "in training"),
        ("not finite once",),
        ("image/camera=south",),
        ("COCO API's -1",),
        ("not a probability", "(best F1) have a precision of", "expected calibration error"),
    ):
        assert sum(all(part in sentence for part in parts) for sentence in limits) == 1, parts


def test_the_first_limit_of_an_unblessed_model_says_so(card_of):
    gates = Gates(floors=(MetricFloor(metric="APs", min=0.5),))  # there is no small object
    card = card_of(gates=gates, has_baseline=False)
    assert "not blessed" in card["limits"][0]
    assert card["evaluation"]["comparison"] is None


def test_tflite_variants_have_size_and_metrics(make_inputs, own_folders):
    (own_folders / "model/Format-TFLite").mkdir()
    for name, size in (("float16", 300), ("int8", 100)):
        (own_folders / f"model/Format-TFLite/{name}.tflite").write_bytes(b"0" * size)
    evaluation = evaluations.make_evaluation()
    int8 = dataclasses.replace(evaluation.candidate.coco, AP=0.75)
    write_report(str(own_folders / "evaluation"), dataclasses.replace(evaluation, variants={"int8": int8}), [])
    card = build_card(make_inputs(own_folders))
    assert card["export"]["tflite"] == [{"name": "float16", "bytes": 300}, {"name": "int8", "bytes": 100}]
    assert {name: row["AP"] for name, row in card["evaluation"]["variants"].items()} == {"int8": 0.75}
    assert card["export"]["onnx_bytes"] is None
    text = format_markdown(card)
    change = 0.75 - card["evaluation"]["metrics"]["AP"]["value"]
    (row,) = [line for line in text.splitlines() if line.startswith("| int8 |")]
    assert "0.750" in row
    assert f"{change:+.3f}" in row


def test_an_onnx_file_is_listed_with_its_size(make_inputs, own_folders):
    (own_folders / "model/Format-Serving/model.onnx").write_bytes(b"0" * 200)
    card = build_card(make_inputs(own_folders))
    assert card["export"]["onnx_bytes"] == 200
    assert "An ONNX file of 0.0 MiB was exported; it was not evaluated." in format_markdown(card)


def test_an_evaluated_onnx_file_has_metrics_and_latency(make_inputs, own_folders):
    (own_folders / "model/Format-Serving/model.onnx").write_bytes(b"0" * 200)
    evaluation = evaluations.make_evaluation()
    latency = Latency(median_ms=12.34, p95_ms=20.0, num_images=50)
    evaluation = dataclasses.replace(
        evaluation,
        variants={"onnx": dataclasses.replace(evaluation.candidate.coco, AP=0.75)},
        other_form=OtherForm(name="onnx", aps={"AP": 0.75}, latency=latency),
    )
    write_report(str(own_folders / "evaluation"), evaluation, [])
    text = format_markdown(build_card(make_inputs(own_folders)))
    assert "**Form of the metrics above**: SavedModel" in text
    (row,) = [line for line in text.splitlines() if line.startswith("- **Other form**: model.onnx, AP 0.750, ")]
    assert row.endswith("median latency 12.3 ms")


def test_the_export_is_described_by_its_serving_contract(make_inputs, own_folders):
    os.utime(own_folders / "model/Format-Serving/saved_model.pb", (1772366400, 1772366400))
    card = build_card(make_inputs(own_folders))
    assert card["created"] == "2026-03-01T12:00:00+00:00"
    contract = json.loads((own_folders / "model/Format-Serving/assets/contract.json").read_text())
    export = card["export"]
    assert (export["box_units"], export["outputs"]) == ("pixels", contract["outputs"])
    assert export["signatures"]["serving_encoded"] == contract["signatures"]["serving_encoded"]["input"]


def test_a_folder_without_a_model_is_refused(make_inputs, own_folders):
    (own_folders / "model/Format-Serving/saved_model.pb").unlink()
    with pytest.raises(InputError, match=r"saved_model\.pb: no such file"):
        build_card(make_inputs(own_folders))


def test_the_card_states_what_was_not_given(folders, tmp_path):
    card = build_card(CardInputs(params=ModelCardParams(name="bare"), model_dir=str(folders / "model/Format-Serving")))
    assert (card["evaluation"], card["training"], card["data"]["health"]) == (None, None, None)
    assert card["data"]["is_what_was_trained_on"] is None
    assert card["classes"][0]["num_boxes_by_split"] is None
    assert "no evaluation was given" in card["limits"][0]
    write_card(card, str(tmp_path / "card"))
    text = (tmp_path / "card/model_card.md").read_text()
    for sentence in (
        "No evaluation was given.",
        "The data are unknown",
        "The results of training are unknown",
        "**Purpose**: not stated",
    ):
        assert sentence in text


def test_the_same_inputs_give_the_same_bytes(make_inputs, tmp_path):
    inputs = make_inputs(stated=ModelCardSettings(purpose="Finds pets."))
    for name in ("a", "b"):
        write_card(build_card(inputs), str(tmp_path / name))
    write_card(build_card(inputs), str(tmp_path / "b"))  # again, over what is there
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == sorted(CARD_FILES)
    for name in CARD_FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_json_file_is_the_card_with_sorted_keys(card, tmp_path):
    write_card(card, str(tmp_path))
    text = (tmp_path / "model_card.json").read_text()
    assert json.loads(text) == card
    assert text == json.dumps(card, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    "file",
    [
        "model/Format-Serving/assets/contract.json",
        "model/Format-Serving/assets/label_map.pbtxt",
        "model/Format-Serving/assets/config.json",
        "evaluation/metrics.json",
        "evaluation/decision.json",
        "evaluation/analysis.json",
        "model_run/training_summary.json",
        "model_run/config.json",
        "model_run/data.json",
        "report/report.json",
        "rejects/report.json",
    ],
)
@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_missing_or_damaged_file_is_named(make_inputs, own_folders, file, content):
    path = own_folders / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=path.name):
        build_card(make_inputs(own_folders))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("evaluation/metrics.json", lambda content: content["candidate"]["per_class"].pop(), "its classes differ"),
        ("model_run/config.json", lambda content: content["train"].update(seed=77), r"settings differ .*\(train\)"),
        ("evaluation/metrics.json", lambda content: content["candidate"].pop("AP50"), ""),
        ("evaluation/metrics.json", lambda content: content.update(variants=[]), ""),
        ("evaluation/decision.json", lambda content: content.pop("gates"), ""),
        ("evaluation/analysis.json", lambda content: content.update(comparison=None), ""),
        ("model_run/training_summary.json", lambda content: content.pop("best_step"), ""),
        ("report/report.json", lambda content: content["splits"]["train"].pop("num_boxes"), ""),
        ("rejects/report.json", lambda content: content.update(num_in="many"), ""),
    ],
)
def test_a_missing_key_another_type_or_another_model_is_an_error_with_the_file(
    make_inputs, own_folders, file, change, message
):
    edit(own_folders / file, change)
    with pytest.raises(InputError, match=f"{file.removesuffix('/config.json')}.*{message}"):
        build_card(make_inputs(own_folders))


@pytest.mark.parametrize("content", [b"", b'{"a": NaN}', b"[" * 100_000])
def test_a_file_that_is_no_json_is_named(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with (
        pytest.raises(InputError, match=r"a\.json: not the facts"),
        reading_json(str(tmp_path / "a.json"), "the facts"),
    ):
        pytest.fail("it was read")


def test_data_of_another_model_are_refused(make_inputs, own_folders):
    path = own_folders / "examples/label_map.pbtxt"
    path.write_text(path.read_text().replace("cat", "owl"))
    with pytest.raises(InputError, match=r"label_map\.pbtxt: its classes differ"):
        build_card(make_inputs(own_folders))


def test_missing_latency_is_shown_as_not_measured(card_of):
    card = card_of(candidate_costs=ModelCosts())
    assert (card["evaluation"]["latency"], card["evaluation"]["model_bytes"]) == (None, None)
    assert "**Latency of one image**: not measured" in format_markdown(card)
