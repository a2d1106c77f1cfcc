from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.artifact_types import DatasetReport
from detloom.components.evaluator.report import output_files as evaluation_report
from detloom.pipelines.lineage import artifact_files, graph_nodes
from detloom.trainer_module.run_state import train_result


def test_file_names_match_those_of_the_writers():
    assert artifact_files.SUMMARY_FILE == train_result.SUMMARY_FILE
    assert artifact_files.METRICS_FILE == evaluation_report.METRICS_FILE
    assert artifact_files.DATASET_REPORT_TYPE == DatasetReport.TYPE_NAME


def test_number_in_ignores_other_values():
    value = {"best": {"AP": 0.5, "step": 10**400, "flag": True}}
    assert artifact_files.number_in(value, "best", "AP") == 0.5
    assert artifact_files.number_in(value, "best", "step") is None
    assert artifact_files.number_in(value, "best", "flag") is None
    assert artifact_files.number_in(value, "best", "AP", "deeper") is None


def test_remote_folders_are_not_read():
    assert artifact_files.may_exist("gs://bucket/model/6")
    assert artifact_files.read_json("gs://bucket/model/6", "metrics.json") == {}
    assert not artifact_files.may_exist("/no/such\0folder")


def test_times_are_formatted_and_other_text_is_shown_as_it_is():
    execution = pb.Execution(create_time_since_epoch=10_000, last_update_time_since_epoch=71_000)
    assert graph_nodes._execution_duration(execution) == "1 min 1 s"  # from the first to the last update
    assert graph_nodes._format_time("yesterday") == "yesterday"
