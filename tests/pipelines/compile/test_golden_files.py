"""Compare the compiled jobs of one run file for each platform with golden files; review them before you commit them.

The files are the same for all TFX lines.

In both, fingerprints, versions and node settings are replaced by placeholders: they change often, and other tests check
them.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance_driver.job import read_job

from detloom.pipelines.compile.compile_pipeline import format_json, format_yaml
from detloom.pipelines.dag.packed_settings import PACKED, unpack

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("kubeflow_gpu", "vertex_gpu_dataflow")
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
    (re.compile(r"--tfx=\d+\.\d+"), "--tfx=LINE"),
    (re.compile(r'(DETLOOM_TFX_LINE[\\": ,value]+)\d+\.\d+'), r"\1LINE"),
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
                if name == PACKED:
                    settings = unpack(value["constant"])
                    value["constant"] = {key: hidden(key, each) for key, (_, each) in settings.items()}
                elif "constant" in value:
                    value["constant"] = hidden(name, value["constant"])


def hidden(name: str, value: Any) -> Any:
    if name == "custom_config":
        config = {key: hidden(key, each) for key, each in json.loads(value).items()}
        return json.dumps(config, sort_keys=True)
    return "SETTINGS" if name in SETTINGS else value


def normalised(text: str) -> str:
    documents = parse(text)
    hide_settings(documents)
    documents = [normalise(each) for each in documents]
    return format_json(documents[0]) if text.startswith("{") else format_yaml(documents)


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name}.{'yaml' if name.startswith('kubeflow') else 'json'}"


@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_job_equals_the_golden_file(name, compile_text):
    found = normalised(compile_text(name))
    if os.environ.get(WRITE_VARIABLE):
        golden_file(name).write_text(found)
    wanted = golden_file(name).read_text()
    assert found == wanted, f"If the change is intended, write the files again and review the difference:\n{REWRITE}"


@pytest.mark.parametrize("name", NAMES)
def test_the_backend_would_accept_the_golden_file(name):
    place = "kubeflow" if name.startswith("kubeflow") else "vertex"
    job = read_job(golden_file(name).read_text(), place, "minio://bucket/root")
    assert {"DetectionExampleGen", "Trainer", "Pusher"} <= set(job.spec.components)
