"""What is said of a training: its configuration, what it started from, its best checkpoint."""

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage import artifact_files as files
from detloom.pipelines.lineage.graph import Node, make_node
from detloom.pipelines.lineage.store import artifact_id, custom_property, node_name
from detloom.pipelines.lineage.values import (
    DIGEST_CHARS,
    execution_facts,
    format_count,
    format_duration,
    format_score,
    format_scores,
    mapping_of,
    object_of,
    text_of,
    whole_of,
)

_MAX_HYPERPARAMETERS = 50


def describe_checkpoint(trainer: pb.Execution, model_run: pb.Artifact | None) -> Node:
    """The training, and its best checkpoint, which is what was exported."""
    uri = model_run.uri if model_run is not None else ""
    summary, best = files.read_json(uri, files.SUMMARY_FILE), files.read_json(uri, files.BEST_FILE)
    step, steps = files.number_in(summary, "best_step"), files.number_in(summary, "num_steps")
    metric, value = files.text_in(best, "metric"), _best_value(best)
    scores = {name: files.number_in(summary, "best", name) for name in ("AP", "AP50", "AP75")}
    rate = files.number_in(summary, "performance", "images_per_second")
    custom = object_of(custom_property(trainer, "custom_config"))
    ended_early = ", stopped early" if summary.get("stopped_early") is True else ""
    return make_node(
        f"execution:{trainer.id}",
        "checkpoint",
        f"Checkpoint of step {step:.0f}" if step is not None else "Training",
        [
            f"the best of {steps:.0f} steps{ended_early}" if steps is not None else "",
            format_scores({"AP": scores["AP"], "AP50": scores["AP50"]}, "eval"),
            f"{node_name(trainer)}, {format_duration(trainer)}",
        ],
        {
            "detector": files.text_in(summary, "detector"),
            "best step": format_count(step),
            "steps done": format_count(steps),
            "chosen by": f"{metric} {value:.4f} on the eval split" if metric and value is not None else "",
            **{f"{name} on the eval split": format_score(score) for name, score in scores.items()},
            "images per second": format_count(rate),
            "steps that were not finite": format_count(files.number_in(summary, "num_incidents")),
            "training run": f"artifact {model_run.id}" if model_run is not None else "",
            "address": uri,
            "code of the trainer": text_of(custom.get("code_fingerprint")),
            "devices": text_of(object_of(custom.get("strategy")).get("kind")),
            **execution_facts(trainer, "trained by"),
        },
        is_gone=bool(uri) and not files.is_there(uri),
    )


def describe_config(trainer: pb.Execution) -> Node | None:
    """The configuration that the Trainer was given; None if it was given none of ours."""
    text = custom_property(trainer, "custom_config")
    content = object_of(text).get("trainer_config")
    tree = object_of(content)
    if not tree:
        return None
    digest = hashlib.sha256(str(content).encode("utf-8", "replace")).hexdigest()
    model, train = mapping_of(tree.get("model")), mapping_of(tree.get("train"))
    extractor, resizer = mapping_of(model.get("feature_extractor")), mapping_of(model.get("image_resizer"))
    optimizer, augmentations = mapping_of(train.get("optimizer")), train.get("augmentations")
    parts = (text_of(extractor.get("backbone")), text_of(mapping_of(extractor.get("neck")).get("type")))
    network = " + ".join(part for part in parts if part)
    size = [whole_of(resizer.get(key)) for key in ("height", "width", "min_dimension", "max_dimension")]
    shape = " x ".join(str(each) for each in size if each is not None)
    steps, batch = whole_of(train.get("num_steps")), whole_of(train.get("batch_size"))
    length = (steps and f"{steps} steps", batch and f"batch {batch}")
    return make_node(
        f"config:{digest[:DIGEST_CHARS]}",
        "config",
        "Configuration",
        [
            network,
            f"{shape} px" if shape else "",
            ", ".join(part for part in length if part),
            f"sha256 {digest[:DIGEST_CHARS]}",
        ],
        {
            "SHA-256 of its JSON": digest,
            "network": network,
            "input": shape,
            "resizer": text_of(resizer.get("type")),
            "steps": steps,
            "batch size": batch,
            "optimizer": text_of(optimizer.get("type")),
            "learning rate": _learning_rate(optimizer),
            "precision": text_of(train.get("precision")),
            "seed": whole_of(train.get("seed")),
            "augmentations": len(augmentations) if isinstance(augmentations, list) else "",
            "fine-tune checkpoint": text_of(train.get("fine_tune_checkpoint")),
        },
    )


def fine_tune_checkpoint(trainer: pb.Execution) -> str:
    """Where the weights came from that the configuration names; empty for random ones."""
    tree = object_of(object_of(custom_property(trainer, "custom_config")).get("trainer_config"))
    return text_of(mapping_of(tree.get("train")).get("fine_tune_checkpoint"))


def describe_weights(address: str) -> Node:
    """Weights from outside the pipeline, which training started from."""
    digest = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()
    parts = address.rstrip("/").rsplit("/", 2)[-2:]
    return make_node(
        f"weights:{digest[:DIGEST_CHARS]}", "weights", "Starting weights", ["/".join(parts)], {"address": address}
    )


def describe_search(artifact: pb.Artifact, tuner: pb.Execution | None, values: Mapping[str, Any]) -> Node:
    """Hyperparameters that a search found."""
    plain = ((name, value) for name, value in values.items() if isinstance(value, int | float | str))
    found = dict(itertools.islice(plain, _MAX_HYPERPARAMETERS))
    shown = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items()]
    return make_node(
        artifact_id(artifact),
        "search",
        "Hyperparameters",
        [*shown[:2], f"and {len(shown) - 2} more" if len(shown) > 2 else ""],
        {"artifact": artifact.id, "address": artifact.uri, **found, **execution_facts(tuner, "searched by")},
        is_gone=not files.is_there(artifact.uri),
    )


def read_values(artifact: pb.Artifact) -> dict[str, Any]:
    """Values of a HyperParameters artifact, as TFX's Tuner writes it."""
    return dict(mapping_of(files.read_json(artifact.uri, "best_hyperparameters.txt").get("values")))


def _best_value(best: Mapping[str, Any]) -> float | None:
    entries = best.get("entries")
    first = entries[0] if isinstance(entries, list) and entries else None
    return files.number_in(first, "value") if isinstance(first, dict) else None


def _learning_rate(optimizer: Mapping[str, Any]) -> str:
    schedule = mapping_of(optimizer.get("learning_rate"))
    return ", ".join(f"{name} {value}" for name, value in schedule.items() if isinstance(value, int | float | str))
