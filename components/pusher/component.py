"""DetectionPusher, which pushes a model into a folder of versions: TFX's Pusher with one more input."""

import contextlib
import functools
from typing import Any

from absl import logging
from tfx.components.pusher import component as tfx_pusher
from tfx.components.pusher import executor as tfx_executor
from tfx.components.util import model_utils
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter
from tfx.types.standard_artifacts import PushedModel
from tfx.utils import io_utils, json_utils, proto_utils

from detloom.components.artifact_types import Artifacts, ModelCard
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import (
    CODE_FINGERPRINT,
    MODEL_CARD_KEY,
    PUSHED_IS_NEW_PROPERTY,
    REASON_PROPERTY,
    address_of,
    blessed_digest,
    blessed_forms,
    blessing_message,
    blessing_metrics,
)
from detloom.components.pusher.load_check import check_serves
from detloom.components.pusher.manifest import Origin, is_of_model
from detloom.components.pusher.push import NotPushedError, push_model
from detloom.components.storage.local_copy import local_folder
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.schemas.run_file.push import Push

_PUSH_KEY = "push"  # key in custom_config; the value is `Push` as JSON


class Executor(tfx_executor.Executor):
    """The checks and outputs of TFX's Pusher around an atomic push; also a custom executor for TFX's Pusher."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Push the model to the filesystem destination if it is blessed; record the result in PushedModel."""
        self._log_startup(input_dict, output_dict, exec_properties)
        pushed_model = artifact_utils.get_single_instance(output_dict[keys.PUSHED_MODEL_KEY])
        if not self.CheckBlessing(input_dict):
            logging.info("Pusher: not pushed. %s", blessing_message(input_dict.get(keys.MODEL_BLESSING_KEY)))
            self._MarkNotPushed(pushed_model)
            return
        push_dir, settings = _push_dir(exec_properties), _settings(exec_properties)
        model_uri = self.GetModelPath(input_dict)
        cards = input_dict.get(MODEL_CARD_KEY) or []
        card = local_folder(cards[0].uri) if cards else contextlib.nullcontext()
        with local_folder(model_uri, is_of_model) as model_dir, card as card_dir:
            assert model_dir is not None
            try:
                result = push_model(
                    model_dir,
                    push_dir,
                    origin=self._origin(input_dict),
                    card_dir=card_dir,
                    keep_versions=settings.keep_versions,
                    allow_class_change=settings.allow_class_change,
                    allow_rolled_back=False,
                    expected_digest=blessed_digest(input_dict),
                    lock_seconds=settings.lock_seconds,
                    check=functools.partial(check_serves, seconds=settings.load_seconds),
                )
            except NotPushedError as error:
                logging.warning("Pusher: not pushed. %s", error)
                self._MarkNotPushed(pushed_model)
                pushed_model.set_string_custom_property(REASON_PROPERTY, str(error))
                return
        if result.is_new:
            logging.info("Pusher: pushed version %d to %s.", result.version, result.address)
        else:
            logging.info("Pusher: nothing to do, version %d at %s is this model.", result.version, result.address)
        io_utils.copy_dir(model_uri, pushed_model.uri)  # TFX's Pusher stores a copy in its artifact as well
        self._MarkPushed(pushed_model, pushed_destination=result.address, pushed_version=str(result.version))
        pushed_model.set_int_custom_property(PUSHED_IS_NEW_PROPERTY, int(result.is_new))

    def _origin(self, input_dict: Artifacts) -> Origin:
        models = input_dict.get(keys.MODEL_KEY) or input_dict[keys.INFRA_BLESSING_KEY]
        blessings = input_dict.get(keys.MODEL_BLESSING_KEY) or []
        return Origin(
            model_uri=address_of(models[0]),
            run_id=str(getattr(self._context, "pipeline_run_id", None) or "") if self._context else "",
            blessing=_describe_blessing(blessings[0]) if blessings else {},
            metrics=blessing_metrics(blessings[0]) if blessings else {},
        )


def _settings(exec_properties: dict[str, Any]) -> Push:
    config = json_utils.loads(exec_properties.get(keys.CUSTOM_CONFIG_KEY) or "null") or {}
    return from_json(Push, config[_PUSH_KEY]) if _PUSH_KEY in config else Push()


def _push_dir(exec_properties: dict[str, Any]) -> str:
    destination = pusher_pb2.PushDestination()
    proto_utils.json_to_proto(exec_properties[keys.PUSH_DESTINATION_KEY], destination)
    filesystem = destination.filesystem
    if destination.WhichOneof("destination") != "filesystem" or not filesystem.base_directory:
        raise InputError("push_destination: allowed: filesystem with a base_directory.")
    if filesystem.versioning not in (pusher_pb2.Versioning.AUTO, pusher_pb2.Versioning.UNIX_TIMESTAMP):
        raise InputError("push_destination: versioning: allowed: AUTO or UNIX_TIMESTAMP.")
    return str(filesystem.base_directory)


def _describe_blessing(blessing: Artifact) -> dict[str, Any]:
    return {
        "id": blessing.id,
        "uri": address_of(blessing),
        "blessed": bool(model_utils.is_model_blessed(blessing)),
        "sentence": blessing_message([blessing], default=""),
        "forms": blessed_forms(blessing),
    }


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
            _PUSH_KEY: to_canonical_json(settings or Push()),
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
