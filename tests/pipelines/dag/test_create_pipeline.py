import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tfx.dsl.experimental.conditionals.conditional import get_predicates

import detloom
from detloom.components.model_card.card import ModelCardParams
from detloom.pipelines.dag import training_nodes
from detloom.pipelines.dag.create_pipeline import create_pipeline
from detloom.pipelines.dag.training_nodes import training_hash
from detloom.pipelines.local.run_local import run_locally
from detloom.pipelines.local.summary import read_latest_run
from detloom.schemas.model.strategy import Strategy
from detloom.schemas.run_file.data import SplitByRatio
from detloom.schemas.run_file.data_checks import NearDuplicateCheck
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.vertex import Vertex, VertexTraining

ROOT = Path(detloom.__file__).parents[1]
SEARCH = """
trainer: {strategy: {kind: one_device}, warm_start: production}
tuner:
  algorithm: random
  max_trials: 1
  steps_per_trial: 2
  space: [{key: learning_rate_factor, min: 0.5, max: 2.0, log: true}]
"""
RETRAIN = "retrain: {min_new_images: 10}"
MESSAGES = "notifications: {webhook: {url: 'env:HOOK'}}"
STATED = "model_card: {purpose: Finds digits., limits: [Only on photographs.]}"
CHECKS = {"DetectionExampleGen", "StatisticsGen", "ImportSchemaGen", "ExampleValidator", "DatasetValidator"}
RUN = """
import sys
from pathlib import Path
from detloom.pipelines.local.run_local import run_locally
from detloom.schemas.run_file.read_run_file import read_run_file
run_locally(read_run_file(Path(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def pipeline_of(read_small_run):
    """Return a function that builds the pipeline of the small run file with further lines, once for the same lines."""
    return functools.cache(lambda *lines: create_pipeline(read_small_run(*lines)))


@pytest.fixture(scope="module")
def nodes_of(pipeline_of):
    """Return a function that returns the nodes by id."""
    return lambda *lines: {node.id: node for node in pipeline_of(*lines).components}


@pytest.fixture(scope="module")
def conditions_of(pipeline_of):
    """Return a function that returns the number of conditions of each node."""

    def count(*lines):
        pipeline = pipeline_of(*lines)
        return {node.id: len(get_predicates(node, pipeline.dsl_context_registry)) for node in pipeline.components}

    return count


def changed_nodes(before, after):
    return {node for node in before if before[node].exec_properties != after[node].exec_properties}


def test_tuner_and_warm_start_nodes_exist_only_on_request(nodes_of):
    plain, searching = nodes_of(), nodes_of(SEARCH)
    assert set(searching) - set(plain) == {"Tuner", "WarmStartResolver"}
    assert {"hyperparameters", "base_model"}.isdisjoint(plain["Trainer"].inputs)
    assert searching["Trainer"].inputs["hyperparameters"].producer_component_id == "Tuner"
    assert searching["Trainer"].inputs["base_model"].producer_component_id == "WarmStartResolver"
    upstream = {node.id for node in searching["Tuner"].upstream_nodes}
    assert {"DatasetValidator", "ExampleValidator", "DetectionExampleGen"} <= upstream  # nothing trains on bad data


def test_settings_that_change_the_model_are_trainer_parameters(nodes_of):
    plain, searching = (
        json.loads(nodes["Trainer"].exec_properties["custom_config"]) for nodes in (nodes_of(), nodes_of(SEARCH))
    )
    assert set(plain) == {"trainer_config", "strategy", "warm_start", "export", "code_fingerprint"}
    assert {key for key in plain if plain[key] != searching[key]} == {"strategy", "warm_start"}
    assert json.loads(searching["strategy"])["kind"] == "one_device"


def test_a_vertex_endpoint_replaces_the_push_folder(nodes_of):
    endpoint = "{project: my-project, region: us-central1, endpoint_name: cells, container_image: gcr.io/tf}"
    pusher = nodes_of(f"push: {{vertex: {endpoint}}}")["Pusher"]
    assert type(pusher).__name__ == "VertexPusher"
    assert set(pusher.inputs) == {"model", "model_blessing"}


def test_without_optional_sections_no_optional_nodes_exist(conditions_of):
    nodes = {*CHECKS, "Trainer", "BaselineResolver", "DetectionEvaluator", "ModelCard", "Pusher"}
    assert conditions_of() == dict.fromkeys(nodes, 0)


def test_with_a_retrain_decision_training_to_push_is_conditional(nodes_of, conditions_of):
    nodes, conditions = nodes_of(RETRAIN), conditions_of(RETRAIN)
    assert set(nodes) - set(nodes_of()) == {"RetrainDecision", "TrainingRecord"}
    assert {node for node, count in conditions.items() if count == 0} == {*CHECKS, "RetrainDecision"}
    assert {node.id for node in nodes["RetrainDecision"].upstream_nodes} >= {"ExampleValidator", "DatasetValidator"}
    assert "Pusher" in {node.id for node in nodes["TrainingRecord"].upstream_nodes}  # a failed push is not recorded


def test_notifications_are_sent_after_training_and_after_skipping_it(nodes_of, conditions_of):
    nodes = nodes_of(MESSAGES)
    assert set(nodes) - set(nodes_of()) == {"Notifier"}
    assert set(nodes["Notifier"].inputs) == {"model_blessing", "pushed_model"}
    nodes = nodes_of(MESSAGES, RETRAIN)
    assert {"Notifier", "SkipNotifier"} <= set(nodes)
    assert set(nodes["SkipNotifier"].inputs) == {"decision"}
    assert conditions_of(MESSAGES, RETRAIN)["SkipNotifier"] == 1


def test_decisions_are_cached_until_a_new_record_and_pushes_never(nodes_of, read_small_run):
    again = {node.id: node for node in create_pipeline(read_small_run(RETRAIN)).components}
    assert changed_nodes(nodes_of(RETRAIN), again) == {"Pusher", "TrainingRecord"}


def test_the_model_card_reads_the_whole_run_and_is_pushed(nodes_of):
    nodes = nodes_of(STATED)
    card = nodes["ModelCard"]
    assert {name: channel.producer_component_id for name, channel in card.inputs.items()} == {
        "model": "Trainer",
        "examples": "DetectionExampleGen",
        "evaluation": "DetectionEvaluator",
        "blessing": "DetectionEvaluator",
        "dataset_report": "DatasetValidator",
        "model_run": "Trainer",
        "rejects": "DetectionExampleGen",
    }
    assert nodes["Pusher"].inputs["model_card"].producer_component_id == "ModelCard"
    params = ModelCardParams.from_properties(card.exec_properties)
    assert (params.name, params.split) == ("small", "test")
    assert params.stated.limits == ("Only on photographs.",)
    assert len(params.code_fingerprint) == len(params.trainer_fingerprint) == 16
    assert changed_nodes(nodes_of(), nodes) == {"ModelCard", "Pusher"}  # the Pusher is never cached


def test_changed_gates_are_a_reason_to_train_and_a_changed_push_folder_is_not(nodes_of, read_small_run):
    run = read_small_run(RETRAIN)
    before = training_hash(run)
    assert nodes_of(RETRAIN)["RetrainDecision"].exec_properties["config_hash"] == before
    assert training_hash(replace(run, push_to="elsewhere")) == before
    assert training_hash(replace(run, gates=replace(run.gates, baseline=None))) != before


def test_changed_splits_are_a_reason_to_train_and_changed_paths_or_devices_are_not(read_small_run):
    run = read_small_run()
    before = training_hash(run)
    elsewhere = replace(run, data=replace(run.data, path="elsewhere/{SPAN}"))
    assert training_hash(elsewhere) == before
    assert training_hash(replace(run, trainer=replace(run.trainer, strategy=Strategy(kind="one_device")))) == before
    place = {"project": "my-project", "region": "us-central1", "image": "r/detloom:2", "pipeline_root": "gs://b/r"}
    vertex = Vertex(**place, training=VertexTraining(machine_type="n1-standard-8", spot=True))
    assert training_hash(replace(run, vertex=vertex)) == before
    assert training_hash(replace(run, data=replace(elsewhere.data, num_spans=2))) != before
    assert training_hash(replace(run, data=replace(run.data, max_boxes=7))) != before
    # The distance of near-duplicates counts if it decides the splits.
    by_ratio = replace(run, data=replace(run.data, splits=None, split_by_ratio=SplitByRatio()))
    far = replace(run.checks, near_duplicates=NearDuplicateCheck(max_distance=9, threshold=0.01))
    assert training_hash(replace(by_ratio, checks=far)) != training_hash(by_ratio)
    assert training_hash(replace(run, checks=far)) == before


def test_changed_ingestion_code_is_a_reason_to_train(read_small_run, monkeypatch):
    run, hashes = read_small_run(), set()
    for digest in ("0", "2"):
        monkeypatch.setattr(
            training_nodes, "source_fingerprint", lambda name, digest=digest: digest if "example_gen" in name else "1"
        )
        hashes.add(training_hash(run))
    assert len(hashes) == 2


def test_beam_nodes_get_the_options_of_the_run_file_and_others_work_on_copies(pipeline_of):
    pipeline = pipeline_of("beam_args: [--direct_num_workers=2]", "pipeline_root: gs://bucket/root")
    assert pipeline.pipeline_info.pipeline_root == "gs://bucket/root"
    specs = {node.id: node.executor_spec for node in pipeline.components if node.id != "BaselineResolver"}
    executors = {name: getattr(spec, "executor_class", None) for name, spec in specs.items()}
    copied = {name for name, kind in executors.items() if kind and kind.__module__.endswith("local_copies")}
    assert copied == {"ModelCard", "Trainer"}
    for node in ("DetectionExampleGen", "StatisticsGen", "DatasetValidator", "DetectionEvaluator"):
        assert specs[node].beam_pipeline_args == ["--direct_num_workers=2"]


@pytest.mark.nightly
def test_the_best_hyperparameters_are_used_and_the_next_run_warm_starts(small_run, capsys):
    small_run.write_text(small_run.read_text() + SEARCH)
    run = read_run_file(small_run)
    metadata = Path(run.workspace) / "metadata.sqlite"
    run_locally(run)
    log = capsys.readouterr().err
    assert "random weights" in log
    first = read_latest_run(metadata)
    found = json.loads((first["Tuner"].folder("best_hyperparameters") / "best_hyperparameters.txt").read_text())
    factor = found["values"]["learning_rate_factor"]
    trained = json.loads((first["Trainer"].folder("model_run") / "config.json").read_text())
    rate = trained["train"]["optimizer"]["learning_rate"]["learning_rate"]
    assert rate == pytest.approx(0.001 * factor)
    scores = json.loads((first["Tuner"].folder("tuner_results") / "tuner_results.json").read_text())
    assert [row["learning_rate_factor"] for row in scores] == [factor]

    run_locally(run)
    log = capsys.readouterr().err
    second = read_latest_run(metadata)
    assert second["Tuner"].is_cached
    assert not second["Trainer"].is_cached  # now a model exists for the warm start
    model = first["Trainer"].folder("model") / "Format-Serving"
    assert str(model) in log
    restored = json.loads((second["Trainer"].folder("model_run") / "config.json").read_text())
    assert restored["train"]["fine_tune_checkpoint"] == str(model)


@pytest.mark.reliability("kill", "train")
@pytest.mark.reliability("kill", "metadata")
@pytest.mark.slow
def test_a_killed_training_run_resumes_in_the_next_pipeline_run(small_run, capsys):
    text = small_run.read_text().replace("num_steps: 4", "num_steps: 120\n  checkpoint_every_n: 4")
    small_run.write_text(text.replace("evaluate_every: 4", "evaluate_every: 60"))
    run = read_run_file(small_run)
    model_runs = Path(run.workspace) / "artifacts" / "Trainer" / "model_run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", RUN, str(small_run)], env=environment) as process:
        while not (saved := list(model_runs.glob("unfinished/*/checkpoints/ckpt-*[48].index"))):
            assert process.poll() is None, "the pipeline ended before it was killed"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    (folder,) = {path.parents[1] for path in saved}
    assert not (folder / "training_summary.json").exists()

    capsys.readouterr()
    run_locally(run)
    log = capsys.readouterr().err
    assert str(folder) in log
    assert re.search(r"from step \d+", log)
    finished = read_latest_run(Path(run.workspace) / "metadata.sqlite")["Trainer"].folder("model_run")
    assert json.loads((finished / "training_summary.json").read_text())["num_steps"] == 120
    assert {"train", "eval"} <= set(json.loads((finished / "data.json").read_text()))
    assert not folder.exists()
