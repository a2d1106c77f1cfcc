"""Resolver nodes that find models and reports of earlier runs.

The baseline is the latest blessed model other than the candidate. TFX's LatestBlessedModelStrategy returns the latest
blessed model. If an unchanged pipeline runs again, this is the candidate itself, which the previous run blessed: the
evaluator's inputs change, its cache misses, and the model is compared with itself. Excluding the candidate gives the
same result in every run of the same pipeline.

The previous report is the data report of the span before the current one. The latest report does not do: if an
unchanged pipeline runs again, the latest report belongs to the current span. The validator's inputs would then change,
and it would run again instead of using its cached result.

A warm start initializes training from the latest blessed model. TFX's own strategy is sufficient, because no candidate
exists yet that would have to be excluded, and all runners support it by name.

The strategies of this module are only for runners that call strategies in Python: the KFP v2 compiler supports TFX's
own two strategies and refuses all others.
"""

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing

from detloom.components.artifact_types import DatasetReport
from detloom.components.properties import SPAN_PROPERTY, int_property

CANDIDATE = "candidate"
EXAMPLES = "examples"
REPORT = "report"
BASELINE_NODE = "BaselineResolver"
PREVIOUS_REPORT_NODE = "PreviousReportResolver"
WARM_START_NODE = "WarmStartResolver"


class BaselineStrategy(LatestBlessedModelStrategy):
    """Resolve the latest blessed model that is not an artifact under the key `candidate`."""

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]] | None:
        """Return the model and its blessing, or two empty lists; the candidate is passed through."""
        candidates = input_dict[CANDIDATE]
        candidate_ids = {artifact.id for artifact in candidates}
        history = {key: list(artifacts) for key, artifacts in input_dict.items() if key != CANDIDATE}
        history[keys.MODEL_KEY] = [model for model in history[keys.MODEL_KEY] if model.id not in candidate_ids]
        resolved = super().resolve_artifacts(store, history)
        return None if resolved is None else {**resolved, CANDIDATE: candidates}


def build_baseline_resolver(candidate: BaseChannel) -> Resolver:
    """Build the node whose output `model` is the baseline of `candidate`; empty until another model is blessed."""
    return Resolver(
        strategy_class=BaselineStrategy,
        **{
            CANDIDATE: candidate,
            keys.MODEL_KEY: Channel(type=Model),
            keys.MODEL_BLESSING_KEY: Channel(type=ModelBlessing),
        },
    ).with_id(BASELINE_NODE)


class PreviousReportStrategy(ResolverStrategy):
    """Resolve the newest report of the latest span before the span of the examples."""

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]] | None:
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


def build_warm_start_resolver() -> Resolver:
    """Build the node whose output `model` is the latest blessed model of this pipeline, or empty without one."""
    return Resolver(
        strategy_class=LatestBlessedModelStrategy,
        **{keys.MODEL_KEY: Channel(type=Model), keys.MODEL_BLESSING_KEY: Channel(type=ModelBlessing)},
    ).with_id(WARM_START_NODE)
