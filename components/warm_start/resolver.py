"""Which model does training start from, if the run file asks for a warm start?

The latest blessed one, by TFX's own strategy: at that time, there is no candidate that would have to be left out, and
every runner knows it by name.
"""

from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.types import standard_component_specs as keys
from tfx.types.channel import Channel
from tfx.types.standard_artifacts import Model, ModelBlessing

NODE_ID = "WarmStartResolver"


def build_warm_start_resolver() -> Resolver:
    """The node whose output `model` is the latest blessed model of this pipeline, or nothing while there is none."""
    return Resolver(
        strategy_class=LatestBlessedModelStrategy,
        **{keys.MODEL_KEY: Channel(type=Model), keys.MODEL_BLESSING_KEY: Channel(type=ModelBlessing)},
    ).with_id(NODE_ID)
