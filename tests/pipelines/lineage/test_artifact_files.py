from detloom.components.artifact_types import DatasetReport
from detloom.components.dataset_validator import report as dataset_report
from detloom.components.evaluator import report as evaluation_report
from detloom.pipelines.lineage import artifact_files
from detloom.trainer_module import train_result
from detloom.trainer_module.checkpoints import own_checkpoint


def test_files_have_the_names_that_their_writers_give_them():
    assert artifact_files.SUMMARY_FILE == train_result.SUMMARY_FILE
    assert f"{own_checkpoint.BEST_DIR}/{own_checkpoint.BEST_FILE}" == artifact_files.BEST_FILE
    assert artifact_files.METRICS_FILE == evaluation_report.METRICS_FILE
    assert artifact_files.DATASET_REPORT_FILE == dataset_report.REPORT_JSON
    assert artifact_files.DATASET_REPORT_TYPE == DatasetReport.TYPE_NAME


def test_numbers_are_read_where_there_are_some():
    value = {"best": {"AP": 0.5, "step": 10**400, "flag": True}}
    assert artifact_files.number_in(value, "best", "AP") == 0.5
    assert artifact_files.number_in(value, "best", "step") is None
    assert artifact_files.number_in(value, "best", "flag") is None
    assert artifact_files.number_in(value, "best", "AP", "deeper") is None


def test_a_bucket_is_not_looked_at():
    assert artifact_files.is_there("gs://bucket/model/6")
    assert artifact_files.read_json("gs://bucket/model/6", "metrics.json") == {}
    assert not artifact_files.is_there("/no/such\0folder")


def test_anomalies_are_named(tmp_path):
    from tensorflow_metadata.proto.v0 import anomalies_pb2

    found = anomalies_pb2.Anomalies()
    found.anomaly_info["image/width"].short_description = "Out of range"
    for split, content in (("train", found), ("eval", anomalies_pb2.Anomalies())):
        (tmp_path / f"Split-{split}").mkdir()
        (tmp_path / f"Split-{split}" / "SchemaDiff.pb").write_bytes(content.SerializeToString())
    assert artifact_files.describe_anomalies(str(tmp_path)) == "anomalies in image/width"
    (tmp_path / "Split-train" / "SchemaDiff.pb").write_bytes(b"")
    assert artifact_files.describe_anomalies(str(tmp_path)) == "no anomalies"
    assert artifact_files.describe_anomalies(str(tmp_path / "Split-eval")) is None
