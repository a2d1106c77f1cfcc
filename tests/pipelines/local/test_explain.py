"""Tests of `detloom run --explain` on small pipelines, and on the whole DAG after changes of the code."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from code_copies import LOSS, NOTIFIER, add_line, copy_package, reformat_and_comment
from tfx import v1 as tfx
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples, Model

from detloom.components.fingerprints import digests_of, source_fingerprint
from detloom.pipelines.local.explain import Explanation, explain_pipeline, explain_run, format_explanations
from detloom.pipelines.local.tfx_hooks import find_changed_modules, record_code
from detloom.schemas.run_file.read_run_file import read_run_file

MODULE = "detloom.schemas.errors"


@component
def Gen(
    number: Parameter[int],
    code_fingerprint: Parameter[str],
    config_hash: Parameter[str],
    examples: OutputArtifact[Examples],
):
    examples.set_int_custom_property("number", number)


@component
def Reader(examples: InputArtifact[Examples], model: OutputArtifact[Model]):
    pass


@component
def Conditioned(model: OutputArtifact[Model]):
    pass


@component
def Sender(nonce: Parameter[str], model: OutputArtifact[Model]):
    pass


def pipeline_of(workspace, number=1, fingerprint="", gates="g0", code="c0"):
    config_hash = json.dumps({"gates": gates, "code of the Trainer": code})
    gen = Gen(number=number, code_fingerprint=fingerprint, config_hash=config_hash)
    with tfx.dsl.Cond(gen.outputs["examples"].future()[0].custom_property("number") > 10):
        conditioned = Conditioned()
    return tfx.dsl.Pipeline(
        pipeline_name="p",
        pipeline_root=str(workspace / "artifacts"),
        components=[gen, Reader(examples=gen.outputs["examples"]), conditioned, Sender(nonce=uuid.uuid4().hex)],
        enable_cache=True,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
            str(workspace / "metadata.sqlite")
        ),
    )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Run the pipeline once."""
    workspace = tmp_path_factory.mktemp("run")
    tfx.orchestration.LocalDagRunner().run(pipeline_of(workspace))
    return workspace


@pytest.fixture
def explain(finished_run):
    """Return a function that explains a run of the pipeline: the action and the reasons by node."""

    def call(**changes):
        explanations = explain_pipeline(pipeline_of(finished_run, **changes), finished_run)
        return {each.node: (each.action, *each.reasons) for each in explanations}

    return call


def test_without_changes_all_nodes_are_cached_that_can_be(explain):
    assert explain() == {
        "Gen": ("cached",),
        "Reader": ("cached",),
        "Conditioned": ("skipped", "there is no reason to train"),
        "Sender": ("always runs",),
    }


def test_a_setting_is_named_with_both_values_and_what_follows_with_its_artifact(explain):
    assert explain(number=20) == {
        "Gen": ("runs", "setting number: 1 -> 20"),
        "Reader": ("runs", "artifact examples of Gen"),
        "Conditioned": ("unknown", "the decision of Gen"),
        "Sender": ("always runs",),
    }


def test_the_parts_of_what_determines_the_training_are_named(explain):
    assert explain(gates="g1", code="c1")["Gen"] == ("runs", "module: code of the Trainer", "setting gates")


def test_code_without_a_record_is_said_so(explain):
    assert explain(fingerprint=source_fingerprint(MODULE))["Gen"] == ("runs", "module: not recorded")


def test_outputs_that_were_deleted_are_the_reason(tmp_path, finished_run):
    workspace = shutil.copytree(finished_run, tmp_path / "run")
    shutil.rmtree(finished_run / "artifacts" / "Gen")
    try:
        first, *_ = explain_pipeline(pipeline_of(workspace), workspace)
    finally:
        shutil.copytree(workspace / "artifacts" / "Gen", finished_run / "artifacts" / "Gen")
    assert first == Explanation(node="Gen", action="runs", reasons=("artifact: the earlier outputs are gone",))


def test_without_an_earlier_run_every_node_would_run(small_run):
    workspace = small_run.parent / "workspace"
    explanations = explain_run(read_run_file(small_run))
    assert format_explanations(explanations) == "No earlier run in this workspace: every node would run."
    assert not workspace.exists()


def test_without_any_metadata_no_node_has_an_earlier_result(tmp_path):
    (tmp_path / "metadata.sqlite").touch()
    found = {each.node: (each.action, *each.reasons) for each in explain_pipeline(pipeline_of(tmp_path), tmp_path)}
    assert found["Gen"] == ("runs", "no earlier result")
    assert found["Sender"] == ("runs", "no earlier result")


def test_the_workspace_does_not_change(finished_run, explain):
    def state():
        return {path: path.read_bytes() if path.is_file() else None for path in finished_run.rglob("*")}

    before = state()
    explain(number=3)
    assert state() == before


def test_the_changed_modules_are_found_in_the_records(tmp_path):
    now = source_fingerprint(MODULE, "detloom.schemas.reading.redact")
    digests = digests_of(now)
    assert {MODULE, "detloom.schemas.reading.redact"} <= digests.keys()
    record_code(tmp_path / "code", [Gen(number=1, code_fingerprint=now, config_hash="")])
    (record,) = (tmp_path / "code").iterdir()
    (tmp_path / "code" / "before.json").write_text(record.read_text().replace(digests[MODULE], "0123456789abcdef"))
    assert find_changed_modules(tmp_path / "code", "before", now) == [MODULE]
    assert find_changed_modules(tmp_path / "code", now, now) == []
    assert find_changed_modules(tmp_path / "code", "other", now) is None
    (tmp_path / "code" / "before.json").write_text("[1")
    assert find_changed_modules(tmp_path / "code", "before", now) is None


def test_at_most_five_reasons_are_shown():
    explanation = Explanation(node="Trainer", action="runs", reasons=tuple(f"module m{number}" for number in range(7)))
    shown = format_explanations([explanation, Explanation(node="Pusher", action="always runs")])
    assert shown.splitlines() == [
        "  Trainer  runs         module m0; module m1; module m2; module m3; module m4; 2 more",
        "  Pusher   always runs",
        "1 of 2 nodes would run, besides those that always run.",
    ]


@pytest.mark.nightly
def test_a_change_of_the_code_runs_the_nodes_that_execute_it(small_run, tmp_path):
    package = copy_package(tmp_path / "package")
    small_run.write_text(small_run.read_text() + "\nnotifications: {webhook: {url: 'env:HOOK'}}\n")

    def detloom(*options: str) -> str:
        command = [sys.executable, "-m", "detloom.pipelines.cli", "run", str(small_run), *options]
        environment = {**os.environ, "PYTHONPATH": str(package), "TF_CPP_MIN_LOG_LEVEL": "3"}
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return ended.stdout

    def changed() -> dict[str, str]:
        """Return the reasons by node, of nodes that have any."""
        lines = [line.split(maxsplit=1) for line in detloom("--explain").splitlines() if line.startswith("  ")]
        rest = {name: text.removeprefix("always runs").removeprefix("runs").strip() for name, text in lines}
        return {name: text for name, text in rest.items() if text != "cached" and text}

    def module_of(path: str) -> str:
        return "module detloom." + Path(path).with_suffix("").as_posix().replace("/", ".")

    detloom()
    reformat_and_comment(package)
    assert changed() == {}
    assert "nothing changed since the last run: all results are cached" in detloom()

    add_line(package, NOTIFIER)
    assert changed() == {"Notifier": module_of(NOTIFIER)}

    add_line(package, LOSS)
    found = changed()
    assert list(found) == ["Trainer", "DetectionEvaluator", "ModelCard", "Notifier"]
    assert found["Trainer"] == module_of(LOSS)
