"""Test retries, waits and time limits with TFX's local runner and nodes that fail on request."""

import json
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tfx import v1 as tfx
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.orchestration.portable.input_resolution import node_inputs_resolver
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing

from detloom.components.notifier import component as notifier_component
from detloom.components.resolvers.strategies import BASELINE_NODE, build_production_resolver
from detloom.pipelines.local import retries
from detloom.pipelines.local.console import log_nodes
from detloom.pipelines.local.retries import NodeFailedError, run_with_retries
from detloom.pipelines.local.run_local import run_locally
from detloom.pipelines.local.summary import read_latest_run
from detloom.pipelines.local.supervise import LOCK_FILE, hold_workspace
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.nodes import NodeSettings
from detloom.schemas.run_file.notifications import Notifications, Webhook
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.runtime.preemption import Preempted

HOOK = Notifications(webhook=Webhook(url="env:HOOK"))
QUICK = {"max_retries": 2, "backoff_seconds": 0.01, "backoff_factor": 3.0}


def note(journal: str, line: str) -> int:
    """Append a line and return how often the file contains it."""
    with open(journal, "a") as file:
        file.write(f"{line}\n")
    return Path(journal).read_text().split("\n").count(line)


@component
def Gen(journal: Parameter[str], examples: OutputArtifact[Examples]):
    note(journal, "Gen")


@component
def Trainer(examples: InputArtifact[Examples], journal: Parameter[str], model: OutputArtifact[Model]):
    failures = json.loads(Path(journal).with_suffix(".json").read_text())
    number = note(journal, "Trainer")
    kind = failures[number - 1] if number <= len(failures) else ""
    if kind == "mistake":
        raise RuntimeError("around it") from InputError("steps: got none, allowed: one.")
    if kind == "job":
        raise RuntimeError("Pipeline job-1 failed in state FAILED: x.JobMasterException: a machine is lost\n\tat y.z")
    if kind == "preempted":
        raise Preempted(15, 7, "folder")
    if kind == "slow":
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.01)
    if kind == "slow and confused":
        try:
            time.sleep(20)
        except Exception:
            raise KeyError("what a library makes of it") from None
    if kind:
        raise OSError(f"the disk is {kind}")
    (Path(model.uri) / "Format-Serving").mkdir(parents=True)


@component
def Pusher(model: InputArtifact[Model], blessing: OutputArtifact[ModelBlessing], journal: Parameter[str]):
    note(journal, "Pusher")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that makes a run of these three nodes and a resolver; `failures` are the Trainer's, per try."""
    file = tmp_path / "run.yaml"
    file.write_text("{name: small, data: {path: ., split_by_ratio: {}}, workspace: workspace}")
    run = read_run_file(file)
    workspace = Path(run.workspace)
    workspace.mkdir()
    journal = workspace / "journal.txt"

    def create_pipeline(run):
        gen = Gen(journal=str(journal))
        trainer = Trainer(examples=gen.outputs["examples"], journal=str(journal))
        folders = (str(workspace / "serving"), str(workspace / "copies"))
        baseline = build_production_resolver(*folders, trainer.outputs["model"]).with_id(BASELINE_NODE)
        pusher = Pusher(model=trainer.outputs["model"], journal=str(journal))
        pusher.add_upstream_node(baseline)
        return tfx.dsl.Pipeline(
            pipeline_name="small",
            pipeline_root=str(workspace / "artifacts"),
            components=[gen, trainer, baseline, pusher],
            enable_cache=True,
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
                str(workspace / "metadata.sqlite")
            ),
        )

    def build(failures, nodes=(), notifications=None):
        journal.with_suffix(".json").write_text(json.dumps(failures))
        return type(run)(**{**vars(run), "nodes": nodes, "notifications": notifications})

    monkeypatch.setattr(retries, "create_pipeline", create_pipeline)
    return build


def ran(run):
    return (Path(run.workspace) / "journal.txt").read_text().split()


def test_only_the_failed_node_is_retried(run, capsys):
    run = run(["full", "slow to answer"], (NodeSettings(node="Trainer", **QUICK),))
    run_with_retries(run, log_nodes(verbose=False))
    assert ran(run) == ["Gen", "Trainer", "Trainer", "Trainer", "Pusher"]
    log = capsys.readouterr().err
    assert "Trainer failed (the disk is full); try 2 of 3 in 10 ms." in log
    assert "Trainer failed (the disk is slow to answer); try 3 of 3 in 30 ms." in log
    assert log.count("[2/4] Trainer") == 3
    assert log.count("cached") == 2  # Gen


@pytest.mark.parametrize(("nodes", "num_tries"), [((NodeSettings(node="*", **QUICK),), 3), ((), 1)])
def test_the_last_failure_is_raised_unchanged_after_the_tries_of_the_settings(run, nodes, num_tries):
    run = run(["full"] * 3, nodes)
    with pytest.raises(OSError, match="the disk is full"):
        run_with_retries(run, log_nodes(verbose=False))
    assert ran(run) == ["Gen", *["Trainer"] * num_tries]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("mistake", "Trainer failed: steps: got none, allowed: one."),
        ("preempted", "Trainer ended: Training stopped by SIGTERM; saved at step 7 in folder."),
    ],
)
def test_mistakes_and_interruptions_are_not_retried(run, kind, sentence):
    run = run([kind], (NodeSettings(node="Trainer", **QUICK),))
    with pytest.raises(InputError, match=sentence):
        run_with_retries(run, log_nodes(verbose=False))
    assert ran(run) == ["Gen", "Trainer"]


def test_a_node_over_its_limit_is_retried(run, capsys):
    run = run(["slow"], (NodeSettings(node="Trainer", time_limit_minutes=0.05, **QUICK),))
    run_with_retries(run, log_nodes(verbose=False))
    assert ran(run) == ["Gen", "Trainer", "Trainer", "Pusher"]
    log = capsys.readouterr().err
    assert "Trainer failed (it took longer than its time limit of 3 s;" in log
    assert "try 2 of 3 in 10 ms." in log


@pytest.mark.parametrize("kind", ["slow", "slow and confused"])
def test_the_error_for_a_time_limit_names_node_and_limit(run, kind):
    run = run([kind], (NodeSettings(node="Trainer", time_limit_minutes=0.005),))
    with pytest.raises(NodeFailedError, match=r"^Trainer failed: it took longer than its time limit of 300 ms"):
        run_with_retries(run, log_nodes(verbose=False))
    assert read_latest_run(Path(run.workspace) / "metadata.sqlite")["Trainer"].is_failed


def test_a_beam_job_that_failed_on_a_cluster_is_one_sentence_and_retried(run, capsys):
    run = run(["job", "job"], (NodeSettings(node="Trainer", **{**QUICK, "max_retries": 1}),))
    with pytest.raises(
        NodeFailedError, match=r"^Trainer failed: the Beam job ended in state FAILED: a machine is lost"
    ):
        run_with_retries(run, log_nodes(verbose=False))
    assert "the Beam job ended in state FAILED: a machine is lost); try 2 of 2" in capsys.readouterr().err


def test_a_node_with_missing_inputs_fails_the_run(run, monkeypatch):
    # TFX logs it, marks the node as failed, and continues.
    run = run([])
    resolve = node_inputs_resolver.resolve

    def resolve_but_for_the_trainer(handle, inputs):
        if "examples" in inputs.inputs and "model" not in inputs.inputs:
            raise ValueError("lost")
        return resolve(handle, inputs)

    monkeypatch.setattr(node_inputs_resolver, "resolve", resolve_but_for_the_trainer)
    with pytest.raises(NodeFailedError, match="Trainer failed: its inputs could not be found"):
        run_with_retries(run, log_nodes(verbose=False))


@pytest.fixture
def notified(monkeypatch):
    messages = []
    monkeypatch.setattr(
        notifier_component,
        "notify_failure",
        lambda name, settings, node, error: messages.append((name, node, str(error))),
    )
    return messages


def test_a_failed_run_and_damaged_metadata_send_one_notification(run, notified):
    failed = run(["full", "full"], (NodeSettings(node="*", **{**QUICK, "max_retries": 1}),), HOOK)
    with pytest.raises(OSError, match="full"):
        run_locally(failed)
    assert notified == [("small", "Trainer", "the disk is full")]
    (Path(failed.workspace) / "metadata.sqlite").write_text("not a database")
    with pytest.raises(InputError, match="is damaged"):
        run_locally(failed)
    (_, (_, node, message)) = notified
    assert node is None
    assert "is damaged" in message


@pytest.mark.parametrize(
    ("failures", "notifications"),
    [
        (["full"], replace(HOOK, events=("refused", "pushed"))),
        (["full"], None),
        (["preempted"], HOOK),
    ],
)
def test_unwanted_failures_and_interruptions_send_no_notification(run, notified, failures, notifications):
    with pytest.raises((OSError, InputError)):
        run_locally(run(failures, (), notifications))
    assert notified == []


@pytest.mark.reliability("concurrent runs", "metadata")
def test_two_runs_in_one_workspace_are_refused(run):
    run = run([])
    with hold_workspace(Path(run.workspace)), pytest.raises(FolderBusyError):
        run_locally(run)
    assert not (Path(run.workspace) / "journal.txt").exists()


@pytest.mark.reliability("lost lease", "metadata")
def test_a_run_that_lost_its_lock_starts_no_other_node(run, monkeypatch):
    run = run([])
    workspace = Path(run.workspace)
    start = retries.TimeLimits.start

    def lose(limits, node):
        start(limits, node)
        if node == "Trainer":
            (workspace / LOCK_FILE).unlink()

    monkeypatch.setattr(retries.TimeLimits, "start", lose)
    with pytest.raises(InputError, match=rf"{LOCK_FILE}: "):
        run_locally(run)
    assert ran(run) == ["Gen", "Trainer"]


@pytest.mark.reliability("clock jump", "metadata")
def test_a_run_after_the_clock_was_moved_back_is_the_latest(run):
    """The first run failed; its times are a day ahead of those of the second."""
    first = run(["full"])
    with pytest.raises(OSError, match="the disk is full"):
        run_with_retries(first, log_nodes(verbose=False))
    metadata_file = Path(first.workspace) / "metadata.sqlite"
    with sqlite3.connect(metadata_file) as metadata:
        for table in ("Context", "Execution", "Artifact"):
            metadata.execute(f"UPDATE {table} SET create_time_since_epoch = create_time_since_epoch + 86400000")
    metadata.close()
    run_with_retries(run([]), log_nodes(verbose=False))
    nodes = read_latest_run(metadata_file)
    assert list(nodes) == ["Gen", "Trainer", "BaselineResolver", "Pusher"]
    assert not any(node.is_failed for node in nodes.values())
