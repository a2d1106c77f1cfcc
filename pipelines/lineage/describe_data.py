"""What is said of data: the folders that were ingested, the examples made of them, and their checks."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage import artifact_files as files
from detloom.pipelines.lineage.graph import Node, make_node
from detloom.pipelines.lineage.store import artifact_id, custom_property
from detloom.pipelines.lineage.values import DIGEST_CHARS, execution_facts, format_count, mapping_of

_FINGERPRINT = re.compile(r"files:(\d{1,12}),sha256:([0-9a-f]{64})")  # the line that our driver adds to TFX's own


def describe_examples(artifact: pb.Artifact, execution: pb.Execution | None, rejects: pb.Artifact | None) -> Node:
    """What was ingested from the data, by split."""
    report = files.read_json(rejects.uri, files.INGESTION_REPORT_FILE) if rejects is not None else {}
    splits = mapping_of(report.get("splits"))
    counts = {name: files.number_in(splits, name, "num_written") for name in splits}
    written = ", ".join(f"{name} {count:.0f}" for name, count in counts.items() if count is not None)
    num_in, refused = files.number_in(report, "num_in"), files.number_in(report, "num_quarantined")
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
            "refused boxes": format_count(files.number_in(report, "num_boxes_rejected")),
            "quarantine": rejects.uri if rejects is not None else "",
            **execution_facts(execution, "ingested by"),
        },
        is_gone=not files.is_there(artifact.uri),
    )


def describe_data(artifact: pb.Artifact, execution: pb.Execution | None) -> list[Node]:
    """The folders that were ingested, one for each span; they are not looked at, as they may lie anywhere."""
    fingerprint = str(custom_property(artifact, "input_fingerprint") or "")
    match = _FINGERPRINT.search(fingerprint)
    base = str(custom_property(execution, "input_base") or "") if execution is not None else ""
    data_format = str(custom_property(execution, "data_format") or "") if execution is not None else ""
    folders = _folders(custom_property(execution, "data_folders") if execution is not None else None)
    span, version = custom_property(artifact, "span"), custom_property(artifact, "version")
    files_line = f"{match[1]} files, sha256 {match[2][:DIGEST_CHARS]}" if match else ""
    if len(folders) > 1:  # the fingerprint is of all of them
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
    """What DatasetValidator said of the examples."""
    report = files.read_json(artifact.uri, files.DATASET_REPORT_FILE)
    verdict, sentence = files.text_in(report, "verdict"), files.text_in(report, "sentence")
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
        is_gone=not files.is_there(artifact.uri),
    )


def describe_anomalies(
    artifact: pb.Artifact, execution: pb.Execution, schema: pb.Artifact | None, statistics: pb.Artifact | None
) -> Node:
    """Whether the examples are as the schema says."""
    found = files.describe_anomalies(artifact.uri)
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
        is_gone=not files.is_there(artifact.uri),
    )


def _folders(text: Any) -> list[str]:
    """`data_folders` of our driver; the input base itself where there is no such list."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    folders = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return folders or [""]
