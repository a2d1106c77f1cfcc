"""The example of docs/kfp_components.md compiles to a valid job."""

import yaml
from fenced_blocks import ROOT, read_blocks
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2


def test_the_example_compiles_to_a_pipeline_of_the_five_components(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cells.yaml").write_text("name: cells\ndata: {path: /data/cells}\n")
    page = ROOT / "docs" / "kfp_components.md"
    (block,) = read_blocks(page, "python")
    exec(compile(block.text, str(page), "exec"), {})
    spec = json_format.ParseDict(
        yaml.safe_load((tmp_path / "cells.job.yaml").read_text()), pipeline_spec_pb2.PipelineSpec()
    )
    tasks = spec.root.dag.tasks
    assert {*tasks} == {"ingest", "validate", "train", "evaluate", "push"}
    assert "validate" in tasks["train"].dependent_tasks
    assert tasks["train"].inputs.parameters["config"].runtime_value.constant.string_value.startswith("name: cells\n")
    assert not any(tasks[name].caching_options.enable_cache for name in ("ingest", "evaluate", "push"))
    executors = json_format.MessageToDict(spec.deployment_spec)["executors"]
    assert {each["container"]["args"][0] for each in executors.values()} == {
        "ingest", "validate", "train", "evaluate", "push",
    }  # fmt: skip
