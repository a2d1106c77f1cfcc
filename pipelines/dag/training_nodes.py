"""Build the nodes that train, evaluate and push."""

import hashlib
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tfx import v1 as tfx
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types.channel import BaseChannel

from detloom.components.evaluator.component import DetectionEvaluator
from detloom.components.fingerprints import source_fingerprint
from detloom.components.model_card.component import ModelCard
from detloom.components.properties import CODE_FINGERPRINT
from detloom.components.pusher.component import DetectionPusher
from detloom.components.resolvers.production_model import ProductionModel
from detloom.components.resolvers.strategies import BASELINE_NODE, WARM_START_NODE, build_production_resolver
from detloom.components.retrain.reuse import ReusingTrainer, ReusingTuner
from detloom.pipelines.dag.data_nodes import EVAL, TEST, TRAIN
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.strategy import Strategy
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.run_file import Place, RunFile
from detloom.trainer_module.tfx_run import CONFIG_KEY, EXPORT_KEY, STRATEGY_KEY, TUNER_KEY, WARM_START_KEY

CODE_OF = "code of"  # beginning of the names of parts of `training_hash` that are code
_ANY_DATA = "{SPAN}"  # placeholder that replaces the data path in the hash
_Node = TypeVar("_Node", bound=BaseComponent)


def nonce(place: Place) -> str:
    """Return a new value for each local run, to avoid the cache; a compiled job disables the cache per node instead."""
    return uuid.uuid4().hex if place == "local" else ""


def build_tuner(run: RunFile, examples: BaseChannel, place: Place) -> tfx.components.Tuner:
    assert run.tuner is not None
    job = _custom_job(run, place, "Tuner")
    tuner = tfx.components.Tuner(
        tuner_fn="detloom.trainer_module.tuner_fn",
        examples=examples,
        train_args=tfx.proto.TrainArgs(splits=[TRAIN], num_steps=run.tuner.steps_per_trial),
        eval_args=tfx.proto.EvalArgs(splits=[EVAL]),
        custom_config={
            **training_settings(run.config, run.trainer.strategy),
            TUNER_KEY: to_canonical_json(run.tuner),
            **job,
        },
    )
    return _with_executor(tuner, ReusingTuner, "TunerExecutor" if job else "")


def build_warm_start(run: RunFile, place: Place) -> BaseNode | None:
    """Return the node whose output `model` initializes the training, if any."""
    if run.trainer.warm_start == "none":
        return None
    return _production_model(run, place, WARM_START_NODE, "WarmStartModel")


def build_trainer(
    run: RunFile, examples: BaseChannel, tuner: BaseNode | None, warm_start: BaseNode | None, place: Place
) -> tfx.components.Trainer:
    job = _custom_job(run, place, "Trainer")
    trainer = tfx.components.Trainer(
        run_fn="detloom.trainer_module.run_fn",
        examples=examples,
        hyperparameters=tuner.outputs["best_hyperparameters"] if tuner else None,
        base_model=warm_start.outputs["model"] if warm_start else None,
        train_args=tfx.proto.TrainArgs(splits=[TRAIN], num_steps=run.train.num_steps),
        eval_args=tfx.proto.EvalArgs(splits=[EVAL]),
        custom_config={
            **training_settings(run.config, run.trainer.strategy),
            WARM_START_KEY: run.trainer.warm_start,
            EXPORT_KEY: to_canonical_json(run.export),
            **job,
        },
    )
    return _with_executor(trainer, ReusingTrainer, "TrainerExecutor" if job else "")


def build_baseline(run: RunFile, candidate: BaseChannel, place: Place) -> BaseNode:
    """Return the node whose output `model` is the baseline; the output is empty if there is no other model."""
    return _production_model(run, place, BASELINE_NODE, "ProductionModel", candidate)


def build_evaluator(
    run: RunFile, examples: BaseChannel, dataset_report: BaseChannel, trainer: BaseNode, baseline: BaseNode
) -> DetectionEvaluator:
    return DetectionEvaluator(
        examples=examples,
        model=trainer.outputs["model"],
        baseline_model=baseline.outputs["model"],
        dataset_report=dataset_report,
        model_run=trainer.outputs["model_run"],
        split=TEST,
        settings=run.evaluator,
        gates=run.gates,
    )


def build_model_card(
    run: RunFile, example_gen: BaseNode, dataset_report: BaseChannel, trainer: BaseNode, evaluator: BaseNode
) -> ModelCard:
    return ModelCard(
        trainer.outputs["model"],
        name=run.name,
        split=TEST,
        stated=run.model_card,
        evaluator=run.evaluator,
        examples=example_gen.outputs["examples"],
        evaluation=evaluator.outputs["evaluation"],
        blessing=evaluator.outputs["blessing"],
        dataset_report=dataset_report,
        model_run=trainer.outputs["model_run"],
        rejects=example_gen.outputs["rejects"],
    )


def build_pusher(run: RunFile, model: BaseChannel, blessing: BaseChannel, card: BaseChannel, place: Place) -> BaseNode:
    if run.push.vertex is not None:
        from detloom.components.pusher.vertex import VertexPusher, vertex_custom_config  # late: Google's clients

        return VertexPusher(
            model=model,
            model_blessing=blessing,
            custom_config=vertex_custom_config(run.push.vertex, run.push.allow_class_change),
        ).with_id("Pusher")
    folder = tfx.proto.PushDestination.Filesystem(base_directory=run.push_to)
    return DetectionPusher(
        model=model,
        model_blessing=blessing,
        model_card=card,
        push_destination=tfx.proto.PushDestination(filesystem=folder),
        settings=run.push,
        custom_config={"nonce": nonce(place)},  # never cached
    ).with_id("Pusher")


def training_hash(run: RunFile) -> str:
    """Return JSON with 16 hex digits for each part of what, with the data, determines the model and its blessing.

    The data path and the devices are not included: moving either is no reason to train again.
    """
    training = training_settings(run.config, run.trainer.strategy)
    is_divided = run.data.split_by_ratio is not None or (run.data.splits is not None and run.data.splits.cut_share)
    distance = run.checks.near_duplicates.max_distance if is_divided else None
    parts = {
        "data": f"{to_canonical_json(replace(run.data, path=_ANY_DATA))}{distance}",
        f"{CODE_OF} DetectionExampleGen": source_fingerprint("detloom.components.example_gen.component"),
        "model and training": training[CONFIG_KEY],
        f"{CODE_OF} the Trainer": training[CODE_FINGERPRINT],
        "trainer.warm_start": run.trainer.warm_start,
        "tuner": to_canonical_json(run.tuner) if run.tuner else "",
        "export": to_canonical_json(run.export),
        "evaluator": to_canonical_json(run.evaluator),
        "gates": to_canonical_json(run.gates),
        "push.allow_class_change": run.push.allow_class_change,
    }
    hashes = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in parts.items()}
    return json.dumps(hashes)


def training_settings(config: TrainEvalConfig, strategy: Strategy) -> dict[str, str]:
    """Return the part of `custom_config` that Tuner and Trainer share."""
    return {
        CONFIG_KEY: to_canonical_json(config),
        STRATEGY_KEY: to_canonical_json(strategy),
        CODE_FINGERPRINT: source_fingerprint("detloom.trainer_module"),
    }


def _custom_job(run: RunFile, place: Place, node_id: str) -> dict[str, Any]:
    """Return the `custom_config` of a custom job of Vertex AI; empty if the node trains in its own container."""
    if place != "vertex":
        return {}
    from detloom.pipelines.dag.vertex_training import custom_job_config  # imported here: needs google-cloud-aiplatform

    return custom_job_config(run, node_id)


def _with_executor(node: _Node, executor: type[BaseExecutor], in_custom_job: str) -> _Node:
    """Set the executor, or by its name the one that starts a custom job of Vertex AI."""
    if not in_custom_job:
        node.executor_spec = ExecutorClassSpec(executor)
        return node
    from detloom.pipelines.dag import (
        vertex_training_job as training_job,  # imported here: needs google-cloud-aiplatform
    )

    node.executor_spec = ExecutorClassSpec(getattr(training_job, in_custom_job))
    return node


def _production_model(
    run: RunFile, place: Place, resolver_id: str, component_id: str, candidate: BaseChannel | None = None
) -> BaseNode:
    """Return the node whose output `model` is the model that serves now, other than the candidate.

    The compilers for clusters support no strategy that could find it.
    """
    if place == "local":
        copies = str(Path(run.workspace) / "artifacts" / component_id)
        return build_production_resolver(run.push_to, copies, candidate).with_id(resolver_id)
    return ProductionModel(
        production=run.production,
        candidate=candidate,
    ).with_id(component_id)
