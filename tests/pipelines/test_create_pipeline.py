import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.create_pipeline import create_pipeline
from detloom.pipelines.run_local import run_locally
from detloom.pipelines.summary import read_latest_run
from detloom.schemas.read_run_file import read_run_file

ROOT = Path(detloom.__file__).parents[1]
SEARCH = """
trainer: {strategy: {kind: one_device}, warm_start: latest_blessed}
tuner:
  algorithm: random
  max_trials: 1
  steps_per_trial: 2
  space: [{key: learning_rate_factor, min: 0.5, max: 2.0, log: true}]
"""
RUN = """
import sys
from pathlib import Path
from detloom.pipelines.run_local import run_locally
from detloom.schemas.read_run_file import read_run_file
run_locally(read_run_file(Path(sys.argv[1])))
"""


def nodes_of(run_file):
    return {node.id: node for node in create_pipeline(read_run_file(run_file)).components}


def test_a_tuner_and_a_warm_start_are_nodes_only_where_they_are_asked_for(small_run):
    plain = nodes_of(small_run)
    small_run.write_text(small_run.read_text() + SEARCH)
    searching = nodes_of(small_run)
    assert set(searching) - set(plain) == {"Tuner", "WarmStartResolver"}
    assert {"hyperparameters", "base_model"}.isdisjoint(plain["Trainer"].inputs)
    assert searching["Trainer"].inputs["hyperparameters"].producer_component_id == "Tuner"
    assert searching["Trainer"].inputs["base_model"].producer_component_id == "WarmStartResolver"
    upstream = {node.id for node in searching["Tuner"].upstream_nodes}
    assert {"DatasetValidator", "ExampleValidator", "DetectionExampleGen"} <= upstream  # nothing trains on bad data


def test_what_changes_the_trainers_result_is_among_its_parameters(small_run):
    def config_of_trainer():
        return json.loads(nodes_of(small_run)["Trainer"].exec_properties["custom_config"])

    before = config_of_trainer()
    small_run.write_text(small_run.read_text() + SEARCH)
    after = config_of_trainer()
    assert set(before) == {"trainer_config", "strategy", "warm_start", "export", "code_fingerprint"}
    assert {key for key in before if before[key] != after[key]} == {"strategy", "warm_start"}
    assert json.loads(after["strategy"])["kind"] == "one_device"


def test_an_endpoint_of_vertex_takes_the_place_of_the_folder(small_run):
    assert nodes_of(small_run)["Pusher"].inputs["model_card"].producer_component_id == "ModelCard"
    endpoint = "{project: my-project, region: us-central1, endpoint_name: cells, container_image: gcr.io/tf}"
    small_run.write_text(small_run.read_text() + f"push: {{vertex: {endpoint}}}\n")
    pusher = nodes_of(small_run)["Pusher"]
    assert type(pusher).__name__ == "VertexPusher"
    assert set(pusher.inputs) == {"model", "model_blessing"}


@pytest.mark.slow
def test_what_a_search_finds_is_trained_with_and_the_next_run_starts_from_the_model(small_run, capsys):
    small_run.write_text(small_run.read_text() + SEARCH)
    run = read_run_file(small_run)
    metadata = Path(run.workspace) / "metadata.sqlite"
    run_locally(run)
    said = capsys.readouterr().err
    assert "No model is blessed yet: training starts from random weights." in said
    first = read_latest_run(metadata)
    found = json.loads((first["Tuner"].folder("best_hyperparameters") / "best_hyperparameters.txt").read_text())
    factor = found["values"]["learning_rate_factor"]
    trained = json.loads((first["Trainer"].folder("model_run") / "config.json").read_text())
    rate = trained["train"]["optimizer"]["learning_rate"]["learning_rate"]
    assert rate == pytest.approx(0.001 * factor)
    scores = json.loads((first["Tuner"].folder("tuner_results") / "tuner_results.json").read_text())
    assert [row["learning_rate_factor"] for row in scores] == [factor]

    run_locally(run)
    said = capsys.readouterr().err
    second = read_latest_run(metadata)
    assert second["Tuner"].is_cached
    assert not second["Trainer"].is_cached  # there is a model to start from now
    model = first["Trainer"].folder("model") / "Format-Serving"
    assert f"Training starts from the model {model} instead of random weights." in said
    restored = json.loads((second["Trainer"].folder("model_run") / "config.json").read_text())
    assert restored["train"]["fine_tune_checkpoint"] == str(model)


@pytest.mark.slow
def test_a_pipeline_that_was_killed_in_training_goes_on_there(small_run, capsys):
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
    said = capsys.readouterr().err
    assert f"This training was begun before; it goes on from {folder}." in said
    assert "Training goes on from step " in said
    finished = read_latest_run(Path(run.workspace) / "metadata.sqlite")["Trainer"].folder("model_run")
    assert json.loads((finished / "training_summary.json").read_text())["num_steps"] == 120
    assert set(json.loads((finished / "data.json").read_text())) == {"train", "eval"}
    assert not folder.exists()
