"""What is said of a model: as it is served, as an artifact, and as it was evaluated."""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage import artifact_files as files
from detloom.pipelines.lineage.graph import Node, make_node, version_id
from detloom.pipelines.lineage.store import artifact_id, custom_property
from detloom.pipelines.lineage.values import (
    execution_facts,
    format_score,
    format_scores,
    format_time,
    format_time_of,
    text_of,
    whole_of,
)


def describe_version(
    version: int, folder: str, record: Mapping[str, Any], pusher: pb.Execution | None, versions: Sequence[int]
) -> Node:
    """A pushed version; `record` is its line in the push record, and may be empty; `versions` are those there."""
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
            "highest version there": highest,
            "content (SHA-256 of the manifest)": digest,
            "replaced version": whole_of(record.get("previous_version")),
            "action": action,
            "copy of version": whole_of(record.get("of_version")),
            "reason": text_of(record.get("reason")),
            "by": text_of(record.get("by")),
            "pipeline run": text_of(record.get("run_id")),
            **execution_facts(pusher, "pushed by"),
        },
        is_gone=version not in versions,
    )


def describe_model(artifact: pb.Artifact, versions: Sequence[int]) -> Node:
    """An exported model, and the versions that it was pushed as."""
    pushed = f"version {', '.join(map(str, versions))}" if versions else "not pushed here"
    return make_node(
        artifact_id(artifact),
        "model",
        "Model",
        [f"artifact {artifact.id}", pushed, format_time_of(artifact)],
        {"artifact": artifact.id, "address": artifact.uri, "pushed as": pushed, "made": format_time_of(artifact)},
        is_gone=not files.is_there(artifact.uri),
    )


def describe_evaluation(
    artifact: pb.Artifact, evaluator: pb.Execution, metrics: pb.Artifact | None, blessing: pb.Artifact | None
) -> Node:
    """Numbers and verdict. The numbers are those in ML Metadata; the baseline's are in the files alone."""
    numbers = {
        name: value
        for name in ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100", "AP change", "median latency ms")
        if metrics is not None and isinstance(value := custom_property(metrics, name), int | float)
    }
    baseline = files.number_in(files.read_json(artifact.uri, files.METRICS_FILE), "baseline", "AP")
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
            "verdict": str(custom_property(blessing, "blessing_message") or verdict) if blessing is not None else "",
            "blessing": f"artifact {blessing.id}" if blessing is not None else "",
            "split": split,
            **{name: f"{value:.4f}" for name, value in numbers.items()},
            "AP of the baseline": format_score(baseline),
            **execution_facts(evaluator, "evaluated by"),
        },
        is_gone=not files.is_there(artifact.uri),
    )
