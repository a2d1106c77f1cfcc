"""Three runs of a small pipeline on real metadata; the stubs cost nothing, the resolving is TFX's own."""

from pathlib import Path

import pytest
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base import base_node
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.orchestration import metadata
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.pipeline import Pipeline
from tfx.types import Channel
from tfx.types.standard_artifacts import Model, ModelBlessing

from detloom.components.baseline_resolver.strategy import NODE_ID, BaselineStrategy, build_baseline_resolver


@component
def StubTrainer(config: Parameter[str], model: OutputArtifact[Model]):
    Path(model.uri).mkdir(parents=True, exist_ok=True)
    (Path(model.uri) / "config").write_text(config)


@component
def StubEvaluator(
    log: Parameter[str],
    bless: Parameter[int],
    model: InputArtifact[Model],
    blessing: OutputArtifact[ModelBlessing],
    baseline_model: InputArtifact[Model] = None,
):
    baseline = (Path(baseline_model.uri) / "config").read_text() if baseline_model else "none"
    with open(log, "a") as file:
        file.write(f"{(Path(model.uri) / 'config').read_text()} against {baseline}\n")
    blessing.set_int_custom_property("blessed", bless)
    blessing.set_int_custom_property("current_model_id", model.id)


@pytest.fixture
def run(tmp_path):
    """Runs the pipeline; returns what the evaluator was given, or [] when it was answered from the cache."""
    log = tmp_path / "log"

    def call(config, bless=1):
        log.write_text("")
        trainer = StubTrainer(config=config)
        resolver = build_baseline_resolver(trainer.outputs["model"])
        evaluator = StubEvaluator(
            log=str(log),
            bless=bless,
            model=trainer.outputs["model"],
            baseline_model=resolver.outputs["model"],
        )
        LocalDagRunner().run(
            Pipeline(
                pipeline_name="p",
                pipeline_root=str(tmp_path / "root"),
                components=[trainer, resolver, evaluator],
                enable_cache=True,
                metadata_connection_config=metadata.sqlite_metadata_connection_config(str(tmp_path / "m.sqlite")),
            )
        )
        return log.read_text().splitlines()

    return call


def test_an_unchanged_run_is_cached_and_a_changed_one_finds_the_first_model(run):
    assert run("one") == ["one against none"]
    assert run("one") == []
    assert run("two") == ["two against one"]
    assert run("two") == []


def test_a_model_that_was_not_blessed_is_no_baseline(run):
    assert run("one", bless=1) == ["one against none"]
    assert run("bad", bless=0) == ["bad against one"]
    assert run("three") == ["three against one"]


def test_going_back_to_an_earlier_blessed_model_compares_it_with_the_later_one(run):
    run("one")
    run("two")
    assert run("one") == ["one against two"]


def make_artifact(kind, artifact_id, **properties):
    artifact = kind()
    artifact.id = artifact_id
    for key, value in properties.items():
        artifact.set_int_custom_property(key, value)
    return artifact


def test_the_input_lists_are_left_as_they_are():
    models = [make_artifact(Model, artifact_id) for artifact_id in (1, 2)]
    blessings = [make_artifact(ModelBlessing, 3, blessed=1, current_model_id=2)]
    inputs = {"candidate": models[1:], "model": list(models), "model_blessing": list(blessings)}
    resolved = BaselineStrategy().resolve_artifacts(None, inputs)
    assert resolved == {"candidate": models[1:], "model": [], "model_blessing": []}
    assert inputs["model"] == models


def test_the_resolver_is_a_node_with_the_stock_keys():
    resolver = build_baseline_resolver(Channel(type=Model))
    assert isinstance(resolver, base_node.BaseNode)
    assert resolver.id == NODE_ID
    assert sorted(resolver.outputs) == ["candidate", "model", "model_blessing"]
    assert issubclass(BaselineStrategy, LatestBlessedModelStrategy)
