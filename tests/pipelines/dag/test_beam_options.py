import argparse
import re
from typing import get_args, get_type_hints

import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)

from detloom.pipelines.container.storage import Storage
from detloom.pipelines.dag.beam_options import beam_args_of, check_beam_args, job_server_in_cache
from detloom.pipelines.dag.create_pipeline import create_pipeline
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.beam import Flink

SUPPORTED = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS  # of the installed Beam
DATAFLOW = {
    "project": "my-project",
    "region": "europe-west4",
    "temp_location": "gs://bucket/tmp/",
    "worker_image": "r/detloom:1-beam",
}
FLINK = {"master": "flink-jobmanager:8081", "parallelism": 4, "job_server_jar": "/opt/beam/job-server.jar"}
VERTEX = {
    "project": "my-project",
    "region": "europe-west4",
    "image": "r/detloom:1",
    "pipeline_root": "gs://bucket/root",
}
KUBEFLOW = {"image": "r/detloom:1", "pipeline_root": "gs://bucket/root"}


def parsed(args):
    """Parse Beam's options; assert that it knows every argument."""
    options = PipelineOptions(args)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for each in PipelineOptions.__subclasses__():
        each._add_argparse_args(parser)
    assert parser.parse_known_args(args)[1] == []
    return options


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--direct_num_workers=abc", "argument --direct_num_workers: invalid int value: 'abc'"),
        ("--runner=Foo", "Unexpected pipeline runner: Foo"),
        ("--runner=no_module.Foo", "No module named 'no_module'"),
    ],
)
def test_options_that_beam_refuses_are_refused_without_its_output(run_of, capsys, option, problem):
    with pytest.raises(InputError, match=rf"^beam_args: got \['{re.escape(option)}'\], but {problem}"):
        create_pipeline(run_of(beam_args=[option]))
    assert capsys.readouterr().err == ""
    check_beam_args(["--direct_num_workers=2", "--runner=DirectRunner"])


def test_nodes_outside_of_beam_nodes_get_beam_args(run_of):
    run = run_of(beam_args=["--direct_num_workers=2"], vertex=VERTEX, beam={"dataflow": DATAFLOW})
    assert beam_args_of(run, "DetectionExampleGen", "vertex") == ["--direct_num_workers=2"]
    assert beam_args_of(run_of(), "StatisticsGen", "local") == []
    assert Storage.of_container({}, beam_args_of(run, "Trainer", "vertex")).is_mounted


def test_dataflow_gets_the_image_of_the_workers(run_of):
    run = run_of(vertex=VERTEX, beam={"dataflow": {**DATAFLOW, "service_account": "me@example.org"}})
    args = beam_args_of(run, "DetectionEvaluator", "vertex")
    assert not Storage.of_container({}, args).is_mounted
    options = parsed(args)
    cloud, worker = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    assert options.view_as(StandardOptions).runner == "DataflowRunner"
    assert (cloud.project, cloud.region, cloud.temp_location) == ("my-project", "europe-west4", "gs://bucket/tmp")
    assert cloud.service_account_email == "me@example.org"
    assert cloud.labels == ["detloom-pipeline=cells", "detloom-node=detectionevaluator"]
    assert (worker.machine_type, worker.max_num_workers, worker.subnetwork) == ("n1-standard-4", 8, None)
    assert worker.sdk_container_image == "r/detloom:1-beam"
    assert options.view_as(SetupOptions).extra_packages is None
    assert options.view_as(SetupOptions).sdk_location == "container"


def test_dataflow_gets_the_subnetwork(run_of):
    dataflow = {**DATAFLOW, "subnetwork": "regions/europe-west4/subnetworks/a"}
    options = parsed(beam_args_of(run_of(vertex=VERTEX, beam={"dataflow": dataflow}), "StatisticsGen", "vertex"))
    assert options.view_as(WorkerOptions).subnetwork == "regions/europe-west4/subnetworks/a"


def test_flink_args_contain_master_version_parallelism_and_environment(run_of):
    run = run_of(beam={"flink": FLINK, "nodes": ["DatasetValidator", "StatisticsGen"]})
    args = beam_args_of(run, "DatasetValidator", "local")
    assert not Storage.of_container({}, args).is_mounted
    options = parsed(args)
    flink, portable = options.view_as(FlinkRunnerOptions), options.view_as(PortableOptions)
    assert options.view_as(StandardOptions).runner == "FlinkRunner"
    assert (flink.flink_master, flink.flink_version, flink.parallelism) == ("flink-jobmanager:8081", "1.19", 4)
    assert flink.flink_submit_uber_jar is True
    assert (portable.environment_type, portable.environment_config) == ("EXTERNAL", "localhost:50000")
    assert options.view_as(DebugOptions).experiments in (None, [])


def test_loopback_has_no_configuration(run_of):
    run = run_of(beam={"flink": {**FLINK, "environment_type": "LOOPBACK"}})
    args = beam_args_of(run, "StatisticsGen", "local")
    assert not any(arg.startswith("--environment_config") for arg in args)


def test_a_given_job_server_and_version_are_passed_on(run_of):
    flink = {**FLINK, "version": SUPPORTED[0]}
    options = parsed(beam_args_of(run_of(beam={"flink": flink}), "StatisticsGen", "local"))
    assert options.view_as(FlinkRunnerOptions).flink_job_server_jar == "/opt/beam/job-server.jar"
    assert options.view_as(FlinkRunnerOptions).flink_version == SUPPORTED[0]


def test_the_default_job_server_is_the_one_in_the_cache(run_of, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = run_of(beam={"flink": {**FLINK, "job_server_jar": ""}})
    jar = job_server_in_cache("1.19")  # the default version of Flink
    with pytest.raises(InputError, match=rf"^beam\.flink\.job_server_jar: got nothing, and {jar} does .* jar`"):
        beam_args_of(run, "StatisticsGen", "local")
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert f"--flink_job_server_jar={jar}" in beam_args_of(run, "StatisticsGen", "local")


def test_a_container_needs_the_path_of_a_job_server(run_of):
    run = run_of(beam={"flink": {**FLINK, "job_server_jar": ""}}, kubeflow=KUBEFLOW)
    with pytest.raises(InputError, match=r"beam\.flink\.job_server_jar: got nothing, allowed on Kubeflow: a path"):
        beam_args_of(run, "StatisticsGen", "kubeflow")


def test_the_default_version_is_supported_by_the_installed_beam():
    assert Flink(master="flink:8081").version in SUPPORTED


def test_run_files_allow_all_flink_versions_of_the_installed_beam(run_of):
    for version in SUPPORTED:
        run = run_of(beam={"flink": {**FLINK, "version": version}})
        assert f"--flink_version={version}" in beam_args_of(run, "StatisticsGen", "local")


def test_a_flink_version_that_the_installed_beam_lacks_is_refused(run_of):
    (version, *_) = set(get_args(get_type_hints(Flink)["version"])) - set(SUPPORTED)
    with pytest.raises(InputError, match=rf"^beam\.flink\.version: got '{version}', allowed .*: {SUPPORTED[0]}"):
        beam_args_of(run_of(beam={"flink": {**FLINK, "version": version}}), "StatisticsGen", "local")


@pytest.mark.parametrize(
    ("place", "node", "sections", "message"),
    [
        (
            "kubeflow",
            "StatisticsGen",
            {"beam": {"flink": FLINK}, "kubeflow": {**KUBEFLOW, "pipeline_root": "minio://mlpipeline/v2"}},
            r"kubeflow\.pipeline_root: got 'minio://mlpipeline/v2', allowed with StatisticsGen .*: an address at gs://",
        ),
        (
            "vertex",
            "DetectionExampleGen",
            {"beam": {"dataflow": DATAFLOW, "nodes": ["DetectionExampleGen"]}, "vertex": VERTEX},
            r"data\.path: got '/data/cells', allowed with DetectionExampleGen in beam\.nodes: an address at gs://",
        ),
        (
            "vertex",
            "DetectionExampleGen",
            {
                "beam": {"dataflow": DATAFLOW, "nodes": ["DetectionExampleGen"]},
                "vertex": VERTEX,
                "data": {"path": "embedded:digits", "split_by_ratio": {}},
            },
            r"data\.path: got the embedded data, allowed",
        ),
    ],
)
def test_nodes_with_unreachable_files_are_refused_on_remote_workers(run_of, place, node, sections, message):
    with pytest.raises(InputError, match=message):
        beam_args_of(run_of(**sections), node, place)


def test_ingestion_from_cloud_storage_can_run_on_dataflow(run_of):
    beam = {"dataflow": DATAFLOW, "nodes": ["DetectionExampleGen"]}
    run = run_of(beam=beam, vertex=VERTEX, data={"path": "gs://bucket/cells", "split_by_ratio": {}})
    assert "--runner=DataflowRunner" in beam_args_of(run, "DetectionExampleGen", "vertex")


def test_a_run_file_for_dataflow_also_runs_locally(run_of, caplog):
    caplog.set_level("INFO", logger="detloom")
    run = run_of(beam={"dataflow": DATAFLOW})
    assert beam_args_of(run, "StatisticsGen", "local") == []
    assert "StatisticsGen" in caplog.text
