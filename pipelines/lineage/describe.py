"""Build the nodes of the graph: data, training, models, and their checks."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.properties import (
    BLESSING_MESSAGE,
    CODE_FINGERPRINT,
    DATASET_REPORT_FILE,
    FINGERPRINT_PROPERTY,
    SPAN_PROPERTY,
    VERSION_PROPERTY,
)
from detloom.pipelines.lineage.graph import Node, make_node, version_id
from detloom.pipelines.lineage.store import artifact_id, custom_property, node_name
from detloom.pipelines.lineage.values import (
    BEST_FILE,
    DIGEST_CHARS,
    INGESTION_REPORT_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    execution_duration,
    execution_facts,
    format_count,
    format_score,
    format_scores,
    format_time,
    format_time_of,
    int_of,
    mapping_of,
    may_exist,
    number_in,
    object_of,
    read_json,
    summarize_anomalies,
    text_in,
    text_of,
)

_FINGERPRINT = re.compile(r"files:(\d{1,12}),sha256:([0-9a-f]{64})")  # added by the driver of DetectionExampleGen
_MAX_HYPERPARAMETERS = 50


def describe_examples(artifact: pb.Artifact, execution: pb.Execution | None, rejects: pb.Artifact | None) -> Node:
    """Return the node of the examples, with counts by split."""
    report = read_json(rejects.uri, INGESTION_REPORT_FILE) if rejects is not None else {}
    splits = mapping_of(report.get("splits"))
    counts = {name: number_in(splits, name, "num_written") for name in splits}
    written = ", ".join(f"{name} {count:.0f}" for name, count in counts.items() if count is not None)
    num_in, refused = number_in(report, "num_in"), number_in(report, "num_quarantined")
    quarantined = f"{refused:.0f} of {num_in:.0f} records quarantined" if num_in and refused is not None else ""
    return make_node(
        artifact_id(artifact),
        "examples",
        "Examples",
        [written or f"artifact {artifact.id}", quarantined],
        {
            "artifact": artifact.id,
            "address": artifact.uri,
            "images": written,
            "quarantined": quarantined,
            "refused boxes": format_count(number_in(report, "num_boxes_rejected")),
            "quarantine": rejects.uri if rejects is not None else "",
            **execution_facts(execution, "ingested by"),
        },
        is_gone=not may_exist(artifact.uri),
    )


def describe_data(artifact: pb.Artifact, execution: pb.Execution | None) -> list[Node]:
    """Return a node for each ingested folder, one per span. The folders are not read, as they may be elsewhere."""
    fingerprint = str(custom_property(artifact, FINGERPRINT_PROPERTY) or "")
    match = _FINGERPRINT.search(fingerprint)
    base = str(custom_property(execution, "input_base") or "") if execution is not None else ""
    data_format = str(custom_property(execution, "format") or "") if execution is not None else ""
    folders = _folders(custom_property(execution, "data_folders") if execution is not None else None)
    span, version = custom_property(artifact, SPAN_PROPERTY), custom_property(artifact, VERSION_PROPERTY)
    files_line = f"{match[1]} files, sha256 {match[2][:DIGEST_CHARS]}" if match else ""
    if len(folders) > 1:  # the fingerprint covers all of them
        files_line = ": ".join(part for part in (f"with {len(folders) - 1} more", files_line) if part)
    nodes = []
    for folder in folders:
        address = "/".join(part for part in (base, folder) if part)
        digest = hashlib.sha256(f"{address}\0{fingerprint}".encode("utf-8", "replace")).hexdigest()
        is_newest = bool(folder) and folder == folders[-1]
        nodes.append(
            make_node(
                f"data:{digest[:DIGEST_CHARS]}",
                "data",
                f"Data span {span}" if is_newest and span is not None else "Data",
                [folder or Path(base).name, data_format, files_line],
                {
                    "folder": address,
                    "format": data_format,
                    "span": span if is_newest else "",
                    "span's version": version if is_newest else "",
                    "fingerprint": fingerprint,
                },
            )
        )
    return nodes


def describe_report(artifact: pb.Artifact, execution: pb.Execution | None) -> Node:
    """Return the node of DatasetValidator's report."""
    report = read_json(artifact.uri, DATASET_REPORT_FILE)
    verdict, sentence = text_in(report, "verdict"), text_in(report, "sentence")
    return make_node(
        artifact_id(artifact),
        "check",
        f"Data checks: {verdict}" if verdict else "Data checks",
        [sentence],
        {
            "artifact": artifact.id,
            "address": artifact.uri,
            "verdict": verdict,
            "sentence": sentence,
            **execution_facts(execution, "checked by"),
        },
        is_gone=not may_exist(artifact.uri),
    )


def describe_anomalies(
    artifact: pb.Artifact, execution: pb.Execution, schema: pb.Artifact | None, statistics: pb.Artifact | None
) -> Node:
    """Return the node of the schema check."""
    found = summarize_anomalies(artifact.uri)
    return make_node(
        artifact_id(artifact),
        "check",
        "Schema check",
        [found or f"artifact {artifact.id}"],
        {
            "artifact": artifact.id,
            "address": artifact.uri,
            "found": found,
            "schema": f"artifact {schema.id}, {schema.uri}" if schema is not None else "",
            "statistics": f"artifact {statistics.id}, {statistics.uri}" if statistics is not None else "",
            **execution_facts(execution, "checked by"),
        },
        is_gone=not may_exist(artifact.uri),
    )


def _folders(text: Any) -> list[str]:
    """Parse `data_folders`, which the driver of DetectionExampleGen stores; [""] (the input base) if there are none."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    folders = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return folders or [""]


def describe_checkpoint(trainer: pb.Execution, model_run: pb.Artifact | None) -> Node:
    """Return the node of a training run and its best checkpoint, which was exported."""
    uri = model_run.uri if model_run is not None else ""
    summary, best = read_json(uri, SUMMARY_FILE), read_json(uri, BEST_FILE)
    step, steps = number_in(summary, "best_step"), number_in(summary, "num_steps")
    metric, value = text_in(best, "metric"), _best_value(best)
    scores = {name: number_in(summary, "best", name) for name in ("AP", "AP50", "AP75")}
    rate = number_in(summary, "performance", "images_per_second")
    custom = object_of(custom_property(trainer, "custom_config"))
    ended_early = ", stopped early" if summary.get("stopped_early") is True else ""
    return make_node(
        f"execution:{trainer.id}",
        "checkpoint",
        f"Checkpoint of step {step:.0f}" if step is not None else "Training",
        [
            f"best of {steps:.0f} steps{ended_early}" if steps is not None else "",
            format_scores({"AP": scores["AP"], "AP50": scores["AP50"]}, "eval"),
            f"{node_name(trainer)}, {execution_duration(trainer)}",
        ],
        {
            "detector": text_in(summary, "detector"),
            "best step": format_count(step),
            "steps done": format_count(steps),
            "chosen by": f"{metric} {value:.4f} on the eval split" if metric and value is not None else "",
            **{f"{name} on the eval split": format_score(score) for name, score in scores.items()},
            "images per second": format_count(rate),
            "steps that were not finite": format_count(number_in(summary, "num_incidents")),
            "training run": f"artifact {model_run.id}" if model_run is not None else "",
            "address": uri,
            "code of the trainer": text_of(custom.get(CODE_FINGERPRINT)),
            "devices": text_of(object_of(custom.get("strategy")).get("kind")),
            **execution_facts(trainer, "trained by"),
        },
        is_gone=bool(uri) and not may_exist(uri),
    )


def describe_config(trainer: pb.Execution) -> Node | None:
    """Return the node of the Trainer's configuration; None if it has none of detloom's."""
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
    size = [int_of(resizer.get(key)) for key in ("height", "width", "min_dimension", "max_dimension")]
    shape = " x ".join(str(each) for each in size if each is not None)
    steps, batch = int_of(train.get("num_steps")), int_of(train.get("batch_size"))
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
            "seed": int_of(train.get("seed")),
            "augmentations": len(augmentations) if isinstance(augmentations, list) else "",
            "fine-tune checkpoint": text_of(train.get("fine_tune_checkpoint")),
        },
    )


def fine_tune_checkpoint(trainer: pb.Execution) -> str:
    """Return the checkpoint that the configuration names; empty for random initial weights."""
    tree = object_of(object_of(custom_property(trainer, "custom_config")).get("trainer_config"))
    return text_of(mapping_of(tree.get("train")).get("fine_tune_checkpoint"))


def describe_weights(address: str) -> Node:
    """Return the node of initial weights from outside the pipeline."""
    digest = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()
    parts = address.rstrip("/").rsplit("/", 2)[-2:]
    return make_node(
        f"weights:{digest[:DIGEST_CHARS]}", "weights", "Starting weights", ["/".join(parts)], {"address": address}
    )


def describe_search(artifact: pb.Artifact, tuner: pb.Execution | None, values: Mapping[str, Any]) -> Node:
    """Return the node of hyperparameters that a search found."""
    plain = ((name, value) for name, value in values.items() if isinstance(value, int | float | str))
    found = dict(itertools.islice(plain, _MAX_HYPERPARAMETERS))
    shown = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items()]
    return make_node(
        artifact_id(artifact),
        "search",
        "Hyperparameters",
        [*shown[:2], f"and {len(shown) - 2} more" if len(shown) > 2 else ""],
        {"artifact": artifact.id, "address": artifact.uri, **found, **execution_facts(tuner, "searched by")},
        is_gone=not may_exist(artifact.uri),
    )


def read_values(artifact: pb.Artifact) -> dict[str, Any]:
    """Return the values of a HyperParameters artifact, as written by TFX's Tuner."""
    return dict(mapping_of(read_json(artifact.uri, "best_hyperparameters.txt").get("values")))


def _best_value(best: Mapping[str, Any]) -> float | None:
    entries = best.get("entries")
    first = entries[0] if isinstance(entries, list) and entries else None
    return number_in(first, "value") if isinstance(first, dict) else None


def _learning_rate(optimizer: Mapping[str, Any]) -> str:
    schedule = mapping_of(optimizer.get("learning_rate"))
    return ", ".join(f"{name} {value}" for name, value in schedule.items() if isinstance(value, int | float | str))


def describe_version(
    version: int, folder: str, record: Mapping[str, Any], pusher: pb.Execution | None, versions: Sequence[int]
) -> Node:
    """Return the node of a pushed version.

    Args:
        record: its line of the push record; may be empty.
        versions: all versions in the push folder.
    """
    highest = max(versions, default=None)
    pushed = text_of(record.get("time"))
    digest = text_of(record.get("manifest_sha256"))
    served = "" if highest is None else "the highest version" if version == highest else "not the highest version"
    action = text_of(record.get("action"))
    return make_node(
        version_id(version),
        "version",
        f"Version {version}",
        [f"pushed {format_time(pushed)}" if pushed else "", action if action != "push" else "", served],
        {
            "folder": folder,
            "pushed": pushed,
            "served": served,
            "highest version": highest,
            "content (SHA-256 of the manifest)": digest,
            "replaced version": int_of(record.get("previous_version")),
            "action": action,
            "copy of version": int_of(record.get("of_version")),
            "reason": text_of(record.get("reason")),
            "by": text_of(record.get("by")),
            "pipeline run": text_of(record.get("run_id")),
            **execution_facts(pusher, "pushed by"),
        },
        is_gone=version not in versions,
    )


def describe_model(artifact: pb.Artifact, versions: Sequence[int]) -> Node:
    """Return the node of an exported model, with the versions that it was pushed as."""
    pushed = f"version {', '.join(map(str, versions))}" if versions else "not pushed here"
    return make_node(
        artifact_id(artifact),
        "model",
        "Model",
        [f"artifact {artifact.id}", pushed, format_time_of(artifact)],
        {"artifact": artifact.id, "address": artifact.uri, "pushed as": pushed, "made": format_time_of(artifact)},
        is_gone=not may_exist(artifact.uri),
    )


def describe_evaluation(
    artifact: pb.Artifact, evaluator: pb.Execution, metrics: pb.Artifact | None, blessing: pb.Artifact | None
) -> Node:
    """Return the node of an evaluation. Its metrics are in ML Metadata, those of the baseline only in the files."""
    numbers = {
        name: value
        for name in ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100", "AP change", "median latency ms")
        if metrics is not None and isinstance(value := custom_property(metrics, name), int | float)
    }
    baseline = number_in(read_json(artifact.uri, METRICS_FILE), "baseline", "AP")
    split = str(custom_property(evaluator, "split") or "")
    blessed = custom_property(blessing, "blessed") if blessing is not None else None
    verdict = "" if blessed is None else "blessed" if blessed else "not blessed"
    return make_node(
        artifact_id(artifact),
        "evaluation",
        f"Evaluation: {verdict}" if verdict else "Evaluation",
        [
            format_scores({name: numbers.get(name) for name in ("AP", "AP50")}, split),
            f"baseline AP {format_score(baseline)}" if baseline is not None else "",
        ],
        {
            "artifact": artifact.id,
            "address": artifact.uri,
            "verdict": str(custom_property(blessing, BLESSING_MESSAGE) or verdict) if blessing is not None else "",
            "blessing": f"artifact {blessing.id}" if blessing is not None else "",
            "split": split,
            **{name: f"{value:.4f}" for name, value in numbers.items()},
            "AP of the baseline": format_score(baseline),
            **execution_facts(evaluator, "evaluated by"),
        },
        is_gone=not may_exist(artifact.uri),
    )
