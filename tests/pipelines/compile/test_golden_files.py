"""What is compiled of six run files, against files that are read before they are committed.

In both, fingerprints, versions and the settings of nodes are replaced by a word: these change with all kinds of code,
and other tests look at them.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import tfx.version
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.compile.format_job import format_json, format_yaml

GOLDEN = Path(__file__).parent / "golden"
NAMES = (
    "kubeflow_cpu",
    "kubeflow_gpu",
    "kubeflow_tpu_v5e",
    "vertex_tpu_v3",
    "vertex_tpu_v5e",
    "vertex_gpu_dataflow",
)
WRITE_VARIABLE = "DETLOOM_WRITE_GOLDEN"
REWRITE = f"{WRITE_VARIABLE}=1 python -m pytest tests/pipelines/compile/test_golden_files.py"
SETTINGS = {  # JSON of parts of the run file, or of TFX
    "checks",
    "evaluator",
    "export",
    "gates",
    "model_input",
    "settings",
    "stated",
    "stats_options_json",
    "trainer_config",
    "tuner",
}
REPLACED = (
    (re.compile(r"\b[0-9a-f]{16}\b"), "FINGERPRINT"),
    (re.compile(r"\btfx-\d+\.\d+\.\d+\b"), "tfx-VERSION"),
    (re.compile(r"\bdetloom-\d+\.\d+\.\d+-"), "detloom-VERSION-"),
)


def parse(text: str) -> list[dict[str, Any]]:
    return [json.loads(text)] if text.startswith("{") else list(yaml.safe_load_all(text))


def normalise(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        if key == "labels":
            return {name: "VERSION" if name.startswith("tfx_") else each for name, each in value.items()}
        return {name: normalise(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [normalise(each) for each in value]
    if not isinstance(value, str):
        return value
    for pattern, word in REPLACED:
        value = pattern.sub(word, value)
    return value


def hide_settings(documents: list[dict[str, Any]]) -> None:
    spec = documents[0].get("pipelineSpec", documents[0])
    for dag in (spec["root"], *spec["components"].values()):
        for task in dag.get("dag", {}).get("tasks", {}).values():
            for name, source in task.get("inputs", {}).get("parameters", {}).items():
                value = source.get("runtimeValue", {})
                if name in SETTINGS:
                    value["constant"] = "SETTINGS"
                elif name == "custom_config":
                    config = {
                        key: "SETTINGS" if key in SETTINGS else each
                        for key, each in json.loads(value["constant"]).items()
                    }
                    value["constant"] = json.dumps(config, sort_keys=True)


def normalised(text: str) -> str:
    documents = parse(text)
    hide_settings(documents)
    documents = [normalise(each) for each in documents]
    return format_json(documents[0]) if text.startswith("{") else format_yaml(documents)


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name}.{'yaml' if name.startswith('kubeflow') else 'json'}"


@pytest.mark.skipif(
    not tfx.version.__version__.startswith("1.16."), reason="written with TFX 1.16, whose compiler is its own"
)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_compiled_is_what_was_read_and_committed(name, compile_text):
    found = normalised(compile_text(name))
    if os.environ.get(WRITE_VARIABLE):
        golden_file(name).write_text(found)
    wanted = golden_file(name).read_text()
    assert found == wanted, f"If the change is meant, write the files anew and read the difference:\n{REWRITE}"


@pytest.mark.parametrize("name", NAMES)
def test_the_file_parses_with_kfps_messages_and_nothing_in_it_is_unknown(name, compile_text):
    first, *rest = parse(golden_file(name).read_text())
    spec = first
    if not rest:
        job = json_format.ParseDict(first, pipeline_spec_pb2.PipelineJob())
        spec = first["pipelineSpec"]
        assert job.runtime_config.gcs_output_directory.startswith("gs://")
    for platform in rest:
        json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
        assert set(platform["platforms"]) == {"kubernetes"}
    assert json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec()).schema_version == "2.1.0"
    config = json_format.ParseDict(spec["deploymentSpec"], pipeline_spec_pb2.PipelineDeploymentConfig())
    labels = {component["executorLabel"] for component in spec["components"].values() if "executorLabel" in component}
    assert set(config.executors) == labels


def test_there_is_no_golden_file_of_nothing():
    assert {golden_file(name).name for name in NAMES} == {path.name for path in GOLDEN.iterdir()}
