import json
import re

import pytest
import yaml
from fake_backends import sample_job

from detloom.pipelines.backends.compiled_job import (
    check_run_name,
    new_run_name,
    parse_job,
    without_cache,
)
from detloom.schemas.errors import InputError


def test_a_kubeflow_job_has_a_spec_and_a_platform():
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
        ("{", "vertex", "^F: .*JSON.* --runner vertex"),
        ("a: [", "kubeflow", "^F: .*YAML.* --runner kubeflow"),
        ("!!python/object/apply:os.system [ls]", "kubeflow", "^F: .*YAML"),
        ("[1]", "vertex", "^F: .*mapping"),
        ("", "kubeflow", "^F: .*mapping"),
        (sample_job.vertex_job(), "kubeflow", "^F: .*Vertex AI.* --runner kubeflow"),
        (json.dumps(sample_job.SPEC), "vertex", "^F: .*Kubeflow.* --runner vertex"),
        (sample_job.kubeflow_job(rooot={}), "kubeflow", "^F: .*PipelineSpec .*rooot"),
        (yaml.safe_dump_all([sample_job.SPEC, {"plattforms": {}}]), "kubeflow", "^F: .*PlatformSpec .*plattforms"),
        (json.dumps({"pipelineSpec": [1]}), "vertex", "^F: .*PipelineSpec"),
        (json.dumps({"pipelineSpec": []}), "vertex", "^F: .*name and tasks"),
        (sample_job.kubeflow_job(pipelineInfo={}), "kubeflow", "^F: .*name and tasks"),
        (sample_job.kubeflow_job(root={}), "kubeflow", "^F: .*name and tasks"),
        (json.dumps({"pipelineSpec": sample_job.SPEC, "labels": []}), "vertex", None),
        (json.dumps({"pipelineSpec": sample_job.SPEC, "labels": [1]}), "vertex", "^F: runtimeConfig and labels"),
    ],
)
def test_a_text_that_is_not_a_job_for_the_backend_is_refused(text, place, message):
    if message is None:
        assert parse_job(text, place, "F").labels == {}
        return
    with pytest.raises(InputError, match=message):
        parse_job(text, place, "F")


def test_without_cache_changes_tasks_of_inner_pipelines_in_a_copy():
    changed = without_cache(sample_job.SPEC)
    tasks = {**changed["root"]["dag"]["tasks"], **changed["components"]["training"]["dag"]["tasks"]}
    assert set(tasks) == {"Gen", "training", "Trainer", "Pusher"}
    assert all(task["cachingOptions"] == {"enableCache": False} for task in tasks.values())
    assert sample_job.SPEC["root"]["dag"]["tasks"]["Gen"]["cachingOptions"] == {"enableCache": True}


@pytest.mark.parametrize(
    ("pipeline", "beginning"),
    [("cells", "cells-20"), ("my_cells", "my-cells-20"), ("3d", "run-3d-20"), ("_", "run-20")],
)
def test_a_new_run_name_is_a_valid_id_on_vertex(pipeline, beginning):
    name = new_run_name(pipeline)
    assert re.fullmatch(beginning + r"\d{6}-\d{6}-[0-9a-f]{8}", name)
    check_run_name(name)
    assert new_run_name(pipeline) != name


def test_a_long_pipeline_name_is_truncated_in_run_names():
    assert len(new_run_name("x" * 500)) == 125  # 100, and -20260131-030000-1a2b3c4d


@pytest.mark.parametrize("name", ["", "Cells", "3cells", "cells_1", "cells-", "x" * 128, "cells\n"])
def test_invalid_run_names_are_refused(name):
    with pytest.raises(InputError, match=r"--name: got .*, allowed: .*127"):
        check_run_name(name)
