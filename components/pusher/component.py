"""DetectionPusher, which pushes a model into a folder of versions: TFX's Pusher with one more input."""

from typing import Any

from tfx.components.pusher import component as tfx_pusher
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.proto import pusher_pb2
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter
from tfx.types.standard_artifacts import PushedModel
from tfx.utils import json_utils

from detloom.components.artifact_types import ModelCard
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import CODE_FINGERPRINT, MODEL_CARD_KEY
from detloom.components.pusher.executor import PUSH_KEY, Executor
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.schemas.run_file.push import Push


class PusherSpec(keys.PusherSpec):
    """Specification of Pusher. It has the name of TFX's own, so that code that looks for a Pusher finds it."""

    INPUTS = {**keys.PusherSpec.INPUTS, MODEL_CARD_KEY: ChannelParameter(type=ModelCard, optional=True)}


class DetectionPusher(tfx_pusher.Pusher):
    """A component that pushes a blessed model into a folder of versions: copied, verified, loaded, then renamed.

    Outputs:
        pushed_model: PushedModel, as written by TFX's Pusher.
    """

    SPEC_CLASS = PusherSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: BaseChannel | None = None,
        model_blessing: BaseChannel | None = None,
        infra_blessing: BaseChannel | None = None,
        *,
        push_destination: pusher_pb2.PushDestination | RuntimeParameter,
        model_card: BaseChannel | None = None,
        settings: Push | None = None,
        custom_config: dict[str, Any] | None = None,
    ) -> None:
        """Create the component.

        Args:
            model: the model to push; it may be missing if `infra_blessing` has one with warm-up requests.
            model_blessing: output of DetectionEvaluator or of TFX's Evaluator.
            infra_blessing: output of TFX's InfraValidator. Without a blessing, every model is pushed.
            push_destination: `filesystem` with the folder of versions as `base_directory`, or its address.
            model_card: stored in the version, under `assets.extra/`.
            settings: number of kept versions and time limits; None uses the defaults.
            custom_config: further values. TFX's cache answers only if they are equal, and does not see whether a pushed
                version still exists: a new value in each run, such as {"nonce": uuid.uuid4().hex}, always runs the
                node. Pushing a model that is already served only reads its files and changes nothing.

        Raises:
            ValueError: neither a model nor a blessing of TFX's InfraValidator is given.
        """
        if model is None and infra_blessing is None:
            raise ValueError("DetectionPusher: got neither model nor infra_blessing, allowed: at least one of them.")
        config = {
            **(custom_config or {}),
            CODE_FINGERPRINT: source_fingerprint(__name__),
            PUSH_KEY: to_canonical_json(settings or Push()),
        }
        spec = PusherSpec(
            **{
                keys.MODEL_KEY: model,
                keys.MODEL_BLESSING_KEY: model_blessing,
                keys.INFRA_BLESSING_KEY: infra_blessing,
                MODEL_CARD_KEY: model_card,
                keys.PUSH_DESTINATION_KEY: push_destination,
                keys.CUSTOM_CONFIG_KEY: json_utils.dumps(config),
                keys.PUSHED_MODEL_KEY: Channel(type=PushedModel),
            }
        )
        BaseComponent.__init__(self, spec=spec)  # TFX's __init__ accepts no further input
