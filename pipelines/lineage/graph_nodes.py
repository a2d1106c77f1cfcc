"""Build the nodes of the graph from ML Metadata, the push record and the files of artifacts."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
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
from detloom.pipelines.lineage.artifact_files import (
    METRICS_FILE,
    SUMMARY_FILE,
    may_exist,
    number_in,
    object_in,
    parse_object,
    read_json,
    text_in,
)
from detloom.pipelines.lineage.graph import Node, make_node
from detloom.pipelines.lineage.store import artifact_id, custom_property
from detloom.schemas.contracts.rejects import REPORT_FILE
from detloom.schemas.reading.format_duration import format_duration

_FINGERPRINT = re.compile(r"files:(\d{1,12}),sha256:([0-9a-f]{64})")  # added by the driver of DetectionExampleGen
_DIGEST_CHARS = 12  # of a shortened hash


def version_node(
    version: int, folder: str, record: Mapping[str, Any], pusher: pb.Execution | None, versions: Sequence[int]
) -> Node:
    """Return the node of a pushed version.

    Args:
        record: its line of the push record; may be empty.
        versions: all versions in the push folder.
    """
    is_served = version == max(versions, default=None)
    served = ("the highest version" if is_served else "not the highest version") if versions else ""
    pushed, action = text_in(record, "time"), text_in(record, "action")
    lines = [f"pushed {_format_time(pushed)}" if pushed else "", action if action != "push" else "", served]
    facts = {"folder": folder, "served": served, **record, **_execution_facts(pusher)}
    is_gone = version not in versions
    return make_node(f"version:{version}", "version", f"Version {version}", lines, facts, files_gone=is_gone)


def model_node(artifact: pb.Artifact, versions: Sequence[int]) -> Node:
    """Return the node of an exported model, with the versions that it was pushed as."""
    pushed = f"version {', '.join(map(str, versions))}" if versions else "not pushed here"
    lines = [f"artifact {artifact.id}", pushed, _format_creation_time(artifact)]
    return _artifact_node(artifact, "model", "Model", lines, {}, None)


def evaluation_node(
    artifact: pb.Artifact, evaluator: pb.Execution | None, metrics: pb.Artifact | None, blessing: pb.Artifact | None
) -> Node:
    """Return the node of an evaluation. Its metrics are in ML Metadata, those of the baseline only in the files."""
    names = metrics.custom_properties if metrics is not None else ()
    values = {name: custom_property(metrics, name) for name in names}
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    baseline = number_in(read_json(artifact.uri, METRICS_FILE), "baseline", "AP")
    split = str(custom_property(evaluator, "split") or "")
    blessed = custom_property(blessing, "blessed")
    verdict = "" if blessed is None else "blessed" if blessed else "not blessed"
    scores = _format_scores({name: numbers.get(name) for name in ("AP", "AP50")}, split)
    lines = [scores, f"baseline AP {_format_score(baseline)}" if baseline is not None else ""]
    facts = {"verdict": custom_property(blessing, BLESSING_MESSAGE), "split": split, "AP of the baseline": baseline}
    title = f"Evaluation: {verdict}" if verdict else "Evaluation"
    return _artifact_node(artifact, "evaluation", title, lines, {**facts, **numbers}, evaluator)


def checkpoint_node(trainer: pb.Execution, model_run: pb.Artifact | None) -> Node:
    """Return the node of a training run and its best checkpoint, which was exported."""
    uri = model_run.uri if model_run is not None else ""
    summary = read_json(uri, SUMMARY_FILE)
    step, steps = number_in(summary, "best_step"), number_in(summary, "num_steps")
    scores = {name: number_in(summary, "best", name) for name in ("AP", "AP50")}
    settings = parse_object(custom_property(trainer, "custom_config"))
    stopped_early = ", stopped early" if summary.get("stopped_early") is True else ""
    lines = [
        f"best of {steps:.0f} steps{stopped_early}" if steps is not None else "",
        _format_scores(scores, "eval"),
        f"{_component_of(trainer)}, {_execution_duration(trainer)}",
    ]
    facts = {
        "detector": text_in(summary, "detector"),
        "training run": f"artifact {model_run.id}" if model_run is not None else "",
        "address": uri,
        "steps that were not finite": number_in(summary, "num_incidents"),
        "code of the trainer": text_in(settings, CODE_FINGERPRINT),
        **_execution_facts(trainer),
    }
    title = f"Checkpoint of step {step:.0f}" if step is not None else "Training"
    is_gone = bool(uri) and not may_exist(uri)
    return make_node(f"execution:{trainer.id}", "checkpoint", title, lines, facts, files_gone=is_gone)


def config_node(trainer: pb.Execution) -> Node | None:
    """Return the node of the Trainer's configuration; None if it has none of detloom's."""
    content = _config_text(trainer)
    config = parse_object(content)
    if not config:
        return None
    digest = _sha256(content)
    model, train = object_in(config, "model"), object_in(config, "train")
    backbone = text_in(model, "feature_extractor", "backbone")
    network = _join(" + ", backbone, text_in(model, "feature_extractor", "neck", "type"))
    sizes = (number_in(model, "image_resizer", key) for key in ("height", "width", "min_dimension", "max_dimension"))
    shape = _join(" x ", *map(_format_count, sizes))
    steps, batch_size = (_format_count(number_in(train, key)) for key in ("num_steps", "batch_size"))
    length = _join(", ", steps and f"{steps} steps", batch_size and f"batch {batch_size}")
    lines = [network, f"{shape} px" if shape else "", length, f"sha256 {digest[:_DIGEST_CHARS]}"]
    facts = {
        "SHA-256 of its JSON": digest,
        "optimizer": text_in(train, "optimizer", "type"),
        "learning rate": object_in(train, "optimizer", "learning_rate"),
        "precision": text_in(train, "precision"),
        "seed": number_in(train, "seed"),
    }
    return make_node(f"config:{digest[:_DIGEST_CHARS]}", "config", "Configuration", lines, facts)


def _config_text(trainer: pb.Execution) -> str:
    """Return detloom's configuration as JSON; empty for another trainer."""
    return text_in(parse_object(custom_property(trainer, "custom_config")), "trainer_config")


def weights_node(trainer: pb.Execution) -> Node | None:
    """Return the node of the configuration's fine-tune checkpoint; None for random initial weights."""
    address = text_in(parse_object(_config_text(trainer)), "train", "fine_tune_checkpoint")
    if not address:
        return None
    name = "/".join(address.rstrip("/").rsplit("/", 2)[-2:])
    node_id = f"weights:{_sha256(address)[:_DIGEST_CHARS]}"
    return make_node(node_id, "weights", "Starting weights", [name], {"address": address})


def search_node(artifact: pb.Artifact, tuner: pb.Execution | None) -> Node:
    """Return the node of hyperparameters, which TFX's Tuner wrote."""
    values = object_in(read_json(artifact.uri, "best_hyperparameters.txt"), "values")
    shown = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()]
    lines = [*shown[:2], f"and {len(shown) - 2} more" if len(shown) > 2 else ""]
    return _artifact_node(artifact, "search", "Hyperparameters", lines, values, tuner)


def examples_node(artifact: pb.Artifact, execution: pb.Execution | None, rejects: pb.Artifact | None) -> Node:
    """Return the node of the examples, with counts by split."""
    report = read_json(rejects.uri, REPORT_FILE) if rejects is not None else {}
    counts = {name: number_in(report, "splits", name, "num_written") for name in object_in(report, "splits")}
    written = ", ".join(f"{name} {count:.0f}" for name, count in counts.items() if count is not None)
    num_in, refused = number_in(report, "num_in"), number_in(report, "num_quarantined")
    quarantined = f"{refused:.0f} of {num_in:.0f} records quarantined" if num_in and refused is not None else ""
    lines = [written or f"artifact {artifact.id}", quarantined]
    facts = {"images": written, "quarantine": rejects.uri if rejects is not None else ""}
    return _artifact_node(artifact, "examples", "Examples", lines, facts, execution)


def data_nodes(artifact: pb.Artifact, execution: pb.Execution | None) -> list[Node]:
    """Return a node for each ingested folder, one per span. The folders are not read, as they may be elsewhere."""
    fingerprint = str(custom_property(artifact, FINGERPRINT_PROPERTY) or "")
    match = _FINGERPRINT.search(fingerprint)
    files = f"{match[1]} files, sha256 {match[2][:_DIGEST_CHARS]}" if match else ""
    base = str(custom_property(execution, "input_base") or "")
    data_format = str(custom_property(execution, "format") or "")
    folders = json.loads(custom_property(execution, "data_folders") or "[]") or [""]  # by default the input base
    if len(folders) > 1:  # the fingerprint covers all of them
        files = _join(": ", f"with {len(folders) - 1} more", files)
    nodes = []
    for folder in folders:
        address = _join("/", base, folder)
        is_newest = bool(folder) and folder == folders[-1]
        span = custom_property(artifact, SPAN_PROPERTY) if is_newest else None
        facts = {
            "folder": address,
            "format": data_format,
            "span": span,
            "span's version": custom_property(artifact, VERSION_PROPERTY) if is_newest else None,
            "fingerprint": fingerprint,
        }
        digest = _sha256(f"{address}\0{fingerprint}")
        lines = [folder or Path(base).name, data_format, files]
        title = "Data" if span is None else f"Data span {span}"
        nodes.append(make_node(f"data:{digest[:_DIGEST_CHARS]}", "data", title, lines, facts))
    return nodes


def dataset_report_node(artifact: pb.Artifact, execution: pb.Execution | None) -> Node:
    """Return the node of DatasetValidator's report."""
    report = read_json(artifact.uri, DATASET_REPORT_FILE)
    verdict, sentence = text_in(report, "verdict"), text_in(report, "sentence")
    title = f"Data checks: {verdict}" if verdict else "Data checks"
    return _artifact_node(artifact, "check", title, [sentence], {"verdict": verdict}, execution)


def _artifact_node(
    artifact: pb.Artifact,
    kind: str,
    title: str,
    lines: Sequence[str],
    facts: Mapping[str, Any],
    producer: pb.Execution | None,
) -> Node:
    facts = {"artifact": artifact.id, "address": artifact.uri, **facts, **_execution_facts(producer)}
    return make_node(artifact_id(artifact), kind, title, lines, facts, files_gone=not may_exist(artifact.uri))


def _execution_facts(execution: pb.Execution | None) -> dict[str, Any]:
    """Return facts about the execution that made something."""
    if execution is None:
        return {}
    return {
        "made by": f"{_component_of(execution)}, execution {execution.id}",
        "began": _format_creation_time(execution),
        "took": _execution_duration(execution),
        "code": custom_property(execution, CODE_FINGERPRINT),
    }


def _component_of(execution: pb.Execution) -> str:
    """Return the class of the component, such as DetectionExampleGen."""
    return str(execution.type).rpartition(".")[2]


def _format_creation_time(thing: pb.Artifact | pb.Execution) -> str:
    seconds = thing.create_time_since_epoch / 1000
    return _format_time(datetime.fromtimestamp(seconds, timezone.utc).isoformat()) if seconds else ""


def _format_time(text: str) -> str:
    """Format an ISO time to the minute, in UTC; return other text unchanged."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return text


def _execution_duration(execution: pb.Execution) -> str:
    """Format the time from the first to the last update of the execution in ML Metadata."""
    milliseconds = execution.last_update_time_since_epoch - execution.create_time_since_epoch
    return format_duration(milliseconds / 1000)


def _format_scores(scores: Mapping[str, float | None], split: str) -> str:
    """Format the known scores on one line; empty if there is none."""
    shown = ", ".join(f"{name} {_format_score(value)}" for name, value in scores.items() if value is not None)
    return f"{shown} on {split}" if shown and split else shown


def _format_score(value: float | None) -> str:
    """Format a score; COCO uses -1 for an undefined score."""
    return "" if value is None else "undefined" if value == -1 else f"{value:.3f}"


def _format_count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _join(separator: str, *parts: str) -> str:
    """Join the parts that are not empty."""
    return separator.join(part for part in parts if part)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
