"""Beam collection, report, constructor and executor of DatasetValidator."""

import json
import pickle
import re
from pathlib import Path

import pytest
from apache_beam.testing import test_pipeline
from tfx.types import Channel, artifact_utils, standard_artifacts

from detloom.components.artifact_types import DatasetReport, MetricsForUi, PageForUi
from detloom.components.dataset_validator.component import DatasetValidator, DatasetValidatorExecutor
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.validate import validate
from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.properties import arguments_of
from detloom.schemas.contracts.label_map import LabelMap, format_label_map, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data_checks import CHECK_NAMES, DataChecks, NearDuplicateCheck, ShareCheck
from detloom.schemas.run_file.evaluator import ImageSlices

LABEL_MAP = LabelMap.from_names(["<cat>", "dog"])
BOX = (0.1, 0.1, 0.6, 0.6)
INVERTED = (0.5, 0, 0.4, 1)


@pytest.fixture
def artifacts(tmp_path, make_example, write_records):
    """Examples of span 7 with two valid records per split, and the output artifacts."""
    examples, report, page, metrics = standard_artifacts.Examples(), DatasetReport(), PageForUi(), MetricsForUi()
    examples.uri = str(tmp_path / "gen/examples/1")
    outputs = {"report": report, "page": page, "metrics": metrics}
    for name, artifact in outputs.items():
        artifact.uri = str(tmp_path / f"validator/{name}/2")
    examples.split_names = artifact_utils.encode_split_names(["train", "eval"])
    examples.set_int_custom_property("span", 7)
    for index, split in enumerate(("train", "eval")):
        # Images of different sizes have different bytes.
        records = [
            make_example([BOX], [1], (64 + index, 64), f"{split}_1"),
            make_example([BOX], [2], (64, 70 + index), f"{split}_2"),
        ]
        write_records(Path(artifact_utils.get_split_uri([examples], split)) / "data_tfrecord-00000-of-00001", records)
    write_label_map(Path(examples.uri) / "label_map.pbtxt", LABEL_MAP)
    return {"examples": [examples]}, {name: [artifact] for name, artifact in outputs.items()}


def run(artifacts, params=None, **inputs):
    """Execute once and return the folder of the report."""
    params = params or DatasetValidatorParams()
    DatasetValidatorExecutor().Do({**artifacts[0], **inputs}, artifacts[1], params.to_properties())
    return Path(artifacts[1]["report"][0].uri)


def train_file(artifacts):
    return Path(artifact_utils.get_split_uri(artifacts[0]["examples"], "train")) / "data_tfrecord-00000-of-00001"


def test_the_constructor_declares_inputs_and_outputs():
    checks = DataChecks(boxes=ShareCheck(severity="warn", threshold=0.0))
    component = DatasetValidator(Channel(type=standard_artifacts.Examples), checks=checks)
    assert {name: channel.type for name, channel in component.outputs.items()} == {
        "report": DatasetReport,
        "page": PageForUi,
        "metrics": MetricsForUi,
    }
    assert "previous_report" not in component.inputs
    with_report = DatasetValidator(Channel(type=standard_artifacts.Examples), Channel(type=DatasetReport))
    assert "previous_report" in with_report.inputs
    params = DatasetValidatorParams.from_properties(component.exec_properties)
    assert arguments_of(params) == arguments_of(DatasetValidatorParams(checks=checks))
    assert pickle.loads(pickle.dumps(DatasetValidatorExecutor)) is DatasetValidatorExecutor


def test_examples_without_a_label_map_are_checked_with_that_of_the_parameter(artifacts, tmp_path):
    (Path(artifacts[0]["examples"][0].uri) / "label_map.pbtxt").rename(tmp_path / "map.pbtxt")
    with pytest.raises(InputError, match=r"label_map\.pbtxt"):
        run(artifacts)
    channel = Channel(type=standard_artifacts.Examples)
    component = DatasetValidator(channel, label_map=tmp_path / "map.pbtxt")
    folder = run(artifacts, DatasetValidatorParams.from_properties(component.exec_properties))
    assert json.loads((folder / "report.json").read_text())["splits"]["train"]["boxes_by_class"] == {
        "<cat>": 1,
        "dog": 1,
    }


def test_a_label_map_that_differs_from_that_of_the_examples_is_refused(artifacts):
    run(artifacts, DatasetValidatorParams(label_map=format_label_map(LABEL_MAP)))
    other = format_label_map(LabelMap.from_names(["<cat>", "wolf"]))
    with pytest.raises(InputError, match=r"label_map\.pbtxt: .*id 2"):
        run(artifacts, DatasetValidatorParams(label_map=other))


def test_data_that_the_evaluation_cannot_use_are_refused_before_training(artifacts):
    unknown = EvaluationRequirements(class_metrics=("AP50/dgo",))
    with pytest.raises(InputError, match=r"gates: got the metric 'AP50/dgo'.*'dog'"):
        run(artifacts, DatasetValidatorParams(evaluation=unknown))
    slices = (ImageSlices(feature="image/camera"),)
    run(artifacts, DatasetValidatorParams(evaluation=EvaluationRequirements(image_slices=slices)))  # no such split
    with pytest.raises(InputError, match="image/camera"):
        run(artifacts, DatasetValidatorParams(evaluation=EvaluationRequirements(image_slices=slices, split="eval")))


def test_the_executor_path_is_stable():
    # Compiled pipelines store it.
    path = "detloom.components.dataset_validator.component.DatasetValidatorExecutor"
    assert f"{DatasetValidatorExecutor.__module__}.{DatasetValidatorExecutor.__name__}" == path
    assert DatasetValidator.EXECUTOR_SPEC.class_path == path


def test_do_writes_the_report_with_its_span_the_page_and_the_metrics(artifacts):
    # The synthetic images are near-duplicates.
    checks = DataChecks(near_duplicates=NearDuplicateCheck(severity="off", threshold=0.01))
    folder = run(artifacts, DatasetValidatorParams(checks=checks))
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json"]
    report = json.loads((folder / "report.json").read_text())
    assert (report["verdict"], report["span"]) == ("passed", 7)
    assert artifacts[1]["report"][0].get_int_custom_property("span") == 7
    assert [check["check"] for check in report["checks"]] == list(CHECK_NAMES)
    assert report["splits"]["train"]["boxes_by_class"] == {"<cat>": 1, "dog": 1}
    page = (folder / "report.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://|<script[^>]|<link|@import|src=[\"'](?!data:)", page)
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page
    copy, metrics = Path(artifacts[1]["page"][0].uri), artifacts[1]["metrics"][0]
    assert {path.name: path.read_text() for path in copy.iterdir()} == {"report.html": page}
    assert metrics.get_float_custom_property("train_examples") == 2.0
    assert metrics.get_float_custom_property("check_boxes") == 0.0
    assert metrics.get_float_custom_property("checks_failed") == 0.0


def test_artifacts_at_addresses_give_the_same_report(artifacts, file_address, with_beam, tmp_path):
    local = json.loads((run(artifacts) / "report.json").read_text())
    (examples,) = artifacts[0]["examples"]
    examples.uri = file_address(examples.uri)
    for name, (artifact,) in artifacts[1].items():
        artifact.uri = file_address(tmp_path / "there" / name)
    run(artifacts)
    assert json.loads((tmp_path / "there/report/report.json").read_text()) == local
    assert [path.name for path in (tmp_path / "there/page").iterdir()] == ["report.html"]
    assert sorted(path.name for path in (tmp_path / "there/report").iterdir()) == ["report.html", "report.json"]


def drift_of(artifacts, params=None, **inputs):
    return json.loads((run(artifacts, params, **inputs) / "report.json").read_text())["drift"]


def test_drift_is_measured_against_the_earlier_report(artifacts, tmp_path):
    earlier = DatasetReport()
    earlier.uri = str(tmp_path / "earlier")
    run(artifacts).rename(earlier.uri)
    drift = drift_of(artifacts, previous_report=[earlier])
    assert (drift["previous_span"], drift["splits"]["train"]["class_distance"]) == (7, 0.0)


def test_without_a_resolver_the_earlier_report_comes_from_the_history(artifacts, tmp_path):
    params = DatasetValidatorParams(history=str(tmp_path / "history"))
    for _ in range(2):  # the report of the same span does not count
        assert drift_of(artifacts, params)["reason"] == "no earlier span"
    artifacts[0]["examples"][0].set_int_custom_property("span", 8)
    assert drift_of(artifacts, params)["previous_span"] == 7
    assert len(list((tmp_path / "history").iterdir())) == 2


def test_failed_data_leave_no_report_for_the_next_span(artifacts, tmp_path, write_records):
    write_records(train_file(artifacts), [])
    with pytest.raises(InputError, match=r"/history/failed-00000007\.html$"):
        run(artifacts, DatasetValidatorParams(history=str(tmp_path / "history")))
    assert [path.name for path in (tmp_path / "history").iterdir()] == ["failed-00000007.html"]
    assert "</html>" in (tmp_path / "history" / "failed-00000007.html").read_text()


def test_a_history_that_cannot_be_written_does_not_hide_the_failure(artifacts, tmp_path, write_records, caplog):
    write_records(train_file(artifacts), [])
    (tmp_path / "history").write_text("a file")
    examples = artifacts[0]["examples"][0]
    del examples.mlmd_artifact.custom_properties["span"]  # with a span, earlier reports are read first
    with pytest.raises(InputError, match=r"/failed/.*/report\.html$"):
        run(artifacts, DatasetValidatorParams(history=str(tmp_path / "history")))
    assert list(tmp_path.glob("**/failed/*/*/report.html"))
    assert f"{tmp_path}/history: " in caplog.text


def test_a_failed_check_names_numbers_records_and_the_kept_report(artifacts, tmp_path, make_example, write_records):
    write_records(train_file(artifacts), [make_example([BOX, INVERTED], [1, 2], name="img_9")])
    kept = tmp_path / "validator/failed/report/2/report.html"
    with pytest.raises(InputError, match=rf"check boxes: 1 of 4 .*inverted 1.*25 %.*train/img_9.*{kept}"):
        run(artifacts)
    assert "img_9" in kept.read_text()
    assert json.loads(kept.with_suffix(".json").read_text())["verdict"] == "failed"


def test_a_warning_does_not_fail_the_node(artifacts, make_example, write_records):
    write_records(train_file(artifacts), [make_example([BOX], [1])])
    report = json.loads((run(artifacts) / "report.json").read_text())
    assert report["verdict"] == "warned"


@pytest.mark.reliability("torn file", "validate")
@pytest.mark.parametrize("has_shard", [False, True])
def test_a_report_is_written_if_nothing_can_be_read(tmp_path, has_shard):
    (tmp_path / "shard").write_bytes(b"this is no TFRecord file")
    shards = {"train": [str(tmp_path / "shard")] if has_shard else [], "eval": []}
    report = validate(shards, LABEL_MAP, DatasetValidatorParams(), tmp_path / "out", test_pipeline.TestPipeline)
    assert report["verdict"] == "failed"
    assert "examples_per_split" in report["sentence"]
    assert report["checks"][0]["record_keys"] == (["train/(damaged file train/shard)"] if has_shard else [])
    assert (tmp_path / "out/report.html").stat().st_size > 1000
