"""The strategies alone, and runs of small pipelines of stubs on real ML Metadata, so that TFX does the resolving."""

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
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing

from detloom.components.artifact_types import DatasetReport
from detloom.components.resolvers.strategies import (
    BASELINE_NODE,
    PREVIOUS_REPORT_NODE,
    WARM_START_NODE,
    BaselineStrategy,
    PreviousReportStrategy,
    build_baseline_resolver,
    build_previous_report_resolver,
    build_warm_start_resolver,
)


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
def run_components(tmp_path):
    """Run a pipeline with a cache; return the lines that its components wrote to the file `log`."""

    def call(*components):
        log = tmp_path / "log"
        log.write_text("")
        LocalDagRunner().run(
            Pipeline(
                pipeline_name="p",
                pipeline_root=str(tmp_path / "root"),
                components=list(components),
                enable_cache=True,
                metadata_connection_config=metadata.sqlite_metadata_connection_config(str(tmp_path / "m.sqlite")),
            )
        )
        return log.read_text().splitlines()

    return call


@pytest.fixture
def run(run_components, tmp_path):
    """Run the pipeline; return the evaluator's inputs, or [] if its result came from the cache."""

    def call(config, bless=1):
        trainer = StubTrainer(config=config)
        resolver = build_baseline_resolver(trainer.outputs["model"])
        evaluator = StubEvaluator(
            log=str(tmp_path / "log"),
            bless=bless,
            model=trainer.outputs["model"],
            baseline_model=resolver.outputs["model"],
        )
        return run_components(trainer, resolver, evaluator)

    return call


def test_an_unchanged_run_is_cached_and_a_changed_one_finds_the_first_model(run):
    assert run("one") == ["one against none"]
    assert run("one") == []
    assert run("two") == ["two against one"]
    assert run("two") == []


def test_a_model_that_is_not_blessed_is_not_a_baseline(run):
    assert run("one", bless=1) == ["one against none"]
    assert run("bad", bless=0) == ["bad against one"]
    assert run("three") == ["three against one"]


def test_an_earlier_model_that_returns_is_compared_with_the_latest_blessed_model(run):
    run("one")
    run("two")
    assert run("one") == ["one against two"]


def make_artifact(kind, artifact_id, **properties):
    artifact = kind()
    artifact.id = artifact_id
    for key, value in properties.items():
        artifact.set_int_custom_property(key, value)
    return artifact


def test_input_lists_are_not_modified():
    models = [make_artifact(Model, artifact_id) for artifact_id in (1, 2)]
    blessings = [make_artifact(ModelBlessing, 3, blessed=1, current_model_id=2)]
    inputs = {"candidate": models[1:], "model": list(models), "model_blessing": list(blessings)}
    resolved = BaselineStrategy().resolve_artifacts(None, inputs)
    assert resolved == {"candidate": models[1:], "model": [], "model_blessing": []}
    assert inputs["model"] == models


def test_the_baseline_node_has_the_stock_outputs():
    resolver = build_baseline_resolver(Channel(type=Model))
    assert isinstance(resolver, base_node.BaseNode)
    assert resolver.id == BASELINE_NODE
    assert sorted(resolver.outputs) == ["candidate", "model", "model_blessing"]
    assert issubclass(BaselineStrategy, LatestBlessedModelStrategy)


@component
def StubExampleGen(span: Parameter[int], examples: OutputArtifact[Examples]):
    examples.set_int_custom_property("span", span)


@component
def StubValidator(
    log: Parameter[str],
    examples: InputArtifact[Examples],
    report: OutputArtifact[DatasetReport],
    previous_report: InputArtifact[DatasetReport] = None,
):
    span = examples.get_int_custom_property("span")
    previous = previous_report.get_int_custom_property("span") if previous_report else "none"
    with open(log, "a") as file:
        file.write(f"{span} against {previous}\n")
    report.set_int_custom_property("span", span)


def test_a_span_is_compared_with_the_previous_span_and_an_unchanged_run_is_cached(run_components, tmp_path):
    def run(span):
        generator = StubExampleGen(span=span)
        resolver = build_previous_report_resolver(generator.outputs["examples"])
        validator = StubValidator(
            log=str(tmp_path / "log"),
            examples=generator.outputs["examples"],
            previous_report=resolver.outputs["report"],
        )
        return run_components(generator, resolver, validator)

    assert run(1) == ["1 against none"]
    assert run(1) == []  # cached
    assert run(2) == ["2 against 1"]
    assert run(2) == []


def resolve_report(examples, *reports):
    inputs = {"examples": [examples], "report": list(reports)}
    resolved = PreviousReportStrategy().resolve_artifacts(None, inputs)
    assert inputs == {"examples": [examples], "report": list(reports)}
    assert resolved["examples"] == [examples]
    return [report.id for report in resolved["report"]]


def test_the_newest_of_several_reports_on_one_span_is_resolved():
    reports = [
        make_artifact(DatasetReport, number, span=span) for number, span in ((2, 1), (7, 3), (9, 3), (8, 2), (10, 4))
    ]
    assert resolve_report(make_artifact(Examples, 1, span=4), *reports) == [9]


def test_without_an_earlier_span_no_report_is_resolved():
    assert resolve_report(make_artifact(Examples, 1, span=3), make_artifact(DatasetReport, 2, span=3)) == []
    assert resolve_report(make_artifact(Examples, 1, span=3)) == []


def test_artifacts_without_a_span_are_ignored():
    assert resolve_report(make_artifact(Examples, 1), make_artifact(DatasetReport, 2, span=0)) == []
    assert resolve_report(make_artifact(Examples, 1, span=3), make_artifact(DatasetReport, 2)) == []


def test_the_previous_report_node_outputs_the_report():
    resolver = build_previous_report_resolver(Channel(type=Examples))
    assert isinstance(resolver, base_node.BaseNode)
    assert resolver.id == PREVIOUS_REPORT_NODE
    assert resolver.outputs["report"].type is DatasetReport


def test_the_latest_blessed_model_is_resolved_by_tfxs_strategy():
    """The KFP v2 compiler supports this strategy by name."""
    node = build_warm_start_resolver()
    assert node.id == WARM_START_NODE
    assert node._strategy_class is LatestBlessedModelStrategy
    assert set(node.outputs) == {"model", "model_blessing"}
