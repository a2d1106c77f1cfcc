"""Summarize a finished run as text from ML Metadata and the artifacts."""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb
from tensorflow_metadata.proto.v0 import anomalies_pb2

from detloom.components.examples_folder import SPLIT_PREFIX, split_names
from detloom.components.properties import (
    DECISION_KEY,
    PUSHED_DESTINATION_PROPERTY,
    PUSHED_IS_NEW_PROPERTY,
    PUSHED_PROPERTY,
    PUSHED_VERSION_PROPERTY,
    REASON_PROPERTY,
    REUSED_PROPERTY,
)
from detloom.components.pusher.endpoint import is_endpoint
from detloom.components.pusher.push import format_push_command, list_versions
from detloom.components.pusher.versions import LABEL_MAP_PATH, find_class_change, open_destination
from detloom.components.storage.local_copy import local_folder
from detloom.components.storage.storage import open_storage
from detloom.pipelines.lineage.metadata_file import METADATA_FILE
from detloom.pipelines.lineage.store import open_store
from detloom.pipelines.local.console import format_next, format_table
from detloom.schemas.contracts.detections import SERVING_FOLDER
from detloom.schemas.contracts.rejects import NO_SPLIT, REJECTS_FILE, REPORT_FILE
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.run_file.model_card import CARD_PAGE
from detloom.schemas.run_file.push import is_remote
from detloom.schemas.run_file.run_file import RunFile

_Rows = list[tuple[str, str]]  # name and value of each line


@dataclass(frozen=True)
class NodeRun:
    """A node of a pipeline run; nodes that a condition skips are missing.

    Attributes:
        is_cached: True if its outputs came from the cache.
        is_failed: True if it failed or its inputs were not found.
        outputs: artifacts by name.
    """

    node_id: str
    is_cached: bool
    is_failed: bool
    outputs: dict[str, pb.Artifact]

    def folder(self, output: str) -> Path:
        """Return the folder of an output on this machine."""
        return Path(self.outputs[output].uri)

    def address(self, output: str, name: str = "") -> str:
        """Return the path or address of an output, or of a file in it."""
        return posixpath.join(self.outputs[output].uri, name) if name else str(self.outputs[output].uri)

    def read_json(self, output: str, name: str) -> Any:
        return open_storage(self.outputs[output].uri).read_json(name)


def find_latest_run(metadata_file: Path) -> int:
    """Return the id of the newest pipeline run; 0 without any. Ids increase, even if the clock is moved back."""
    if not metadata_file.is_file() or not metadata_file.stat().st_size:
        return 0
    return max((int(run.id) for run in open_store(metadata_file).get_contexts_by_type("pipeline_run")), default=0)


def read_latest_run(metadata_file: Path, after_run: int = 0) -> dict[str, NodeRun]:
    """Return the nodes of the newest pipeline run by id, in the order of execution.

    Args:
        after_run: result of `find_latest_run`; the result is empty if no later run exists.
    """
    newest = find_latest_run(metadata_file)
    if newest <= after_run:
        return {}
    store = open_store(metadata_file)
    nodes = {}
    for execution in sorted(store.get_executions_by_context(newest), key=lambda execution: execution.id):
        node_id = next(
            c.name.split(".", 1)[1] for c in store.get_contexts_by_execution(execution.id) if c.type == "node"
        )
        events = store.get_events_by_execution_ids([execution.id])
        ids = {
            event.artifact_id: event.path.steps[0].key
            for event in events
            if event.type in (pb.Event.OUTPUT, pb.Event.INTERNAL_OUTPUT) and event.path.steps
        }
        artifacts = store.get_artifacts_by_id(list(ids)) if ids else []
        state = execution.last_known_state
        outputs = {ids[artifact.id]: artifact for artifact in artifacts}
        nodes[node_id] = NodeRun(node_id, state == pb.Execution.CACHED, state == pb.Execution.FAILED, outputs)
    return nodes


def summarize_run(run: RunFile, after_run: int, seconds: float) -> str:
    """Return about ten lines: data, metrics, decision and paths; empty if there is no run after `after_run`.

    Args:
        after_run: result of `find_latest_run` before this run.
        seconds: duration of the run.
    """
    metadata_file = Path(run.workspace) / METADATA_FILE
    nodes = read_latest_run(metadata_file, after_run)
    if "Pusher" not in nodes and "RetrainDecision" not in nodes:
        return ""
    rows = [
        *_data_rows(nodes["DetectionExampleGen"]),
        ("data checks", nodes["DatasetValidator"].read_json("report", "report.json")["sentence"]),
        *_anomaly_rows(nodes["ExampleValidator"]),
        *_training_rows(nodes),
        *(_model_rows(nodes, run.push_to) if "Pusher" in nodes else [("pushed model", _none_pushed(run.push_to))]),
        ("data report", nodes["DatasetValidator"].address("report", "report.html")),
        ("lineage", f"{metadata_file} (ML Metadata, SQLite); detloom lineage VERSION shows it"),
        *(_cache_rows(nodes) if "Pusher" in nodes else []),
        ("time", format_duration(round(seconds))),
    ]
    return f"\nPipeline {run.name}\n{format_table(rows)}\n{_format_next(nodes, run.push_to)}"


def _format_next(nodes: dict[str, NodeRun], push_to: str) -> str:
    """Return the last line: try the pushed model, see why it was not pushed, or see what is served."""
    if "Pusher" not in nodes:
        return format_next("detloom", "versions", push_to)
    properties = nodes["Pusher"].outputs["pushed_model"].custom_properties
    if properties[PUSHED_PROPERTY].int_value:
        return format_next("detloom", "versions" if is_remote(push_to) else "serve", push_to)
    if properties[REASON_PROPERTY].string_value:  # blessed, but it was rolled back
        return format_next("detloom", "versions", push_to)
    page = nodes["DetectionEvaluator"].address("evaluation", "report.html")
    return f"Next: open {page} in a browser; it shows why the model is not blessed.{_format_push(nodes, push_to)}"


def _format_push(nodes: dict[str, NodeRun], push_to: str) -> str:
    """Return a line with the command that pushes a model that is not blessed; empty for an endpoint."""
    if is_endpoint(push_to):
        return ""
    model, card = nodes["Trainer"].address("model"), nodes["ModelCard"].address("model_card")
    with local_folder(nodes["Trainer"].address("model", SERVING_FOLDER), lambda name: name == LABEL_MAP_PATH) as folder:
        has_other_classes = bool(find_class_change(open_destination(push_to), folder, "none"))
    command = format_push_command(model, push_to, card, allow_class_change=has_other_classes)
    return f"\nTo push it nevertheless, with your reason: {command}"


def _training_rows(nodes: dict[str, NodeRun]) -> _Rows:
    """Return the reason for training or skipping it; empty if the pipeline always trains."""
    if "RetrainDecision" not in nodes:
        return []
    reason = nodes["RetrainDecision"].outputs[DECISION_KEY].custom_properties[REASON_PROPERTY].string_value
    head, _, rest = reason.partition(": ")
    return [("training", rest if head == "Training" else f"{head.removeprefix('Training is ')}: {rest}")]


def _model_rows(nodes: dict[str, NodeRun], push_to: str) -> _Rows:
    evaluator = nodes["DetectionEvaluator"]
    metrics = evaluator.read_json("evaluation", "metrics.json")["candidate"]
    decision = evaluator.read_json("evaluation", "decision.json")
    return [
        ("test split", f"AP {metrics['AP']:.3f}   AP50 {metrics['AP50']:.3f}"),
        ("decision", f"{'BLESSED' if decision['blessed'] else 'NOT BLESSED'}: {decision['reason']}"),
        ("pushed model", _pushed(nodes["Pusher"], push_to)),
        ("model card", nodes["ModelCard"].address("model_card", CARD_PAGE)),
        ("report", evaluator.address("evaluation", "report.html")),
    ]


_NEVER_CACHED = ("PreviousReportResolver", "WarmStartResolver", "BaselineResolver", "Pusher", "Notifier")


def _cache_rows(nodes: dict[str, NodeRun]) -> _Rows:
    """Summarize the cached nodes. Resolvers, Pusher and Notifier always run; a push counts if it made a version."""
    decision = nodes["RetrainDecision"].outputs[DECISION_KEY] if "RetrainDecision" in nodes else None
    is_reused = decision is not None and bool(decision.custom_properties[REUSED_PROPERTY].string_value)
    reused = [name for name in ("Tuner", "Trainer") if is_reused and name in nodes]
    cached = [name for name, node in nodes.items() if node.is_cached or name in reused]
    ran = [name for name, node in nodes.items() if name not in cached and name not in _NEVER_CACHED]
    if nodes["Pusher"].outputs["pushed_model"].custom_properties[PUSHED_IS_NEW_PROPERTY].int_value:
        ran.append("Pusher")
    if not ran:
        return [("cache", "nothing changed since the last run: all results are cached; the served model was checked")]
    return [("cache", f"ran: {', '.join(ran)}; cached: {', '.join(cached)}")] if cached else []


def _anomaly_rows(example_validator: NodeRun) -> _Rows:
    """Return the differences between examples and schema by split; empty if there are none."""
    found = []
    storage = open_storage(example_validator.address("anomalies"))
    for split in split_names(storage.list_names()):
        anomalies = anomalies_pb2.Anomalies.FromString(storage.read(f"{SPLIT_PREFIX}{split}/SchemaDiff.pb") or b"")
        for name, anomaly in sorted(anomalies.anomaly_info.items()):
            found.append(f"{split}: {name}: {anomaly.short_description}")
    return [("anomalies", text) for text in found]


def _data_rows(example_gen: NodeRun) -> _Rows:
    report = example_gen.read_json("rejects", REPORT_FILE)
    written = {name: split["num_written"] for name, split in report["splits"].items() if name != NO_SPLIT}
    splits = ", ".join(f"{name} {number}" for name, number in written.items())
    quarantined = f"{report['num_quarantined']} images, {report['num_boxes_quarantined']} boxes"
    rows = [
        ("ingested", f"{report['num_written']} of {report['num_in']} images ({splits})"),
        ("quarantined", f"{quarantined}: {example_gen.address('rejects', REJECTS_FILE)}"),
    ]
    if report["num_boxes_rejected"]:
        rows.append(("dropped boxes", f"{report['num_boxes_rejected']}, of images that were written or are missing"))
    return rows


def _pushed(pusher: NodeRun, push_to: str) -> str:
    properties = pusher.outputs["pushed_model"].custom_properties
    if not properties[PUSHED_PROPERTY].int_value:
        reason = properties[REASON_PROPERTY].string_value
        return f"{_none_pushed(push_to)}{f'. {reason}' if reason else ''}"
    destination = str(properties[PUSHED_DESTINATION_PROPERTY].string_value)
    version = properties[PUSHED_VERSION_PROPERTY].string_value  # an endpoint has no versions
    return f"{destination} (version {version})" if version else destination


def _none_pushed(push_to: str) -> str:
    served = max(list_versions(push_to), default=None) if push_to else None
    return f"none; version {served} is still served" if served else "none"
