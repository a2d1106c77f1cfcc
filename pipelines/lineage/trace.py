"""Trace a pushed version back to its data through ML Metadata."""

from typing import Any

from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.properties import PUSHED_VERSION_PROPERTY
from detloom.components.pusher.manifest import RECORD_FILE
from detloom.components.pusher.push import list_versions, read_records
from detloom.pipelines.lineage import graph_nodes
from detloom.pipelines.lineage.artifact_files import DATASET_REPORT_TYPE
from detloom.pipelines.lineage.find_version import VersionSource
from detloom.pipelines.lineage.graph import MAX_WARM_STARTS, LineageGraph, safe_line
from detloom.pipelines.lineage.store import LineageStore, artifact_id, custom_property
from detloom.schemas.errors import InputError


def trace(source: VersionSource, max_warm_starts: int = MAX_WARM_STARTS) -> LineageGraph:
    """Return the lineage graph of a version.

    It contains training run, configuration, checkpoint, examples, data, their checks, evaluation and baseline of the
    version's model; the same without evaluation for the models that its weights were initialized from, up to
    `max_warm_starts` models back; and the version that was replaced.

    Raises:
        InputError: the version was never pushed, or the metadata cannot be read or does not contain its model.
    """
    store = LineageStore(source.metadata_file)
    try:
        return _Tracer(store, source, max_warm_starts).run()
    except errors.StatusError as error:  # damaged, or locked by a running pipeline
        reason = safe_line(str(error))
        raise InputError(f"{safe_line(str(source.metadata_file))}: cannot be read ({reason}); try again.") from None


class _Tracer:
    def __init__(self, store: LineageStore, source: VersionSource, max_warm_starts: int) -> None:
        self._store, self._source, self._max_warm_starts = store, source, max_warm_starts
        self._records, self._versions = read_records(source.push_dir), list_versions(source.push_dir)
        self._graph = LineageGraph()
        self._versions_of_models: dict[int, list[int]] = {}  # models in the graph, by the artifact's id
        self._traced: set[int] = set()  # models whose training is in the graph

    def run(self) -> LineageGraph:
        version = self._source.version
        model = self._find_model(version)
        pusher = self._find_pusher(model, version)
        root = self._graph.root = self._add_version(version, pusher)
        self._graph.connect(self._add_model(model), root)
        self._add_training(model, self._max_warm_starts)
        self._add_evaluation(model, pusher, root)
        self._add_replaced_version(version, root)
        return self._graph

    def _record(self, version: int) -> dict[str, Any]:
        """Return the line of the push that made the version, which is the first one with its number."""
        return next((record for record in self._records if record.get("version") == version), {})

    def _find_model(self, version: int) -> pb.Artifact:
        uri = self._record(version).get("model_uri")
        models = [model for address in _addresses(uri) for model in self._store.models_at(address)]
        if models:
            return models[-1]
        if uri:
            raise InputError(
                f"{safe_line(str(self._source.metadata_file))}: does not contain the model of version {version} "
                f"({safe_line(str(uri))}); give the --workspace in which it was trained. Models of `detloom train` are "
                "in none."
            )
        known = ", ".join(map(str, _versions_in(self._records)[-5:])) or "none"
        record = safe_line(f"{self._source.push_dir}/{RECORD_FILE}")
        raise InputError(f"{record}: version {version} was not pushed here; the newest that were: {known}.")

    def _find_pusher(self, model: pb.Artifact, version: int) -> pb.Execution | None:
        """Return the first execution that pushed the model as this version, or as the version that it is a copy of."""
        numbers = {str(version), str(self._record(version).get("of_version"))}
        for execution in self._store.consumers(model, "model"):
            for pushed in self._store.outputs(execution).get("pushed_model", []):
                if custom_property(pushed, PUSHED_VERSION_PROPERTY) in numbers:
                    return execution
        return None

    def _add_version(self, version: int, pusher: pb.Execution | None) -> str:
        folder, record = f"{self._source.push_dir}/{version}", self._record(version)
        return self._graph.add(graph_nodes.version_node(version, folder, record, pusher, self._versions))

    def _add_replaced_version(self, version: int, root: str) -> None:
        """Add the version that was replaced; it often is the baseline, or the model that training started from."""
        replaced = self._record(version).get("previous_version")
        if not isinstance(replaced, int) or replaced == version:
            return
        node = self._add_version(replaced, None)
        self._graph.connect(node, root, "replaced")
        for model, versions in self._versions_of_models.items():
            if replaced in versions:
                self._graph.connect(f"artifact:{model}", node)

    def _add_model(self, model: pb.Artifact) -> str:
        versions = _versions_in([each for each in self._records if model.uri in _addresses(each.get("model_uri"))])
        self._versions_of_models[model.id] = versions
        return self._graph.add(graph_nodes.model_node(model, versions))

    def _add_training(self, model: pb.Artifact, num_warm_starts: int) -> None:
        """Add the training run of a model and its inputs; follow at most `num_warm_starts`."""
        self._traced.add(model.id)
        trainer = self._store.producer(model)
        if trainer is None:
            self._graph.note(f"ML Metadata has no producer of artifact {model.id} (imported, or deleted).")
            return
        inputs, outputs = self._store.inputs(trainer), self._store.outputs(trainer)
        node = self._graph.add(graph_nodes.checkpoint_node(trainer, _last(outputs, "model_run")))
        self._graph.connect(node, artifact_id(model))
        for examples in inputs.get("examples", []):
            self._graph.connect(self._add_examples(examples), node)
        if config := graph_nodes.config_node(trainer):
            self._graph.connect(self._graph.add(config), node)
        for hyperparameters in inputs.get("hyperparameters", []):
            self._graph.connect(self._add_search(hyperparameters), node)
        bases = inputs.get("base_model", [])
        if not bases and (weights := graph_nodes.weights_node(trainer)):
            self._graph.connect(self._graph.add(weights), node)
        for base in bases:
            self._graph.connect(self._add_model(base), node, "warm start")
            if base.id in self._traced:
                continue
            if num_warm_starts > 0:
                self._add_training(base, num_warm_starts - 1)
            else:
                stop = f"Stopped after {self._max_warm_starts} warm starts, at artifact {base.id}; see --depth."
                self._graph.note(stop)

    def _add_search(self, hyperparameters: pb.Artifact) -> str:
        tuner = self._store.producer(hyperparameters)
        node = self._graph.add(graph_nodes.search_node(hyperparameters, tuner))
        for examples in self._store.inputs(tuner).get("examples", []):
            self._graph.connect(self._add_examples(examples), node)
        return node

    def _add_examples(self, examples: pb.Artifact) -> str:
        """Add examples, their data and their checks."""
        if artifact_id(examples) in self._graph.nodes:
            return artifact_id(examples)
        execution = self._store.producer(examples)
        rejects = _last(self._store.outputs(execution), "rejects")
        node = self._graph.add(graph_nodes.examples_node(examples, execution, rejects))
        for folder in graph_nodes.data_nodes(examples, execution):
            self._graph.connect(self._graph.add(folder), node)
        for validator in self._store.consumers(examples, "examples"):
            for report in self._store.outputs(validator).get("report", []):
                if report.type == DATASET_REPORT_TYPE:
                    check = graph_nodes.dataset_report_node(report, self._store.producer(report))
                    self._graph.connect(node, self._graph.add(check))
        return node

    def _add_evaluation(self, model: pb.Artifact, pusher: pb.Execution | None, root: str) -> None:
        """Add the evaluation whose blessing the push used, else the last evaluation of the model."""
        blessing = _last(self._store.inputs(pusher), "model_blessing")
        evaluator = self._store.producer(blessing) if blessing is not None else None
        evaluators = [evaluator] if evaluator is not None else self._store.consumers(model, "model")
        outputs = [made for made in map(self._store.outputs, evaluators) if made.get("evaluation")]
        if not outputs:
            self._graph.note(f"ML Metadata has no evaluation of artifact {model.id}.")
            return
        evaluation = outputs[-1]["evaluation"][-1]
        metrics, blessing = _last(outputs[-1], "metrics"), _last(outputs[-1], "blessing")
        evaluator = self._store.producer(evaluation)
        node = self._graph.add(graph_nodes.evaluation_node(evaluation, evaluator, metrics, blessing))
        self._graph.connect(node, root)
        self._graph.connect(self._add_model(model), node)
        inputs = self._store.inputs(evaluator)
        for baseline in inputs.get("baseline_model", []):
            self._graph.connect(self._add_model(baseline), node, "baseline")
        for examples in inputs.get("examples", []):
            self._graph.connect(self._add_examples(examples), node)
        for report in inputs.get("dataset_report", []):
            if artifact_id(report) in self._graph.nodes:
                self._graph.connect(artifact_id(report), node)


def _addresses(model_uri: Any) -> tuple[str, ...]:
    """Return possible addresses of a recorded model's artifact; a manual push names the SavedModel inside it."""
    return (model_uri, model_uri.rpartition("/")[0]) if isinstance(model_uri, str) and model_uri else ()


def _versions_in(records: list[dict[str, Any]]) -> list[int]:
    return sorted({record["version"] for record in records if isinstance(record.get("version"), int)})


def _last(artifacts: dict[str, list[pb.Artifact]], key: str) -> pb.Artifact | None:
    found = artifacts.get(key)
    return found[-1] if found else None
