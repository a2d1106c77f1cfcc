import json
import re

import pytest
import yaml
from fake_backends import sample_job

from detloom.pipelines.backends.compiled_job import (
    check_run_name,
    new_run_name,
    parse_job,
    read_job_file,
    without_cache,
)
from detloom.schemas.errors import InputError


def test_a_kubeflow_job_is_a_spec_and_a_platform():
    job = parse_job(sample_job.kubeflow_job(), "kubeflow", "F")
    assert job.pipeline_name == "cells"
    assert set(job.spec["root"]["dag"]["tasks"]) == {"Gen", "training"}
    assert job.platform == sample_job.PLATFORM
    assert parse_job(sample_job.kubeflow_job(platform=False), "kubeflow", "F").platform == {}


def test_a_vertex_job_has_labels_and_a_runtime_config():
    job = parse_job(sample_job.vertex_job(), "vertex", "F")
    assert job.pipeline_name == "cells"
    assert job.labels == {"tfx_version": "1-16-0"}
    assert job.runtime_config == {"gcsOutputDirectory": "gs://bucket/root"}


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("{", "vertex", r"F: is no JSON; `detloom compile --runner vertex` writes it"),
        ("a: [", "kubeflow", r"F: is no YAML; `detloom compile --runner kubeflow` writes it"),
        ("!!python/object/apply:os.system [ls]", "kubeflow", "F: is no YAML"),
        ("[1]", "vertex", "F: holds no mapping"),
        ("", "kubeflow", "F: holds no mapping"),
        (sample_job.vertex_job(), "kubeflow", "F: is a job for Vertex AI; compile it with `detloom compile --runner k"),
        (json.dumps(sample_job.SPEC), "vertex", "F: is a job for Kubeflow; compile it with"),
        (sample_job.kubeflow_job(rooot={}), "kubeflow", "F: is no PipelineSpec .*rooot"),
        (yaml.safe_dump_all([sample_job.SPEC, {"plattforms": {}}]), "kubeflow", "F: is no PlatformSpec .*plattforms"),
        (json.dumps({"pipelineSpec": [1]}), "vertex", "F: is no PipelineSpec"),
        (json.dumps({"pipelineSpec": []}), "vertex", "F: holds no pipeline with a name and tasks"),
        (sample_job.kubeflow_job(pipelineInfo={}), "kubeflow", "F: holds no pipeline with a name and tasks"),
        (sample_job.kubeflow_job(root={}), "kubeflow", "F: holds no pipeline with a name and tasks"),
        (json.dumps({"pipelineSpec": sample_job.SPEC, "labels": []}), "vertex", None),
        (json.dumps({"pipelineSpec": sample_job.SPEC, "labels": [1]}), "vertex", "F: runtimeConfig or labels is no"),
    ],
)
def test_what_is_no_job_for_the_backend_is_refused(text, place, message):
    if message is None:
        assert parse_job(text, place, "F").labels == {}
        return
    with pytest.raises(InputError, match=message):
        parse_job(text, place, "F")


def test_a_file_is_read_or_refused(tmp_path):
    file = tmp_path / "job.yaml"
    with pytest.raises(InputError, match=r"job\.yaml: cannot be read \(No such file or directory\); `detloom compile`"):
        read_job_file(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"job\.yaml: is no text"):
        read_job_file(file)
    file.write_text("name: ä", encoding="utf-8")
    assert read_job_file(file) == "name: ä"


def test_without_cache_reaches_tasks_of_inner_pipelines_and_leaves_the_original():
    changed = without_cache(sample_job.SPEC)
    tasks = {**changed["root"]["dag"]["tasks"], **changed["components"]["training"]["dag"]["tasks"]}
    assert set(tasks) == {"Gen", "training", "Trainer", "Pusher"}
    assert all(task["cachingOptions"] == {"enableCache": False} for task in tasks.values())
    assert sample_job.SPEC["root"]["dag"]["tasks"]["Gen"]["cachingOptions"] == {"enableCache": True}


@pytest.mark.parametrize(
    ("pipeline", "beginning"),
    [("cells", "cells-20"), ("my_cells", "my-cells-20"), ("3d", "run-3d-20"), ("_", "run-20")],
)
def test_a_new_name_can_be_an_id_on_vertex(pipeline, beginning):
    name = new_run_name(pipeline)
    assert re.fullmatch(beginning + r"\d{6}-\d{6}-[0-9a-f]{8}", name)
    check_run_name(name)
    assert new_run_name(pipeline) != name


def test_the_name_of_a_long_pipeline_is_cut():
    assert len(new_run_name("x" * 500)) == 125  # 100, and -20260131-030000-1a2b3c4d


@pytest.mark.parametrize("name", ["", "Cells", "3cells", "cells_1", "cells-", "x" * 128, "cells\n"])
def test_other_names_are_refused(name):
    with pytest.raises(InputError, match=r"--name: got .*, allowed: lower case letters, digits and '-'"):
        check_run_name(name)
