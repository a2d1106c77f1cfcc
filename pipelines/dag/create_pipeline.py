"""Build the TFX pipeline; the runners decide where it executes."""

from pathlib import Path
from typing import Any

from tfx import v1 as tfx
from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.placeholder.placeholder import logical_not
from tfx.types.component_spec import ChannelParameter

from detloom.components import artifact_types
from detloom.components.fingerprints import source_fingerprint
from detloom.components.notifier.component import Notifier, NotifierParams
from detloom.components.properties import DECISION_KEY, arguments_of
from detloom.components.resolvers.strategies import build_previous_report_resolver
from detloom.components.retrain.component import RetrainDecision, TrainingRecord, training_wanted
from detloom.components.retrain.training_record import records_state
from detloom.pipelines.dag.beam_options import beam_args_of, check_beam_args
from detloom.pipelines.dag.data_nodes import (
    TRAIN,
    build_dataset_validator,
    build_example_gen,
    build_schema_gen,
    build_statistics_gen,
    has_spans,
)
from detloom.pipelines.dag.local_copies import use_local_copies
from detloom.pipelines.dag.training_nodes import (
    build_baseline,
    build_evaluator,
    build_model_card,
    build_pusher,
    build_trainer,
    build_tuner,
    build_warm_start,
    nonce,
    training_hash,
)
from detloom.schemas.run_file.run_file import Place, RunFile


def create_pipeline(run: RunFile, place: Place = "local") -> tfx.dsl.Pipeline:
    """Build the pipeline of a run file whose paths fit `place` (`read_run_file` resolves them)."""
    check_beam_args(run.beam_args)
    nodes = _build_nodes(run, place)
    for node in nodes:
        place_node(run, node, place)
    if place != "local":
        root = getattr(run, place).pipeline_root
        return tfx.dsl.Pipeline(run.name, pipeline_root=root, components=nodes, enable_cache=True)
    workspace = Path(run.workspace)
    return tfx.dsl.Pipeline(
        pipeline_name=run.name,
        pipeline_root=run.pipeline_root or str(workspace / "artifacts"),
        components=nodes,
        enable_cache=True,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
            str(workspace / "metadata.sqlite")
        ),
    )


def place_node(run: RunFile, node: BaseNode, place: Place) -> None:
    """Set a node's Beam arguments for `place`, and let it work on copies of artifacts in a bucket."""
    if place == "local" and run.pipeline_root:
        use_local_copies(node)
    if isinstance(node, BaseBeamComponent):
        node.with_beam_pipeline_args(beam_args_of(run, node.id, place))


def _build_nodes(run: RunFile, place: Place) -> list[BaseNode]:
    example_gen = build_example_gen(run)
    examples = example_gen.outputs["examples"]
    statistics_gen = build_statistics_gen(examples)
    schema_gen = build_schema_gen(run, place)
    example_validator = tfx.components.ExampleValidator(
        statistics=statistics_gen.outputs["statistics"], schema=schema_gen.outputs["schema"]
    )
    has_resolver = has_spans(run) and place == "local"
    previous_report = build_previous_report_resolver(examples) if has_resolver else None
    dataset_validator = build_dataset_validator(run, examples, previous_report, place)
    checks = [example_validator, dataset_validator]
    if run.retrain is None:
        decision, conditioned = None, _build_training(run, place, example_gen, checks, None)
    else:
        decision = RetrainDecision(
            examples,
            dataset_validator.outputs["report"],
            **_retrain_arguments(run),
            records_state=_records_state(run, place),
        )
        decision.add_upstream_nodes(checks)
        with tfx.dsl.Cond(training_wanted(decision.outputs["decision"])):
            conditioned = _build_training(run, place, example_gen, checks, decision)
    return [
        example_gen,
        statistics_gen,
        schema_gen,
        example_validator,
        *([previous_report] if previous_report else []),
        dataset_validator,
        *([decision] if decision else []),
        *conditioned,
        *_build_skip_notifier(run, place, decision),
    ]


def _build_training(
    run: RunFile, place: Place, example_gen: BaseNode, checks: list[BaseNode], decision: BaseNode | None
) -> list[BaseNode]:
    """Build the nodes that a decision not to train skips.

    Args:
        checks: DatasetValidator, which fails on bad data so that no training starts, and ExampleValidator, whose
            result is shown in the summary. Training waits for both although it reads none of their artifacts.
    """
    examples, report = example_gen.outputs["examples"], checks[-1].outputs["report"]
    tuner = build_tuner(run, examples, place) if run.tuner else None
    warm_start = build_warm_start(run, place)
    trainer = build_trainer(run, examples, tuner, warm_start, place)
    if decision is not None:  # the executors in reuse.py read it
        for node in filter(None, (trainer, tuner)):
            node.spec.INPUTS = {**node.spec.INPUTS, DECISION_KEY: ChannelParameter(type=artifact_types.RetrainDecision)}
            node.spec.inputs[DECISION_KEY] = decision.outputs[DECISION_KEY]
    (tuner or trainer).add_upstream_nodes(checks)
    baseline = build_baseline(run, trainer.outputs["model"], place)
    evaluator = build_evaluator(run, examples, report, trainer, baseline)
    model_card = build_model_card(run, example_gen, report, trainer, evaluator)
    blessing = evaluator.outputs["blessing"]
    pusher = build_pusher(run, trainer.outputs["model"], blessing, model_card.outputs["model_card"], place)
    nodes = [*(node for node in (tuner, warm_start) if node), trainer, baseline, evaluator, model_card, pusher]
    if decision is not None:
        # The nonce forces a new record even if all upstream nodes are cached: the records folder may have been emptied.
        record = TrainingRecord(
            examples,
            report,
            decision.outputs["decision"],
            trainer.outputs["model"],
            blessing,
            trainer.outputs["model_run"],
            **_retrain_arguments(run),
            nonce=nonce(place),
        )
        record.add_upstream_node(pusher)  # no record is written if the push failed
        nodes.append(record)
    if run.notifications is not None:
        nodes.append(
            Notifier(
                **arguments_of(notifier_params(run, place)),
                blessing=blessing,
                pushed_model=pusher.outputs["pushed_model"],
                decision=decision.outputs["decision"] if decision else None,
            )
        )
    return nodes


def _build_skip_notifier(run: RunFile, place: Place, decision: BaseNode | None) -> list[BaseNode]:
    if decision is None or run.notifications is None:
        return []
    with tfx.dsl.Cond(logical_not(training_wanted(decision.outputs["decision"]))):
        notifier = Notifier(**arguments_of(notifier_params(run, place)), decision=decision.outputs["decision"])
    return [notifier.with_id("SkipNotifier")]


def notifier_params(run: RunFile, place: Place) -> NotifierParams:
    """Return the parameters of the nodes that send notifications."""
    assert run.notifications is not None
    return NotifierParams(
        pipeline=run.name,
        notifications=run.notifications,
        place=place,
        kubeflow_host=run.kubeflow.public_ui if run.kubeflow and place == "kubeflow" else "",
        nonce=nonce(place),
        code_fingerprint=source_fingerprint("detloom.components.notifier.component"),
    )


def _retrain_arguments(run: RunFile) -> dict[str, Any]:
    """Return the arguments that RetrainDecision and TrainingRecord share."""
    return {
        "retrain": run.retrain,
        "checks": run.checks,
        "train_split": TRAIN,
        "config_hash": training_hash(run),
        "pipeline": run.name,
        "production": run.production,
    }


def _records_state(run: RunFile, place: Place) -> str:
    """Return the part of RetrainDecision's cache key that covers the records.

    It has no new value per run: the decision is part of the cache key of every downstream node, so a new one would
    train again after a failed push.
    """
    assert run.retrain is not None
    return records_state(run.retrain, run.name, run.production) if place == "local" else ""
