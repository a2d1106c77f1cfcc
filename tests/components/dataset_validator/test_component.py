"""Beam collection, report, constructor and executor of DatasetValidator."""

import json
import pickle
import re
from pathlib import Path

import pytest
import tensorflow as tf
from apache_beam.testing import test_pipeline
from tfx.types import Channel, artifact_utils, standard_artifacts

from detloom.components.artifact_types import DatasetReport
from detloom.components.dataset_validator.collect_statistics import collect_statistics
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.executor import Executor
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report import render_html
from detloom.schemas import example_keys as keys
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap, write_label_map

LABEL_MAP = LabelMap.from_names(["<cat>", "dog"])
BOX = (0.1, 0.1, 0.6, 0.6)


def make_record(key="img_1", boxes=(BOX,), class_ids=(1,), image_hw=(100, 100)):
    example = tf.train.Example()
    feature = example.features.feature
    feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(key.encode())
    feature[keys.IMAGE_HEIGHT].int64_list.value.append(image_hw[0])
    feature[keys.IMAGE_WIDTH].int64_list.value.append(image_hw[1])
    for column, name in enumerate(keys.BOX_KEYS_YXYX):
        feature[name].float_list.value.extend(box[column] for box in boxes)
    feature[keys.CLASS_ID].int64_list.value.extend(class_ids)
    return example.SerializeToString()


def write(path: Path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def collect(tmp_path, **splits):
    for split, shards in splits.items():
        (tmp_path / split).mkdir(exist_ok=True)
        for index, records in enumerate(shards):
            write(tmp_path / f"{split}/data-{index}", records)
    patterns = {split: f"{tmp_path}/{split}/*" for split in splits}
    return collect_statistics(patterns, LABEL_MAP, tmp_path, test_pipeline.TestPipeline)


@pytest.fixture
def artifacts(tmp_path):
    """Examples with one sound record a split, and where the report goes."""
    examples, report = standard_artifacts.Examples(), DatasetReport()
    examples.uri, report.uri = str(tmp_path / "gen/examples/1"), str(tmp_path / "validator/report/2")
    examples.split_names = artifact_utils.encode_split_names(["train", "eval"])
    for split in ("train", "eval"):
        path = Path(artifact_utils.get_split_uri([examples], split)) / "data_tfrecord-00000-of-00001"
        write(path, [make_record(), make_record("img_2", class_ids=(2,))])
    write_label_map(Path(examples.uri) / "label_map.pbtxt", LABEL_MAP)
    return {"examples": [examples]}, {"report": [report]}


def test_shards_of_all_splits_are_counted_in_one_pass(tmp_path):
    statistics = collect(
        tmp_path, train=[[make_record()], [make_record(), make_record(boxes=(), class_ids=())]], eval=[]
    )
    assert (statistics["train"].num_examples, statistics["train"].num_without_boxes) == (3, 1)
    assert statistics["eval"].num_examples == 0
    assert list(statistics) == ["train", "eval"]


def test_records_that_cannot_be_used_are_counted_by_key(tmp_path):
    uneven = make_record("uneven", class_ids=(1, 2))
    sizeless = make_record("sizeless", image_hw=(0, 10))
    statistics = collect(tmp_path, train=[[uneven, sizeless, b"\xff\xff", make_record()]])
    assert statistics["train"].num_examples == 1
    assert statistics["train"].unreadable.count == 3
    assert statistics["train"].unreadable.record_keys == ["(not a tf.Example)", "sizeless", "uneven"]


def test_a_damaged_shard_is_counted_as_unreadable_with_its_name(tmp_path):
    write(tmp_path / "train/data-0", [make_record(), make_record()])
    path = tmp_path / "train/data-0"
    path.write_bytes(path.read_bytes()[:-5])
    statistics = collect(tmp_path, train=[])
    assert statistics["train"].num_examples == 1
    assert statistics["train"].unreadable.record_keys == ["(damaged file train/data-0)"]


def test_the_constructor_takes_examples_and_offers_a_report():
    component = DatasetValidator(Channel(type=standard_artifacts.Examples), DatasetValidatorParams(boxes="warn"))
    assert component.outputs["report"].type is DatasetReport
    assert DatasetValidatorParams.from_properties(component.exec_properties).boxes == "warn"
    assert pickle.loads(pickle.dumps(Executor)) is Executor


def test_do_writes_json_and_a_page_that_fetches_nothing(artifacts):
    inputs, outputs = artifacts
    Executor().Do(inputs, outputs, DatasetValidatorParams().to_properties())
    folder = Path(outputs["report"][0].uri)
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json"]
    report = json.loads((folder / "report.json").read_text())
    assert report["verdict"] == "passed"
    assert report["splits"]["train"]["boxes_by_class"] == {"<cat>": 1, "dog": 1}
    page = (folder / "report.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://|<script|<link|@import|src=", page)


def test_names_from_the_data_are_escaped_on_the_page(artifacts):
    inputs, outputs = artifacts
    Executor().Do(inputs, outputs, DatasetValidatorParams().to_properties())
    page = (Path(outputs["report"][0].uri) / "report.html").read_text()
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page


def test_a_failed_gate_names_check_numbers_records_and_the_kept_report(artifacts, tmp_path):
    inputs, outputs = artifacts
    path = Path(artifact_utils.get_split_uri(inputs["examples"], "train")) / "data_tfrecord-00000-of-00001"
    write(path, [make_record("img_9", boxes=((0.5, 0, 0.4, 1),))])
    kept = tmp_path / "validator/failed/report/2/report.html"
    message = rf"check boxes: 1 of 3 boxes are unsound \(inverted 1\), first in records img_9\. Report: {kept}"
    with pytest.raises(InputError, match=message):
        Executor().Do(inputs, outputs, DatasetValidatorParams().to_properties())
    assert "img_9" in kept.read_text()
    assert json.loads(kept.with_suffix(".json").read_text())["verdict"] == "failed"


def test_a_warning_does_not_fail_the_node(artifacts):
    inputs, outputs = artifacts
    path = Path(artifact_utils.get_split_uri(inputs["examples"], "train")) / "data_tfrecord-00000-of-00001"
    write(path, [make_record()])
    Executor().Do(inputs, outputs, DatasetValidatorParams().to_properties())
    assert json.loads((Path(outputs["report"][0].uri) / "report.json").read_text())["verdict"] == "warned"


def test_a_report_without_splits_still_renders():
    assert "failed" in render_html({"verdict": "failed", "checks": [], "splits": {}})
