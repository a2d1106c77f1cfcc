from dataclasses import replace

import pytest

from detloom.pipelines.doctor import check_run, machine
from detloom.pipelines.doctor.check_result import CheckResult, format_results
from detloom.pipelines.doctor.check_run import (
    check_data_sample,
    check_kubeflow,
    check_machine_and_run,
    describe_sample,
    is_in_container,
)
from detloom.pipelines.local.run_local import warnings_of
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.run_file.data import Data, Splits
from detloom.schemas.run_file.kubeflow import Kubeflow, Volume
from detloom.schemas.run_file.nodes import NodeSettings
from detloom.schemas.run_file.run_file import RunFile
from detloom.schemas.run_file.vertex import Vertex

VERTEX = Vertex(project="my-project", region="us-central1", image="x.io/y/z:1", pipeline_root="gs://bucket/runs")
SAMPLE = {
    "error": "",
    "data_format": "voc",
    "num_records": 40,
    "num_records_refused": 0,
    "num_boxes": 100,
    "num_boxes_refused": 3,
    "reasons": {"box_outside_image": 3},
    "first": "Annotations/1.xml: a box",
}


@pytest.fixture
def run(tmp_path):
    config = find_preset("efficientdet_d0").config
    return RunFile(
        name="cells",
        data=Data(format="voc", path=str(tmp_path), splits=Splits(train="a", eval="b", test="c")),
        model=config.model,
        train=config.train,
        eval=config.eval,
        train_input=config.train_input,
        eval_input=config.eval_input,
        workspace=str(tmp_path / "runs" / "cells"),
        push_to=str(tmp_path / "models"),
    )


@pytest.fixture
def run_on_kubeflow(run):
    volume = Volume(claim="cells", mount_path="/volume-of-the-cluster")
    return replace(run, kubeflow=Kubeflow(image="x/detloom:1", volumes=(volume,)))


@pytest.fixture
def no_probes(monkeypatch):
    """Replace the probes, because importing TensorFlow and TFX takes 13 s, and `pip check` 3 s."""
    monkeypatch.setattr(machine, "run_probe", lambda code: {"version": "0.0", "devices": ["CPU:0"]})
    monkeypatch.setattr(check_run, "run_probe", lambda *arguments, **options: SAMPLE)
    monkeypatch.setattr(
        check_run, "check_packages", lambda: iter([CheckResult(name="packages", status="ok", detail="")])
    )


@pytest.mark.usefixtures("no_probes")
def test_the_machine_and_all_parts_of_a_run_are_checked(run, run_on_kubeflow, monkeypatch, cluster):
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    on_machine = {"packages", "TensorFlow", "TFX", "memory", "temporary files", "workspace"}
    assert {result.name for result in check_machine_and_run()} - {"GPU"} == on_machine
    results = check_machine_and_run(run)
    assert {result.name for result in results} - {"GPU"} == on_machine | {"push_to", "data sample"}
    assert "hunter2" not in format_results(results)
    with_host = replace(run, kubeflow=replace(run_on_kubeflow.kubeflow, host=cluster.host))
    assert "Kubeflow" in {result.name for result in check_machine_and_run(with_host)}


@pytest.mark.usefixtures("no_probes")
def test_addresses_and_paths_in_containers_are_not_checked(run, run_on_kubeflow):
    in_volume = "/volume-of-the-cluster/cells/{SPAN}"
    elsewhere = replace(
        run_on_kubeflow, data=replace(run.data, path=in_volume), push_to="/volume-of-the-cluster/models"
    )
    for other in (elsewhere, replace(elsewhere, push_to="gs://bucket/models")):
        assert not {result.name for result in check_machine_and_run(other)} & {"push_to", "data sample"}


def test_only_paths_below_a_mount_are_in_containers(run, run_on_kubeflow, tmp_path):
    assert is_in_container(run_on_kubeflow, "/volume-of-the-cluster/{SPAN}")
    assert not is_in_container(run_on_kubeflow, "/nowhere/models")
    assert not is_in_container(run, "/gcs/bucket/models")
    assert is_in_container(replace(run, vertex=VERTEX), "/gcs/bucket/models")
    mounted = Kubeflow(image="x/detloom:1", volumes=(Volume(claim="c", mount_path=str(tmp_path)),))
    assert not is_in_container(replace(run, kubeflow=mounted), f"{tmp_path}/{{SPAN}}")


@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        ({}, "ok", "voc: 0 of 40 records refused, 3 of 100 boxes refused"),
        ({"num_boxes": 0, "num_boxes_refused": 0}, "warning", "voc: 0 of 40 records refused"),
        *(
            ({"num_records_refused": num_refused, "reasons": {"missing_file": 9}}, status, detail)
            for num_refused, status, detail in (
                (2, "ok", ""),
                (3, "warning", "missing_file 9"),
                (40, "error", "file 9"),
            )
        ),
        (
            {"error": "data: no format is recognised " + "x" * 200},
            "error",
            "data: no format is recognised " + "x" * 200,
        ),
    ],
)
def test_refused_records_are_a_warning_and_all_of_them_an_error(changes, status, detail):
    result = describe_sample({**SAMPLE, **changes}, 0.05, allow_no_objects=False)
    assert result.status == status
    assert detail in result.detail
    assert ("missing_file" in result.detail) == (status != "ok" and "reasons" in changes)


def test_a_sample_that_takes_too_long_is_a_warning(monkeypatch, run):
    def fail(*arguments, **options):
        raise TimeoutError("reading a sample did not end within 60 s")

    monkeypatch.setattr(check_run, "run_probe", fail)
    (result,) = check_data_sample(run)
    assert result.status == "warning"
    assert "within 60 s" in result.detail


def test_a_newer_span_without_files_is_a_warning(run, tmp_path, monkeypatch):
    (tmp_path / "1" / "images").mkdir(parents=True)
    (tmp_path / "2").mkdir()
    monkeypatch.setattr(check_run, "run_probe", lambda *arguments, **options: SAMPLE)
    run = replace(run, data=replace(run.data, path=f"{tmp_path}/{{SPAN}}"))
    skipped, _ = check_data_sample(run)
    assert (skipped.name, skipped.status) == ("data", "warning")
    assert skipped.detail.startswith(f"{tmp_path}/2: newer")
    assert warnings_of(run)[-1].startswith(skipped.detail)


@pytest.mark.slow
def test_the_sample_of_a_run_is_read_in_a_process(run, tmp_path):
    (tmp_path / "Annotations").mkdir()
    (result,) = check_data_sample(run)
    assert result.status == "error"
    assert "ImageSets/Main/a.txt" in result.detail


def test_the_retry_settings_of_the_cluster_are_checked(run_on_kubeflow, cluster):
    run = replace(run_on_kubeflow, kubeflow=replace(run_on_kubeflow.kubeflow, host=cluster.host))
    (result,) = check_kubeflow(run)
    assert result.status == "ok"
    run = replace(run, nodes=(NodeSettings(node="*", max_retries=2),))
    (result,) = check_kubeflow(run)
    assert (result.status, "no earlier run shows" in result.detail) == ("warning", True)
    strategy = {"limit": "0", "retryPolicy": "Always"}
    cluster.workflows[cluster.add_run("cells-1").run_id] = {"spec": {"templateDefaults": {"retryStrategy": strategy}}}
    (result,) = check_kubeflow(run)
    assert result.status == "ok"


def test_an_unreachable_cluster_is_a_warning_and_the_embedded_data_set_is_not_sampled(run_on_kubeflow, cluster):
    cluster.token = "needed"
    (result,) = check_kubeflow(replace(run_on_kubeflow, kubeflow=replace(run_on_kubeflow.kubeflow, host=cluster.host)))
    assert (result.status, "could not read" in result.detail) == ("warning", True)
    embedded = replace(run_on_kubeflow.data, path="embedded:digits")
    assert list(check_data_sample(replace(run_on_kubeflow, data=embedded))) == []
