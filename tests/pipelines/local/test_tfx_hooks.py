"""Runs of small pipelines by TFX's own local runner."""

import pytest
from tfx import v1 as tfx
from tfx.dsl.component.experimental.annotations import OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.common.resolver import Resolver
from tfx.orchestration.portable import launcher
from tfx.types import Channel
from tfx.types.standard_artifacts import Examples, Model

from detloom.components.resolvers.strategies import ProductionModelStrategy
from detloom.pipelines.local.tfx_hooks import observe_nodes


@component
def Gen(number: Parameter[int], examples: OutputArtifact[Examples]):
    if number < 0:
        raise ValueError("a failure")
    examples.set_int_custom_property("number", number)


@component
def Skipped(model: OutputArtifact[Model]):
    raise AssertionError("its condition does not hold")


@pytest.fixture
def run(tmp_path):
    """Run a pipeline of three nodes; return what was observed, and the error."""

    def call(number):
        seen = []
        gen = Gen(number=number)
        with tfx.dsl.Cond(gen.outputs["examples"].future()[0].custom_property("number") > 10):
            skipped = Skipped()
        push_to = tmp_path / "serving" / "1"
        push_to.mkdir(parents=True, exist_ok=True)
        (push_to.parent / "push_record.jsonl").mkdir(exist_ok=True)  # cannot be read: the resolver fails
        config = {"push_to": str(push_to.parent), "copies": str(tmp_path / "copies")}
        resolver = Resolver(strategy_class=ProductionModelStrategy, config=config, model=Channel(type=Model))
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="p",
            pipeline_root=str(tmp_path / "root"),
            components=[gen, skipped, resolver.with_id("Broken")],
            enable_cache=True,
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
                str(tmp_path / "metadata.sqlite")
            ),
        )
        before = launcher.Launcher
        try:
            with observe_nodes(seen.append, lambda node, end: seen.append(f"{node} {end}")):
                tfx.orchestration.LocalDagRunner().run(pipeline)
        except ValueError as error:
            seen.append(str(error))
        assert launcher.Launcher is before
        return seen

    return call


def test_each_node_begins_and_ends(run):
    assert run(1) == ["Broken", "Broken failed", "Gen", "Gen done", "Skipped", "Skipped skipped"]
    assert "Gen cached" in run(1)


def test_a_node_that_raises_an_error_has_no_end(run):
    assert run(-1)[2:] == ["Gen", "a failure"]
