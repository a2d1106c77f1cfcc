"""Which report do the data of a span have to be compared with?

That of the span before. Not simply the latest report: when an unchanged pipeline runs again, that is the span's own,
and the validator, given another input than before, would run again instead of being answered from the cache.
"""

import ml_metadata as mlmd
from tfx.components.example_gen.utils import SPAN_PROPERTY_NAME
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel

from detloom.components.artifact_types import DatasetReport

EXAMPLES = "examples"
REPORT = "report"
NODE_ID = "PreviousReportResolver"


class PreviousReportStrategy(ResolverStrategy):
    """The newest report of the latest span before that of the examples; for runners that call strategies in Python.

    (The KFP v2 compiler knows TFX's own two strategies by name and refuses all others.)
    """

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]] | None:
        """At most one report; the examples as they came in."""
        examples = input_dict[EXAMPLES]
        spans = [span for artifact in examples if (span := _span_of(artifact)) is not None]
        earlier = [
            (span, report.id, report)
            for report in input_dict[REPORT]
            if spans and (span := _span_of(report)) is not None and span < max(spans)
        ]
        return {EXAMPLES: examples, REPORT: [max(earlier, key=lambda each: each[:2])[2]] if earlier else []}


def _span_of(artifact: Artifact) -> int | None:
    if not artifact.has_custom_property(SPAN_PROPERTY_NAME):
        return None
    return int(artifact.get_int_custom_property(SPAN_PROPERTY_NAME))


def build_previous_report_resolver(examples: BaseChannel) -> Resolver:
    """The node whose output `report` is the report to compare with, or nothing while there is none."""
    return Resolver(
        strategy_class=PreviousReportStrategy,
        **{EXAMPLES: examples, REPORT: Channel(type=DatasetReport)},
    ).with_id(NODE_ID)
