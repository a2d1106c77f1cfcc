"""Fixtures: a small ML Metadata store as TFX 1.16 writes it, with push folder and artifact files.

It has two runs: the first trains without a warm start and is pushed as version 100; the second starts from that model,
is compared with it, and is pushed as version 200. Ids count from 1 in the order of creation.
"""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

CONFIG = json.dumps(
    {
        "model": {
            "feature_extractor": {"backbone": "mobilenet_v2", "neck": {"type": "Fpn"}},
            "image_resizer": {"type": "FixedShapeResizer", "height": 320, "width": 320},
        },
        "train": {
            "num_steps": 40,
            "batch_size": 8,
            "optimizer": {"type": "AdamWOptimizer", "learning_rate": {"type": "Constant", "learning_rate": 0.001}},
            "fine_tune_checkpoint": "",
        },
    }
)


class StoreBuilder:
    """Writes artifacts, executions and events through ml_metadata."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "metadata.sqlite"
        config = pb.ConnectionConfig()
        config.sqlite.filename_uri = str(self.path)
        config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        self.store = mlmd.MetadataStore(config)

    def artifact(self, type_name: str, name: str, *, has_files: bool = True, **properties: Any) -> int:
        """Add an artifact and return its id; `has_files` creates its folder."""
        uri = self.folder / "artifacts" / name
        if has_files:
            uri.mkdir(parents=True, exist_ok=True)
        artifact_type = self.store.put_artifact_type(pb.ArtifactType(name=type_name))
        artifact = pb.Artifact(type_id=artifact_type, uri=str(uri), state=pb.Artifact.LIVE)
        _set(artifact, properties)
        return int(self.store.put_artifacts([artifact])[0])

    def run(self, name: str) -> int:
        """Add the context of a pipeline run."""
        context_type = self.store.put_context_type(pb.ContextType(name="pipeline_run"))
        return int(self.store.put_contexts([pb.Context(type_id=context_type, name=name)])[0])

    def execution(
        self,
        type_name: str,
        run: int,
        inputs: dict[str, list[int]],
        outputs: dict[str, list[int]],
        *,
        state: int = pb.Execution.COMPLETE,
        **properties: Any,
    ) -> int:
        execution_type = self.store.put_execution_type(pb.ExecutionType(name=type_name))
        execution = pb.Execution(type_id=execution_type, last_known_state=state)
        _set(execution, properties)
        events = [
            (self.store.get_artifacts_by_id([artifact])[0], _event(artifact, kind, key, index))
            for kind, paths in ((pb.Event.INPUT, inputs), (pb.Event.OUTPUT, outputs))
            for key, artifacts in paths.items()
            for index, artifact in enumerate(artifacts)
        ]
        context = self.store.get_contexts_by_id([run])[0]
        return int(self.store.put_execution(execution, events, [context])[0])

    def write(self, artifact: int, name: str, value: Any) -> None:
        """Write a JSON file of an artifact."""
        path = Path(self.store.get_artifacts_by_id([artifact])[0].uri) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value), encoding="utf-8")

    def uri(self, artifact: int) -> str:
        return str(self.store.get_artifacts_by_id([artifact])[0].uri)


def _set(thing: Any, properties: dict[str, Any]) -> None:
    for name, value in properties.items():
        field = {int: "int_value", float: "double_value", str: "string_value"}[type(value)]
        setattr(thing.custom_properties[name.replace("__", " ")], field, value)


def _event(artifact: int, kind: int, key: str, index: int) -> pb.Event:
    event = pb.Event(artifact_id=artifact, type=kind)
    event.path.steps.add().key = key
    event.path.steps.add().index = index
    return event


class TwoRuns(StoreBuilder):
    """A workspace with both runs, and the folder `serving/` with both versions."""

    def __init__(self, workspace: Path) -> None:
        workspace.mkdir(parents=True, exist_ok=True)
        super().__init__(workspace)
        self.push_dir = workspace / "serving"
        self.first = self._add_run("first", None)
        self.second = self._add_run("second", self.first["model"])
        for version, run, previous in ((100, self.first, None), (200, self.second, 100)):
            self.push(version, self.uri(run["model"]), previous)

    def copy_to(self, workspace: Path) -> "TwoRuns":
        """Copy the workspace, with its addresses changed to the new folder; faster than to write another one."""
        shutil.copytree(self.folder, workspace)
        old, new = str(self.folder), str(workspace)
        with sqlite3.connect(workspace / "metadata.sqlite") as database:
            for table, column in (("Artifact", "uri"), ("ArtifactProperty", "string_value")):
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
        database.close()
        record = workspace / "serving" / "push_record.jsonl"
        record.write_text(record.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        copied = TwoRuns.__new__(TwoRuns)
        StoreBuilder.__init__(copied, workspace)
        copied.push_dir, copied.first, copied.second = workspace / "serving", self.first, self.second
        return copied

    def push(self, version: int, model_uri: str, previous: int | None, **more: Any) -> None:
        (self.push_dir / str(version)).mkdir(parents=True)
        record = {
            "time": "2026-03-01T12:30:00+00:00",
            "version": version,
            "model_uri": model_uri,
            "manifest_sha256": "ab" * 32,
            "previous_version": previous,
            **more,
        }
        with (self.push_dir / "push_record.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _add_run(self, name: str, base: int | None) -> dict[str, int]:
        span = 1 if base is None else 2
        run = self.run(name)
        fingerprint = f"split:data,num_files:3\nfiles:42,sha256:{'0' * 63}{span}"
        made = {
            "examples": self.artifact("Examples", f"examples/{name}", span=span, input_fingerprint=fingerprint),
            "rejects": self.artifact("detloom.Rejects", f"rejects/{name}"),
            "report": self.artifact("detloom.DatasetReport", f"report/{name}"),
            "model": self.artifact("Model", f"model/{name}"),
            "model_run": self.artifact("ModelRun", f"model_run/{name}"),
            "evaluation": self.artifact("ModelEvaluation", f"evaluation/{name}"),
            "metrics": self.artifact("system.Metrics", f"metrics/{name}", AP=0.25 * span, AP50=0.375 * span),
            "blessing": self.artifact("ModelBlessing", f"blessing/{name}", blessed=1, blessing_message="Blessed: yes."),
            "pushed": self.artifact(
                "PushedModel",
                f"pushed/{name}",
                pushed=1,
                pushed_version=str(100 * span),
                pushed_destination=str(self.push_dir / str(100 * span)),
            ),
        }
        self._add_executions(run, made, base, span)
        self.write(made["rejects"], "report.json", {"num_in": 30, "num_quarantined": 2, **_splits(20, 5, 3)})
        self.write(made["report"], "report.json", {"verdict": "warned", "sentence": "Of 21 checks, 1 warned."})
        self.write(made["model_run"], "training_summary.json", {"best_step": 30, "num_steps": 40, "best": {"AP": 0.5}})
        self.write(made["evaluation"], "metrics.json", {"baseline": {"AP": 0.25} if base else None})
        return made

    def _add_executions(self, run: int, made: dict[str, int], base: int | None, span: int) -> None:
        def some(*keys: str) -> dict[str, list[int]]:
            return {key: [made[key]] for key in keys}

        self.execution(
            "detloom.components.example_gen.component.DetectionExampleGen",
            run,
            {},
            some("examples", "rejects"),
            input_base="/data/digits",
            format="coco",
            data_folders=json.dumps([f"span-{span}"]),
            code_fingerprint="c0de",
        )
        validator = "detloom.components.dataset_validator.component.DatasetValidator"
        self.execution(validator, run, some("examples"), some("report"))
        self.execution(
            "tfx.components.trainer.component.Trainer",
            run,
            {**some("examples"), **({"base_model": [base]} if base else {})},
            some("model", "model_run"),
            custom_config=json.dumps({"trainer_config": CONFIG, "code_fingerprint": "feed"}),
        )
        self.execution(
            "detloom.components.evaluator.component.DetectionEvaluator",
            run,
            {
                **some("examples", "model"),
                "dataset_report": [made["report"]],
                **({"baseline_model": [base]} if base else {}),
            },
            some("evaluation", "metrics", "blessing"),
            split="test",
        )
        self.execution(
            "tfx.components.pusher.component.Pusher",
            run,
            {"model": [made["model"]], "model_blessing": [made["blessing"]]},
            {"pushed_model": [made["pushed"]]},
        )


def _splits(train: int, eval_: int, test: int) -> dict[str, Any]:
    counts = {"train": train, "eval": eval_, "test": test}
    return {"splits": {name: {"num_written": count} for name, count in counts.items()}}


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> TwoRuns:
    """Return the two runs, which tests must not change."""
    return TwoRuns(tmp_path_factory.mktemp("lineage") / "workspace")


@pytest.fixture
def own_runs(two_runs: TwoRuns, tmp_path: Path) -> TwoRuns:
    """Return two runs that the test can change."""
    return two_runs.copy_to(tmp_path / "workspace")
