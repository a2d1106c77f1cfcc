import re

import pytest

from detloom.pipelines.compile.check_run import check_run
from detloom.pipelines.container.task_storage import TaskStorage
from detloom.pipelines.dag.beam_options import beam_args_of, check_beam_args
from detloom.pipelines.dag.create_pipeline import create_pipeline
from detloom.schemas.errors import InputError

DATAFLOW = ["--runner=DataflowRunner", "--project=my-project", "--temp_location=gs://bucket/tmp"]
FLINK = ["--runner=FlinkRunner", "--flink_master=flink-jobmanager:8081", "--flink_submit_uber_jar"]
VERTEX = {
    "project": "my-project",
    "region": "europe-west4",
    "image": "r/detloom:1",
    "pipeline_root": "gs://bucket/root",
}
IN_BUCKET = {"path": "gs://bucket/cells", "split_by_ratio": {}}


def on(node, args):
    return [{"node": node, "beam_args": args}]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--direct_num_workers=abc", "argument --direct_num_workers: invalid int value: 'abc'"),
        ("--runner=Foo", "Unexpected pipeline runner: Foo"),
        ("--runner=no_module.Foo", "No module named 'no_module'"),
    ],
)
def test_options_that_beam_refuses_are_refused_without_its_output(run_of, capsys, option, problem):
    message = rf"^beam_args: got \['{re.escape(option)}'\], but {problem}"
    with pytest.raises(InputError, match=message):
        create_pipeline(run_of(beam_args=[option]))
    with pytest.raises(InputError, match=message):
        beam_args_of(run_of(nodes=on("StatisticsGen", [option])), "StatisticsGen", "local")
    assert capsys.readouterr().err == ""
    check_beam_args(["--direct_num_workers=2", "--runner=DirectRunner"])


def test_options_of_a_node_replace_those_of_the_run_file(run_of):
    run = run_of(beam_args=["--direct_num_workers=2"], vertex=VERTEX, nodes=on("StatisticsGen", DATAFLOW))
    assert beam_args_of(run, "DetectionExampleGen", "vertex") == ["--direct_num_workers=2"]
    assert beam_args_of(run, "StatisticsGen", "vertex") == DATAFLOW
    assert beam_args_of(run_of(nodes=on("*", FLINK)), "DatasetValidator", "local") == FLINK
    assert beam_args_of(run_of(), "StatisticsGen", "local") == []


@pytest.mark.parametrize(
    ("args", "is_mounted"),
    [
        (DATAFLOW, False),
        (FLINK, False),
        (["--region=europe-west4", "--runner", "dataflow"], False),
        (["--runner=apache_beam.runners.portability.flink_runner.FlinkRunner"], False),
        (["--direct_num_workers=2"], True),
        (["--runner=DirectRunner", "--flink_version=1.19"], True),
    ],
)
def test_addresses_stay_unchanged_for_remote_workers(args, is_mounted):
    assert TaskStorage.of_container({}, args).is_mounted == is_mounted


@pytest.mark.parametrize(
    ("place", "node", "args", "sections", "message"),
    [
        (
            "kubeflow",
            "StatisticsGen",
            FLINK,
            {"kubeflow": {"image": "r/detloom:1", "pipeline_root": "minio://mlpipeline/v2"}},
            r"^kubeflow\.pipeline_root: got 'minio://mlpipeline/v2', allowed .* of StatisticsGen: an address at gs://",
        ),
        ("local", "StatisticsGen", DATAFLOW, {}, r"^pipeline_root: got '', .* an address at gs://"),
        ("local", "StatisticsGen", ["--runner=dataflow"], {}, r"^pipeline_root: got '', .* an address at gs://"),
        ("vertex", "DetectionExampleGen", DATAFLOW, {"vertex": VERTEX}, r"^data\.path: got '/data/cells', .* gs://"),
        (
            "vertex",
            "DetectionExampleGen",
            DATAFLOW,
            {"vertex": VERTEX, "data": {"path": "embedded:digits", "split_by_ratio": {}}},
            r"^data\.path: got the embedded data, allowed",
        ),
    ],
)
def test_nodes_with_unreachable_files_are_refused_on_remote_workers(run_of, place, node, args, sections, message):
    with pytest.raises(InputError, match=message):
        beam_args_of(run_of(nodes=on(node, args), **sections), node, place)


def test_remote_workers_read_cloud_storage(run_of):
    run = run_of(vertex=VERTEX, data=IN_BUCKET, pipeline_root="gs://bucket/root", beam_args=DATAFLOW)
    for place in ("vertex", "local"):
        assert beam_args_of(run, "DetectionExampleGen", place) == DATAFLOW


def test_ingestion_on_remote_workers_needs_no_volume_on_kubeflow(run_of):
    kubeflow = {"image": "r/detloom:1", "volumes": [{"claim": "data", "mount_path": "/data"}]}
    settings = {"data": IN_BUCKET, "kubeflow": kubeflow, "push_to": "/data/serving"}
    check_run(run_of(beam_args=FLINK, **settings), "kubeflow")
    with pytest.raises(InputError, match=r"^data\.path: got 'gs://bucket/cells', allowed on Kubeflow"):
        check_run(run_of(**settings), "kubeflow")
