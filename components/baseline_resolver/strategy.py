"""Which model does a candidate have to beat?

TFX's LatestBlessedModelStrategy answers: the latest blessed one. When an unchanged pipeline runs again, that is the
candidate itself, blessed by the run before: the evaluator's inputs change, so its cache misses, and the model is
compared with itself. Leaving the candidate out gives the same answer on every run of the same pipeline.
"""

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing

CANDIDATE = "candidate"
NODE_ID = "BaselineResolver"


class BaselineStrategy(LatestBlessedModelStrategy):
    """The latest blessed model that is not under the key `candidate`; for runners that call strategies in Python.

    (The KFP v2 compiler knows TFX's own two strategies by name and refuses all others.)
    """

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]] | None:
        """The model and its blessing, or two empty lists; the candidate as it came in."""
        candidates = input_dict[CANDIDATE]
        candidate_ids = {artifact.id for artifact in candidates}
        history = {key: list(artifacts) for key, artifacts in input_dict.items() if key != CANDIDATE}
        history[keys.MODEL_KEY] = [model for model in history[keys.MODEL_KEY] if model.id not in candidate_ids]
        resolved = super().resolve_artifacts(store, history)
        return None if resolved is None else {**resolved, CANDIDATE: candidates}


def build_baseline_resolver(candidate: BaseChannel) -> Resolver:
    """The node whose output `model` is the baseline of `candidate`, or nothing while no other model is blessed."""
    return Resolver(
        strategy_class=BaselineStrategy,
        **{
            CANDIDATE: candidate,
            keys.MODEL_KEY: Channel(type=Model),
            keys.MODEL_BLESSING_KEY: Channel(type=ModelBlessing),
        },
    ).with_id(NODE_ID)
