"""The strategies alone, and runs of small pipelines of stubs on real ML Metadata, so that TFX does the resolving."""

import uuid
from pathlib import Path

import ml_metadata as mlmd
import pytest
from artifacts import make_artifact
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.orchestration import metadata
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.pipeline import Pipeline
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing

from detloom.components.artifact_types import DatasetReport
from detloom.components.pusher.manifest import Origin
from detloom.components.pusher.push import push_model, roll_back
from detloom.components.resolvers.strategies import (
    PreviousReportStrategy,
    ProductionModelStrategy,
    build_previous_report_resolver,
    build_production_resolver,
)
from detloom.schemas.errors import InputError


@component
def StubTrainer(config: Parameter[str], model: OutputArtifact[Model]):
    folder = Path(model.uri) / "Format-Serving"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text(config)


@component
def StubEvaluator(
    log: Parameter[str],
    bless: Parameter[int],
    model: InputArtifact[Model],
    blessing: OutputArtifact[ModelBlessing],
    baseline_model: InputArtifact[Model] = None,
):
    names = [
        (Path(each.uri) / "Format-Serving/saved_model.pb").read_text() if each else "none"
        for each in (model, baseline_model)
    ]
    with open(log, "a") as file:
        file.write(f"{names[0]} against {names[1]}\n")
    blessing.set_int_custom_property("blessed", bless)


@component
def StubPusher(
    push_to: Parameter[str],
    nonce: Parameter[str],
    model: InputArtifact[Model],
    blessing: InputArtifact[ModelBlessing],
):
    if blessing.get_int_custom_property("blessed"):
        origin = Origin(model_uri=model.uri)
        push_model(Path(model.uri) / "Format-Serving", push_to, origin=origin, check=lambda folder: None)


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
def push_to(tmp_path):
    return str(tmp_path / "pushed")


@pytest.fixture
def run(run_components, push_to, tmp_path):
    """Run the pipeline; return the evaluator's inputs, or [] if its result came from the cache."""

    def call(config, bless=1):
        trainer = StubTrainer(config=config)
        resolver = build_production_resolver(push_to, str(tmp_path / "copies"), trainer.outputs["model"])
        evaluator = StubEvaluator(
            log=str(tmp_path / "log"),
            bless=bless,
            model=trainer.outputs["model"],
            baseline_model=resolver.outputs["model"],
        )
        pusher = StubPusher(
            push_to=push_to,
            nonce=uuid.uuid4().hex,
            model=trainer.outputs["model"],
            blessing=evaluator.outputs["blessing"],
        )
        return run_components(trainer, resolver, evaluator, pusher)

    return call


def push_by_hand(make_model, push_to, name):
    push_model(make_model(name), push_to, check=lambda folder: None)


def roll_back_now(push_to):
    roll_back(push_to, reason="worse", check=lambda folder: None)


def test_the_blessed_model_before_the_candidate_is_the_baseline_and_an_unchanged_run_is_cached(run, tmp_path):
    assert run("one") == ["one against none"]
    assert run("one") == []
    assert run("two") == ["two against one"]
    assert run("two") == []
    assert run("bad", bless=0) == ["bad against two"]
    assert run("three") == ["three against two"]
    assert run("one") == ["one against three"]
    assert not (tmp_path / "copies").exists()  # the artifacts that were pushed are used


def test_after_a_rollback_the_restored_model_is_the_baseline(run, push_to):
    run("one")
    run("two")
    roll_back_now(push_to)
    assert run("three", bless=0) == ["three against one"]
    assert run("two", bless=0) == ["two against one"]
    assert run("one") == []  # it serves now, and the model before it was rolled back: as in its first run


def test_a_model_that_was_pushed_by_hand_is_the_baseline(run, make_model, push_to, tmp_path):
    run("one")
    push_by_hand(make_model, push_to, "elsewhere")
    assert run("two", bless=0) == ["two against elsewhere"]
    assert run("two", bless=0) == []  # the same copy
    assert len(list((tmp_path / "copies").iterdir())) == 1


@pytest.mark.reliability("torn file", "evaluate")
def test_an_artifact_that_changed_after_its_push_is_not_the_baseline(run, tmp_path):
    run("one")
    (graph,) = tmp_path.glob("root/StubTrainer/model/*/Format-Serving/saved_model.pb")
    graph.write_text("changed")
    assert run("two") == ["two against one"]


@pytest.mark.reliability("kill", "metadata")
def test_a_copy_that_was_killed_before_it_was_registered_is_used(make_model, push_to, tmp_path, monkeypatch):
    push_by_hand(make_model, push_to, "elsewhere")
    store = mlmd.MetadataStore(metadata.sqlite_metadata_connection_config(str(tmp_path / "m.sqlite")))
    strategy = ProductionModelStrategy(push_to, str(tmp_path / "copies"))

    def resolve():
        ((key, (model,)),) = strategy.resolve_artifacts(store, {"model": []}).items()
        assert key == "model"
        return model

    first, again = resolve(), resolve()
    assert (first.id, first.uri) == (again.id, again.uri)
    assert (Path(first.uri) / "Format-Serving/saved_model.pb").read_bytes() == b"elsewhere"
    strategy = ProductionModelStrategy(push_to, str(tmp_path / "others"))
    monkeypatch.setattr(mlmd.MetadataStore, "put_artifact_type", fail)
    with pytest.raises(RuntimeError):
        resolve()
    monkeypatch.undo()
    assert resolve().uri.startswith(str(tmp_path / "others"))


def fail(*arguments, **named):
    raise RuntimeError("killed")


def test_a_version_that_was_damaged_is_an_error_that_is_logged(make_model, push_to, tmp_path, caplog):
    push_by_hand(make_model, push_to, "elsewhere")
    (graph,) = tmp_path.glob("pushed/*/saved_model.pb")
    graph.write_text("changed")
    with pytest.raises(InputError):
        ProductionModelStrategy(push_to, str(tmp_path / "copies")).resolve_artifacts(None, {"model": []})
    assert str(graph.parent) in caplog.text


def test_without_a_version_there_is_no_model(push_to, tmp_path):
    strategy = ProductionModelStrategy(push_to, str(tmp_path / "copies"))
    assert strategy.resolve_artifacts(None, {"model": [], "candidate": []}) == {"model": [], "candidate": []}


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
        make_artifact(DatasetReport, artifact_id=number, span=span)
        for number, span in ((2, 1), (7, 3), (9, 3), (8, 2), (10, 4))
    ]
    assert resolve_report(make_artifact(Examples, artifact_id=1, span=4), *reports) == [9]


@pytest.mark.parametrize(
    ("span", "reports"),
    [({"span": 3}, [{"span": 3}]), ({"span": 3}, []), ({}, [{"span": 0}]), ({"span": 3}, [{}])],
    ids=["same span", "no report", "examples without span", "report without span"],
)
def test_without_an_earlier_span_no_report_is_resolved(span, reports):
    made = [make_artifact(DatasetReport, artifact_id=2, **properties) for properties in reports]
    assert resolve_report(make_artifact(Examples, artifact_id=1, **span), *made) == []
