import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.artifact_types import DatasetReport
from detloom.components.evaluator.report import output_files as evaluation_report
from detloom.pipelines.lineage import values
from detloom.trainer_module.run_state import train_result
from detloom.trainer_module.weights import own_checkpoint


def test_file_names_match_those_of_the_writers():
    assert values.SUMMARY_FILE == train_result.SUMMARY_FILE
    assert f"{own_checkpoint.BEST_DIR}/{own_checkpoint.BEST_FILE}" == values.BEST_FILE
    assert values.METRICS_FILE == evaluation_report.METRICS_FILE
    assert values.DATASET_REPORT_TYPE == DatasetReport.TYPE_NAME


def test_number_in_ignores_other_values():
    value = {"best": {"AP": 0.5, "step": 10**400, "flag": True}}
    assert values.number_in(value, "best", "AP") == 0.5
    assert values.number_in(value, "best", "step") is None
    assert values.number_in(value, "best", "flag") is None
    assert values.number_in(value, "best", "AP", "deeper") is None


def test_remote_folders_are_not_read():
    assert values.may_exist("gs://bucket/model/6")
    assert values.read_json("gs://bucket/model/6", "metrics.json") == {}
    assert not values.may_exist("/no/such\0folder")


def test_duration_of_an_execution_is_from_its_first_to_its_last_update():
    execution = pb.Execution(create_time_since_epoch=10_000, last_update_time_since_epoch=71_000)
    assert values.execution_duration(execution) == "1 min 1 s"


@pytest.mark.parametrize(("milliseconds", "text"), [(0, ""), (1_000, "1970-01-01 00:00 UTC"), (2**62, "")])
def test_a_creation_time_out_of_range_is_not_shown(milliseconds, text):
    assert values.format_time_of(pb.Artifact(create_time_since_epoch=milliseconds)) == text


def test_text_that_is_no_time_is_shown_as_it_is():
    assert values.format_time("yesterday") == "yesterday"


def test_anomalies_are_summarized(tmp_path):
    from tensorflow_metadata.proto.v0 import anomalies_pb2

    found = anomalies_pb2.Anomalies()
    found.anomaly_info["image/width"].short_description = "Out of range"
    for split, content in (("train", found), ("eval", anomalies_pb2.Anomalies())):
        (tmp_path / f"Split-{split}").mkdir()
        (tmp_path / f"Split-{split}" / "SchemaDiff.pb").write_bytes(content.SerializeToString())
    assert values.summarize_anomalies(str(tmp_path)) == "anomalies in image/width"
    (tmp_path / "Split-train" / "SchemaDiff.pb").write_bytes(b"")
    assert values.summarize_anomalies(str(tmp_path)) == "no anomalies"
    assert values.summarize_anomalies(str(tmp_path / "Split-eval")) is None
