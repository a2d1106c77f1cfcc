"""Trace a pushed version back to its data through ML Metadata."""

from typing import Any

from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.properties import PUSHED_DESTINATION_PROPERTY, PUSHED_VERSION_PROPERTY
from detloom.components.pusher.atomic_push import list_versions, read_records
from detloom.components.pusher.manifest import RECORD_FILE
from detloom.pipelines.lineage.describe import (
    describe_anomalies,
    describe_checkpoint,
    describe_config,
    describe_data,
    describe_evaluation,
    describe_examples,
    describe_model,
    describe_report,
    describe_search,
    describe_version,
    describe_weights,
    fine_tune_checkpoint,
    read_values,
)
from detloom.pipelines.lineage.graph import MAX_WARM_STARTS, GraphBuilder, LineageGraph, safe_line
from detloom.pipelines.lineage.places import Places
from detloom.pipelines.lineage.store import LineageStore, artifact_id, custom_property
from detloom.pipelines.lineage.values import DATASET_REPORT_TYPE
from detloom.schemas.errors import InputError

_MAX_SPANS = 12  # data folders per Examples artifact; of more, only the newest are shown


def trace(places: Places, max_warm_starts: int = MAX_WARM_STARTS) -> LineageGraph:
    """Return the lineage graph of a version.

    It contains training run, configuration, checkpoint, examples, data, their checks, evaluation and baseline of the
    version's model; the same without evaluation for the models that its weights were initialized from, up to
    `max_warm_starts` models back; and the version of the baseline.

    Raises:
        InputError: the version was never pushed, or the metadata cannot be read or does not contain its model.
    """
    store = LineageStore(places.metadata_file)
    try:
        return _Walk(store, places, max_warm_starts).run()
    except errors.StatusError as error:  # damaged, or locked by a running pipeline
        reason = safe_line(str(error))
        raise InputError(f"{safe_line(str(places.metadata_file))}: cannot be read ({reason}); try again.") from None


class _Walk:
    def __init__(self, store: LineageStore, places: Places, max_warm_starts: int) -> None:
        self._store, self._places, self._max_warm_starts = store, places, max_warm_starts
        try:
            self._records = read_records(places.push_dir)
            self._versions = list_versions(places.push_dir)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InputError(f"{safe_line(places.push_dir)}: the push record cannot be read ({reason}).") from None
        self._graph = GraphBuilder()
        self._models: dict[int, list[int]] = {}  # versions of each model in the graph, by its artifact's id
        self._traced: set[int] = set()  # models whose training is in the graph

    def run(self) -> LineageGraph:
        version = self._places.version
        model = self._find_model(version)
        pusher = self._find_pusher(model, version)
        root = self._add_version(version, pusher)
        self._graph.connect(self._add_model(model), root)
        self._add_training(model, self._max_warm_starts)
        self._add_evaluation(model, pusher, root)
        self._add_previous(version, root)
        return self._graph.build(root)

    def _record(self, version: int) -> dict[str, Any]:
        """Return the line of the push that made the version, which is the first one with its number."""
        return next((each for each in self._records if each.get("version") == version), {})

    def _find_model(self, version: int) -> pb.Artifact:
        uri = self._record(version).get("model_uri")
        models = self._models_at(uri)
        if not models:  # not in the record: the push was killed, or another program pushed
            folder = f"{self._places.push_dir}/{version}"
            pushes = self._store.pushes_of(version)
            here = [each for each in pushes if custom_property(each, PUSHED_DESTINATION_PROPERTY) == folder]
            models = [model for each in here for model in self._inputs(self._store.producer(each), "model")]
        if models:
            return models[-1]
        metadata = safe_line(str(self._places.metadata_file))
        record = safe_line(f"{self._places.push_dir}/{RECORD_FILE}")
        if uri:
            raise InputError(
                f"{metadata}: does not contain the model of version {version} ({safe_line(str(uri))} according to "
                f"{record}); give the --workspace in which it was trained (models of `detloom train` are in none)."
            )
        pushed = sorted({each["version"] for each in self._records if isinstance(each.get("version"), int)})
        known = ", ".join(map(str, pushed[-5:])) or "none"
        raise InputError(f"{record}: version {version} was not pushed here; the newest that were: {known}.")

    def _models_at(self, uri: Any) -> list[pb.Artifact]:
        return [model for each in _addresses(uri) for model in self._store.models_at(each)]

    def _find_pusher(self, model: pb.Artifact, version: int) -> pb.Execution | None:
        """Return the first execution that pushed the model as this version, or as the version that it is a copy of."""
        numbers = {str(version), str(self._record(version).get("of_version"))}
        for execution in self._store.consumers(model, "model"):
            for pushed in self._store.outputs(execution).get("pushed_model", []):
                if custom_property(pushed, PUSHED_VERSION_PROPERTY) in numbers:
                    return execution
        return None

    def _add_version(self, version: int, pusher: pb.Execution | None) -> str:
        folder = f"{self._places.push_dir}/{version}"
        record = self._record(version)
        return self._graph.add(describe_version(version, folder, record, pusher, self._versions))

    def _add_previous(self, version: int, root: str) -> None:
        """Add the version that was replaced; it often is the baseline, or the model that training started from."""
        previous = self._record(version).get("previous_version")
        if not isinstance(previous, int) or previous == version:
            return
        node = self._add_version(previous, None)
        self._graph.connect(node, root, "replaced")
        for model, versions in self._models.items():
            if previous in versions:
                self._graph.connect(f"artifact:{model}", node)

    def _add_model(self, model: pb.Artifact) -> str:
        records = [each for each in self._records if model.uri in _addresses(each.get("model_uri"))]
        versions = sorted({each["version"] for each in records if isinstance(each.get("version"), int)})
        self._models[model.id] = versions
        return self._graph.add(describe_model(model, versions))

    def _add_training(self, model: pb.Artifact, more: int) -> None:
        """Add the training run of a model and its inputs; follow at most `more` warm starts."""
        self._traced.add(model.id)
        trainer = self._store.producer(model)
        if trainer is None:
            self._graph.note(f"ML Metadata has no producer of artifact {model.id} (imported, or deleted).")
            return
        run = self._store.outputs(trainer).get("model_run", [])
        node = self._graph.add(describe_checkpoint(trainer, run[-1] if run else None))
        self._graph.connect(node, artifact_id(model))
        inputs = self._store.inputs(trainer)
        for examples in inputs.get("examples", []):
            self._graph.connect(self._add_examples(examples, trainer), node)
        if config := describe_config(trainer):
            self._graph.connect(self._graph.add(config), node)
        for artifact in inputs.get("hyperparameters", []):
            self._graph.connect(self._add_search(artifact), node)
        bases = inputs.get("base_model", [])
        if not bases and (address := fine_tune_checkpoint(trainer)):
            self._graph.connect(self._graph.add(describe_weights(address)), node)
        for base in bases:
            self._graph.connect(self._add_model(base), node, "warm start")
            if base.id in self._traced:
                continue
            if more > 0:
                self._add_training(base, more - 1)
            else:
                self._graph.note(
                    f"Stopped after {self._max_warm_starts} warm starts: the origin of artifact {base.id} is not "
                    "shown; see --depth."
                )

    def _add_search(self, artifact: pb.Artifact) -> str:
        tuner = self._store.producer(artifact)
        values = read_values(artifact)
        node = self._graph.add(describe_search(artifact, tuner, values))
        for examples in self._inputs(tuner, "examples"):
            self._graph.connect(self._add_examples(examples, tuner), node)
        return node

    def _add_examples(self, examples: pb.Artifact, reader: pb.Execution | None) -> str:
        """Add examples, their data, and their checks in the pipeline run of `reader`."""
        if artifact_id(examples) in self._graph:
            return artifact_id(examples)
        execution = self._store.producer(examples)
        rejects = self._store.outputs(execution).get("rejects", []) if execution is not None else []
        node = self._graph.add(describe_examples(examples, execution, rejects[-1] if rejects else None))
        folders = describe_data(examples, execution)
        if len(folders) > _MAX_SPANS:
            self._graph.note(
                f"Only the last {_MAX_SPANS} of the {len(folders)} data folders of artifact {examples.id} are shown."
            )
        for folder in folders[-_MAX_SPANS:]:
            self._graph.connect(self._graph.add(folder), node)
        for each in self._store.executions_of_run(reader) if reader is not None else []:
            self._add_checks(each, examples)
        return node

    def _add_checks(self, execution: pb.Execution, examples: pb.Artifact) -> None:
        """Add the checks that this execution made of the examples, if any."""
        inputs, outputs = self._store.inputs(execution), self._store.outputs(execution)
        reads = {each.id for each in inputs.get("examples", [])}
        for report in outputs.get("report", []):
            if report.type == DATASET_REPORT_TYPE and examples.id in reads:
                made = self._store.producer(report)  # another execution if this one was answered from the cache
                node = self._graph.add(describe_report(report, made or execution))
                self._graph.connect(artifact_id(examples), node)
        for anomalies in outputs.get("anomalies", []):
            statistics = inputs.get("statistics", [])
            sources = [self._store.producer(each) for each in statistics]
            if any(examples.id == each.id for source in sources if source for each in self._inputs(source, "examples")):
                made = self._store.producer(anomalies) or execution
                schemas = inputs.get("schema", [])
                node = self._graph.add(
                    describe_anomalies(anomalies, made, schemas[-1] if schemas else None, statistics[-1])
                )
                self._graph.connect(artifact_id(examples), node)

    def _add_evaluation(self, model: pb.Artifact, pusher: pb.Execution | None, root: str) -> None:
        """Add the evaluation whose blessing the push used, else the last evaluation of the model."""
        blessings = self._inputs(pusher, "model_blessing") if pusher is not None else []
        makers = [self._store.producer(each) for each in blessings[-1:]] or self._store.consumers(model, "model")
        evaluators = [each for each in makers if each is not None and self._store.outputs(each).get("evaluation")]
        if not evaluators:
            self._graph.note(f"ML Metadata has no evaluation of artifact {model.id}.")
            return
        made = self._store.outputs(evaluators[-1])
        evaluation = made["evaluation"][-1]
        evaluator = self._store.producer(evaluation) or evaluators[-1]
        inputs = self._store.inputs(evaluator)
        metrics, blessing = (made.get(key, [None])[-1] for key in ("metrics", "blessing"))
        node = self._graph.add(describe_evaluation(evaluation, evaluator, metrics, blessing))
        self._graph.connect(node, root)
        self._graph.connect(self._add_model(model), node)
        for baseline in inputs.get("baseline_model", []):
            self._graph.connect(self._add_model(baseline), node, "baseline")
        for examples in inputs.get("examples", []):
            self._graph.connect(self._add_examples(examples, evaluator), node)
        for report in inputs.get("dataset_report", []):
            if artifact_id(report) in self._graph:
                self._graph.connect(artifact_id(report), node)

    def _inputs(self, execution: pb.Execution | None, key: str) -> list[pb.Artifact]:
        return self._store.inputs(execution).get(key, []) if execution is not None else []


def _addresses(model_uri: Any) -> tuple[str, ...]:
    """Return possible addresses of a recorded model's artifact; a manual push names the SavedModel inside it."""
    return (model_uri, model_uri.rpartition("/")[0]) if isinstance(model_uri, str) and model_uri else ()
