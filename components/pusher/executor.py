"""The executor for TFX's stock Pusher: the stock checks and outputs around an atomic push."""

from pathlib import Path
from typing import Any

from absl import logging
from tfx.components.pusher import executor as tfx_pusher
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.utils import io_utils, proto_utils

from detloom.components.evaluator.executor import BLESSING_MESSAGE
from detloom.components.pusher.atomic_push import push_model
from detloom.schemas.errors import InputError


class Executor(tfx_pusher.Executor):
    """Use it as `Pusher(..., custom_executor_spec=ExecutorClassSpec(Executor))`."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Push the model to the filesystem destination if it is blessed; the artifact says what became of it."""
        self._log_startup(input_dict, output_dict, exec_properties)
        pushed_model = artifact_utils.get_single_instance(output_dict[keys.PUSHED_MODEL_KEY])
        if not self.CheckBlessing(input_dict):
            logging.info("Pusher: not pushed. %s", _blessing_message(input_dict))
            self._MarkNotPushed(pushed_model)
            return
        push_dir = _push_dir(exec_properties)
        model_dir = self.GetModelPath(input_dict)
        if "://" in model_dir:
            raise InputError(f"{model_dir}: only models on a mounted file system can be pushed; mount the bucket.")
        model_uri = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY]).uri
        result = push_model(Path(model_dir), push_dir, model_uri=model_uri)
        if result.is_new:
            logging.info("Pusher: pushed version %d to %s.", result.version, result.path)
        else:
            logging.info("Pusher: nothing to do, version %d in %s is this model.", result.version, result.path)
        io_utils.copy_dir(model_dir, pushed_model.uri)  # the stock Pusher archives what it pushed, too
        self._MarkPushed(pushed_model, pushed_destination=str(result.path), pushed_version=str(result.version))


def _push_dir(exec_properties: dict[str, Any]) -> Path:
    destination = pusher_pb2.PushDestination()
    proto_utils.json_to_proto(exec_properties[keys.PUSH_DESTINATION_KEY], destination)
    filesystem = destination.filesystem
    if destination.WhichOneof("destination") != "filesystem" or not filesystem.base_directory:
        raise InputError("push_destination: allowed: filesystem with a base_directory.")
    if filesystem.versioning not in (pusher_pb2.Versioning.AUTO, pusher_pb2.Versioning.UNIX_TIMESTAMP):
        raise InputError("push_destination: versioning: allowed: AUTO or UNIX_TIMESTAMP.")
    if "://" in filesystem.base_directory:
        raise InputError(
            f"push_destination: got {filesystem.base_directory}, allowed: a folder on a file system that can rename; "
            "mount the bucket."
        )
    return Path(filesystem.base_directory)


def _blessing_message(input_dict: dict[str, list[Artifact]]) -> str:
    for blessing in input_dict.get(keys.MODEL_BLESSING_KEY) or []:
        if blessing.has_custom_property(BLESSING_MESSAGE):
            return str(blessing.get_string_custom_property(BLESSING_MESSAGE))
    return "The model was not blessed."
