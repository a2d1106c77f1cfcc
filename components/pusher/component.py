"""A TFX component that pushes a model into a folder of versions: TFX's Pusher with one more input."""

from typing import Any

from tfx.components.pusher import component as tfx_pusher
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.proto import pusher_pb2
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter
from tfx.types.standard_artifacts import PushedModel
from tfx.utils import json_utils

from detloom.components.artifact_types import ModelCard
from detloom.components.properties import MODEL_CARD_KEY
from detloom.components.pusher.executor import PUSH_KEY, Executor
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.push import Push


class PusherSpec(keys.PusherSpec):
    """Specification of Pusher. It has the name of TFX's own, so that code that looks for a Pusher finds it."""

    INPUTS = {**keys.PusherSpec.INPUTS, MODEL_CARD_KEY: ChannelParameter(type=ModelCard, optional=True)}


class Pusher(tfx_pusher.Pusher):
    """A component that pushes a blessed model into a folder of versions.

    Outputs:
        pushed_model: PushedModel, as written by TFX's Pusher.
    """

    SPEC_CLASS = PusherSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: BaseChannel,
        model_blessing: BaseChannel | None = None,
        model_card: BaseChannel | None = None,
        *,
        push_to: str,
        settings: Push,
        custom_config: dict[str, Any] | None = None,
    ) -> None:
        """Create the component.

        Args:
            model_blessing: if it is missing, every model is pushed.
            model_card: stored in the version, under `assets.extra/`.
            push_to: the folder, or its address.
            custom_config: further values that distinguish executions in TFX's cache.
        """
        destination = pusher_pb2.PushDestination.Filesystem(base_directory=push_to)
        spec = PusherSpec(
            **{
                keys.MODEL_KEY: model,
                keys.MODEL_BLESSING_KEY: model_blessing,
                MODEL_CARD_KEY: model_card,
                keys.PUSH_DESTINATION_KEY: pusher_pb2.PushDestination(filesystem=destination),
                keys.CUSTOM_CONFIG_KEY: json_utils.dumps(
                    {**(custom_config or {}), PUSH_KEY: to_canonical_json(settings)}
                ),
                keys.PUSHED_MODEL_KEY: Channel(type=PushedModel),
            }
        )
        BaseComponent.__init__(self, spec=spec)  # TFX's __init__ accepts no further input
