"""Explain a run before it starts: for each node whether it would run, and which setting, artifact or module is why.

TFX itself decides: its runner prepares each node, with a copy of the metadata and a temporary folder for outputs, and
no node is executed. A node that reads the output of a node that would run, would run too.
"""

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ml_metadata.proto import metadata_store_pb2 as pb
from tfx import v1 as tfx
from tfx.orchestration import data_types_utils
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.portable import inputs_utils, launcher
from tfx.types import standard_component_specs

from detloom.components.example_gen.driver import DATA_FOLDERS_KEY
from detloom.components.properties import FINGERPRINT_PROPERTY, SPAN_PROPERTY, VERSION_PROPERTY
from detloom.pipelines.dag.create_pipeline import create_pipeline
from detloom.pipelines.dag.training_nodes import CODE_OF
from detloom.pipelines.lineage.metadata_file import CODE_FOLDER, METADATA_FILE, check_metadata_file
from detloom.pipelines.local.console import format_table
from detloom.pipelines.local.run_local import check_runs_here, prepare_data
from detloom.pipelines.local.tfx_hooks import find_changed_modules, launch_with, unpack
from detloom.schemas.reading.tree_diff import diff_trees
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.tfx_run import CONFIG_KEY

Action = Literal["runs", "always runs", "cached", "skipped", "unknown", "fails"]
_MAX_REASONS = 5  # shown of a node
_FINISHED = (pb.Execution.COMPLETE, pb.Execution.CACHED)
_NONCE = "nonce"  # a parameter that differs in each run
_DRIVER_FOUND = {  # parameters with what drivers and the DAG found, which are no settings
    SPAN_PROPERTY: "the span of the data",
    VERSION_PROPERTY: "the version of the data",
    FINGERPRINT_PROPERTY: "the files of the data",
    DATA_FOLDERS_KEY: "the folders of the data",
    "records_state": "the training records",
}
_CODE = ("code_fingerprint", "trainer_fingerprint")
_TRAINING = "config_hash."  # hashes of `training_hash` by part
_PREFIXES = (standard_component_specs.CUSTOM_CONFIG_KEY, CONFIG_KEY)  # of settings


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The action of a run on a node, and the reasons.

    Attributes:
        reasons: of a node that runs, texts that begin with "setting", "artifact" or "module", or "no earlier result".
            Of a node that always runs, only its own changed settings and modules.
    """

    node: str
    action: Action
    reasons: tuple[str, ...] = ()


def explain_run(run: RunFile) -> list[Explanation]:
    """Return what a run would do with each node, in the order of execution; empty without an earlier run.

    No node is executed and the metadata do not change. What the pipeline copies into the workspace before its nodes run
    is copied: the schema, and a production model that no run of this workspace has made.

    Raises:
        InputError: as running it would, before the first node is executed.
    """
    check_runs_here(run)
    metadata = Path(run.workspace) / METADATA_FILE
    check_metadata_file(metadata, is_written=False)
    return explain_pipeline(create_pipeline(prepare_data(run)), Path(run.workspace)) if metadata.is_file() else []


def explain_pipeline(pipeline: tfx.dsl.Pipeline, workspace: Path) -> list[Explanation]:
    """Return what a run of a pipeline would do with each node; the workspace holds the metadata of earlier runs."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / METADATA_FILE
        _copy_database(workspace / METADATA_FILE, copy)
        pipeline.metadata_connection_config = tfx.orchestration.metadata.sqlite_metadata_connection_config(str(copy))
        pipeline.pipeline_info.pipeline_root = name
        explainer = _Explainer(workspace / CODE_FOLDER)
        with launch_with(explainer.launcher_class()):
            LocalDagRunner().run(pipeline)
        return explainer.explanations


def format_explanations(explanations: list[Explanation]) -> str:
    """Return a table with one line per node, and a sentence."""
    if not explanations:
        return "No earlier run in this workspace: every node would run."
    rows = [(each.node, each.action, _join(each.reasons)) for each in explanations]
    num_changed = sum(each.action == "runs" for each in explanations)
    summary = (
        f"{num_changed} of {len(rows)} nodes would run, besides those that always run."
        if num_changed
        else "Nothing has changed."
    )
    return f"{format_table(rows)}\n{summary}"


def _join(reasons: tuple[str, ...]) -> str:
    more = [f"{len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
    return "; ".join([*reasons[:_MAX_REASONS], *more])


def _copy_database(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as one,
        contextlib.closing(sqlite3.connect(target)) as other,
    ):
        one.backup(other)


class _Explainer:
    """Explains the nodes in the order in which TFX's runner launches them."""

    def __init__(self, code_folder: Path) -> None:
        self.explanations: list[Explanation] = []
        self._code_folder = code_folder
        self._new: set[str] = set()  # nodes whose outputs would be new

    def launcher_class(self) -> type[launcher.Launcher]:
        explainer = self

        class ExplainingLauncher(launcher.Launcher):
            def launch(self) -> None:
                explainer.explanations.append(explainer.explain(self, super().launch))

        return ExplainingLauncher

    def explain(self, node: Any, launch: Callable[[], Any]) -> Explanation:
        """Explain the node of a launcher; only resolvers are launched. A cached node is registered in the metadata."""
        name = node._pipeline_node.node_info.id
        artifacts, condition = self._find_new_inputs(node._pipeline_node)
        if node._system_node_handler is not None:  # a resolver
            if artifacts:
                self._new.add(name)
            else:
                launch()
            return Explanation(node=name, action="always runs")
        if condition:
            self._new.add(name)
            return Explanation(node=name, action="unknown", reasons=(f"the decision of {condition}",))
        with node._mlmd_connection as metadata:
            earlier = _find_earlier(node._pipeline_node, metadata.store)
        if artifacts:
            values = inputs_utils.resolve_parameters_with_schema(node._pipeline_node.parameters)
            return self._explain_changes(name, earlier, data_types_utils.build_parsed_value_dict(values), artifacts)
        prepared = node._prepare_execution()
        execution = prepared.execution_info
        if execution.execution_id is None:
            return Explanation(node=name, action="skipped", reasons=("there is no reason to train",))
        with node._mlmd_connection as metadata:
            (found,) = metadata.store.get_executions_by_id([execution.execution_id])
            artifacts = _changed_inputs(metadata.store, earlier, found)
        if found.last_known_state == pb.Execution.CACHED:
            return Explanation(node=name, action="cached")
        if not prepared.is_execution_needed:
            return Explanation(node=name, action="fails", reasons=("its inputs are not found",))
        return self._explain_changes(name, earlier, execution.exec_properties, artifacts)

    def _find_new_inputs(self, node: Any) -> tuple[list[str], str]:
        """Return the inputs of a node that would be new, as reasons, and the node whose decision is a condition."""
        names: dict[str, list[str]] = {}
        conditions, condition = str(list(node.inputs.conditionals.values())), ""
        for key, spec in sorted(node.inputs.inputs.items()):
            for producer in sorted({channel.producer_node_query.id for channel in spec.channels} & self._new):
                if f'key: "{key}"' in conditions:
                    condition = producer
                names.setdefault(producer, []).append(key)
        return [f"artifact {', '.join(keys)} of {producer}" for producer, keys in names.items()], condition

    def _explain_changes(
        self, name: str, earlier: pb.Execution | None, parameters: Mapping[str, Any], artifacts: list[str]
    ) -> Explanation:
        """Explain a node that would run by its differences from an earlier execution."""
        self._new.add(name)
        if earlier is None:
            return Explanation(node=name, action="runs", reasons=("no earlier result",))
        before = {key: getattr(value, value.WhichOneof("value")) for key, value in earlier.custom_properties.items()}
        now = {key: value for key, value in parameters.items() if value is not None}
        differences = sorted(diff_trees(unpack(before), unpack(now)))
        changed = [(path.rpartition(".")[2], path, *values) for path, *values in differences]
        reasons = [reason for change in changed for reason in self._describe(*change)]
        if any(key == _NONCE for key, *_ in changed):
            return Explanation(node=name, action="always runs", reasons=tuple(reasons))
        reasons = [*reasons, *artifacts] or ["artifact: the earlier outputs are gone"]
        return Explanation(node=name, action="runs", reasons=tuple(reasons))

    def _describe(self, key: str, path: str, before: str, now: str) -> list[str]:
        """Return the reasons that a changed parameter stands for."""
        if key == _NONCE:
            return []
        if key in _DRIVER_FOUND:
            return [f"artifact: {_DRIVER_FOUND[key]}"]
        if path.startswith(_TRAINING):
            part = path.removeprefix(_TRAINING)
            return [f"module: {part}" if part.startswith(CODE_OF) else f"setting {part}"]
        if key not in _CODE:
            for prefix in _PREFIXES:
                path = path.removeprefix(f"{prefix}.")
            return [f"setting {path}: {before} -> {now}"]
        modules = find_changed_modules(self._code_folder, before.strip("'"), now.strip("'"))
        return ["module: not recorded"] if modules is None else [f"module {each}" for each in modules]


def _find_earlier(node: Any, store: Any) -> pb.Execution | None:
    """Return the last finished execution of a node, or the one whose outputs it took from the cache."""
    name = next(each.name.field_value.string_value for each in node.contexts.contexts if each.type.name == "node")
    context = store.get_context_by_type_and_name("node", name)
    executions = {each.id: each for each in store.get_executions_by_context(context.id)} if context else {}
    finished = [number for number, each in executions.items() if each.last_known_state in _FINISHED]
    if not finished:
        return None
    outputs = [each.artifact_id for each in _events(store, max(finished), pb.Event.OUTPUT)]
    makers = [each.execution_id for each in store.get_events_by_artifact_ids(outputs) if each.type == pb.Event.OUTPUT]
    return executions[min(makers, default=max(finished))]  # of a cached one, the driver's results are not stored


def _changed_inputs(store: Any, earlier: pb.Execution | None, execution: pb.Execution) -> list[str]:
    """Return the inputs in which two executions differ, as reasons."""
    if earlier is None:
        return []
    before, now = (
        {(each.path.steps[0].key, each.artifact_id) for each in _events(store, number, pb.Event.INPUT)}
        for number in (earlier.id, execution.id)
    )
    return [f"artifact {key}" for key in sorted({key for key, _ in before ^ now})]


def _events(store: Any, execution_id: int, kind: int) -> list[pb.Event]:
    return [each for each in store.get_events_by_execution_ids([execution_id]) if each.type == kind]
