"""Resolver nodes for one machine, which find models and reports of earlier runs.

The production model is the version that serves now, also after a rollback or a manual push. It is the baseline of a new
model and the start of a warm start. A resolver returns the artifact that was pushed, or the same copy of its content in
every run, so that an unchanged pipeline gets the same inputs and TFX's cache answers.

The previous report is the data report of the span before the current one. The latest report does not do: if an
unchanged pipeline runs again, the latest report belongs to the current span. The validator's inputs would then change,
and it would run again instead of using its cached result.

The strategies of this module are only for runners that call strategies in Python. On clusters, the component
`ProductionModel` copies the production model.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact, ArtifactState
from tfx.types.channel import BaseChannel, Channel
from tfx.types.standard_artifacts import Model

from detloom.components.artifact_types import Artifacts, DatasetReport, saved_model_dir
from detloom.components.properties import (
    PUSHED_DESTINATION_PROPERTY,
    PUSHED_VERSION_PROPERTY,
    SPAN_PROPERTY,
    int_property,
)
from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.versions import open_destination
from detloom.components.resolvers.copy_version import copy_production_model, production_versions
from detloom.components.storage.local_copy import local_folder
from detloom.schemas.contracts.detections import SERVING_FOLDER
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

_LOGGER = logging.getLogger("detloom")
CANDIDATE = "candidate"
EXAMPLES = "examples"
REPORT = "report"
BASELINE_NODE = "BaselineResolver"
PREVIOUS_REPORT_NODE = "PreviousReportResolver"
WARM_START_NODE = "WarmStartResolver"


class ProductionModelStrategy(ResolverStrategy):
    """Resolve the model that serves now, other than an artifact under the key `candidate`."""

    def __init__(self, push_to: str, copies: str) -> None:
        """Args: `push_to` is the folder of versions or its address, `copies` a folder for versions of other origin."""
        self._push_to, self._copies = push_to, Path(copies)

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: Artifacts) -> Artifacts | None:
        """Return at most one model; a candidate is passed through."""
        passed = {CANDIDATE: input_dict[CANDIDATE]} if CANDIDATE in input_dict else {}
        candidates = [saved_model_dir(model) for model in passed.get(CANDIDATE, ())]
        try:
            with local_folder(candidates[0]) if candidates else contextlib.nullcontext() as folder:
                model = self._pushed_artifact(input_dict[keys.MODEL_KEY], folder) or self._copy(store, folder)
        except (InputError, OSError) as error:
            _LOGGER.error("The production model cannot be read: %s", redact(str(error)))  # TFX shows no reason
            raise
        return {**passed, keys.MODEL_KEY: [model] if model else []}

    def _pushed_artifact(self, models: Sequence[Artifact], candidate_dir: Path | None) -> Artifact | None:
        """Return the artifact that was pushed; None if there is none, or its files are not those that serve."""
        candidate = build_manifest(candidate_dir).digest if candidate_dir is not None else None
        _, manifest = next(production_versions(open_destination(self._push_to), candidate), (0, None))
        if manifest is None:
            return None
        for model in models:
            if model.uri != manifest.push.get("model_uri"):
                continue
            # an address without files is an InputError
            with contextlib.suppress(InputError), local_folder(saved_model_dir(model)) as folder:
                if folder.is_dir() and build_manifest(folder).digest == manifest.digest:
                    return model
        return None

    def _copy(self, store: mlmd.MetadataStore, candidate_dir: Path | None) -> Artifact | None:
        """Copy the version into a folder named by its content, and register it once."""
        incoming = self._copies / "incoming"
        found = copy_production_model(self._push_to, incoming / SERVING_FOLDER, candidate_dir)
        if found is None:
            return None
        folder = self._copies / found.digest[:16]
        if folder.is_dir():
            shutil.rmtree(incoming)
        else:
            os.replace(incoming, folder)
        model = Model()
        registered = store.get_artifacts_by_uri(str(folder))
        if registered:
            model.set_mlmd_artifact(registered[0])
            return model
        model.uri, model.state = str(folder), ArtifactState.PUBLISHED
        model.set_string_custom_property(PUSHED_VERSION_PROPERTY, found.version)
        model.set_string_custom_property(PUSHED_DESTINATION_PROPERTY, found.address)
        model.type_id = store.put_artifact_type(model.artifact_type)
        (model.id,) = store.put_artifacts([model.mlmd_artifact])
        return model


def build_production_resolver(push_to: str, copies: str, candidate: BaseChannel | None = None) -> Resolver:
    """Build a node whose output `model` is the model that serves now, other than `candidate`; empty without one.

    Args:
        push_to: folder of versions, or its address.
        copies: folder for copies of versions that no artifact holds, such as those of a manual push.
    """
    channels = {keys.MODEL_KEY: Channel(type=Model), **({CANDIDATE: candidate} if candidate else {})}
    config = {"push_to": push_to, "copies": copies}
    return Resolver(strategy_class=ProductionModelStrategy, config=config, **channels)


class PreviousReportStrategy(ResolverStrategy):
    """Resolve the newest report of the latest span before the span of the examples."""

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: Artifacts) -> Artifacts | None:
        """Return at most one report; the examples are passed through."""
        examples = input_dict[EXAMPLES]
        spans = [span for artifact in examples if (span := int_property(artifact, SPAN_PROPERTY)) is not None]
        earlier = [
            (span, report.id, report)
            for report in input_dict[REPORT]
            if spans and (span := int_property(report, SPAN_PROPERTY)) is not None and span < max(spans)
        ]
        return {EXAMPLES: examples, REPORT: [max(earlier, key=lambda each: each[:2])[2]] if earlier else []}


def build_previous_report_resolver(examples: BaseChannel) -> Resolver:
    """Build the node whose output `report` is the report to compare with; it is empty if no such report exists."""
    return Resolver(
        strategy_class=PreviousReportStrategy,
        **{EXAMPLES: examples, REPORT: Channel(type=DatasetReport)},
    ).with_id(PREVIOUS_REPORT_NODE)
