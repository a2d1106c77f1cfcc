"""Push to a Vertex AI endpoint: TFX's extension, with support for canary deployments.

TFX uploads the model, creates the endpoint if it is missing, and deploys. It passes `ai_platform_serving_args` to
`Model.deploy` of Google's client, which rejects a traffic share below 100 % for the first model of an endpoint, after
the upload.
"""

from collections.abc import Sequence
from typing import Any

from absl import logging
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.extensions.google_cloud_ai_platform import constants
from tfx.extensions.google_cloud_ai_platform.pusher import component as tfx_component
from tfx.extensions.google_cloud_ai_platform.pusher import executor as tfx_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.utils import json_utils

from detloom.components.artifact_types import Artifacts
from detloom.components.properties import (
    PUSHED_DESTINATION_PROPERTY,
    PUSHED_IS_NEW_PROPERTY,
    REASON_PROPERTY,
    blessed_digest,
    blessing_message,
)
from detloom.components.pusher.endpoint import (
    EndpointModel,
    find_served,
    label_model,
    read_endpoint,
    rolled_back_models,
    undeploy_old,
)
from detloom.components.pusher.manifest import build_manifest, check_is_evaluated, is_of_model
from detloom.components.pusher.versions import LABEL_MAP_PATH, describe_class_change
from detloom.components.storage.local_copy import local_folder
from detloom.components.storage.storage import open_storage
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.push import ClassChange, VertexEndpoint

# Keys in custom_config.
ENDPOINT_KEY, CLASSES_KEY, KEEP_KEY = "detloom_endpoint", "allow_class_change", "keep_deployed"
_ALL_TRAFFIC = 100


def vertex_custom_config(endpoint: VertexEndpoint, allow_class_change: ClassChange = "none") -> dict[str, Any]:
    """Return the `custom_config` of TFX's Vertex Pusher."""
    serving_args: dict[str, Any] = {
        "project": endpoint.project,
        "endpoint_name": endpoint.endpoint_name,
        "machine_type": endpoint.machine_type,
        "min_replica_count": endpoint.min_replicas,
        "max_replica_count": endpoint.max_replicas,
        "traffic_percentage": endpoint.traffic_percent,
    }
    if endpoint.accelerator_type:
        serving_args["accelerator_type"] = endpoint.accelerator_type
        serving_args["accelerator_count"] = endpoint.accelerator_count
    return {
        constants.ENABLE_VERTEX_KEY: True,
        constants.VERTEX_REGION_KEY: endpoint.region,
        constants.VERTEX_CONTAINER_IMAGE_URI_KEY: endpoint.container_image,
        constants.SERVING_ARGS_KEY: serving_args,
        ENDPOINT_KEY: endpoint.address,
        CLASSES_KEY: allow_class_change,
        KEEP_KEY: endpoint.keep_deployed,
    }


class VertexExecutor(tfx_executor.Executor):
    """TFX's executor, which also logs why nothing is deployed and gives an endpoint's first model all traffic.

    A model that already serves is not deployed again, nor is one that was rolled back.
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Deploy the model if it is blessed, and label it in the model registry.

        Raises:
            InputError: the artifacts are not in Google Cloud Storage, from where Vertex AI reads models, or Vertex AI
                does not tell what the endpoint serves.
        """
        pushed_model = artifact_utils.get_single_instance(output_dict[keys.PUSHED_MODEL_KEY])
        if not self.CheckBlessing(input_dict):
            logging.info("Pusher: not deployed. %s", blessing_message(input_dict.get(keys.MODEL_BLESSING_KEY)))
            self._MarkNotPushed(pushed_model)
            return
        if not pushed_model.uri.startswith("gs://"):
            raise InputError(
                f"push.vertex: got artifacts in {pushed_model.uri}, allowed: a pipeline root at gs://, from where "
                "Vertex AI reads models. Run this pipeline on Vertex AI, or push to a folder."
            )
        config = json_utils.loads(exec_properties[keys.CUSTOM_CONFIG_KEY])
        address, models = config[ENDPOINT_KEY], read_endpoint(config[ENDPOINT_KEY])
        model_uri, served = self.GetModelPath(input_dict), find_served(models)
        with local_folder(model_uri, is_of_model) as folder:
            manifest = build_manifest(folder)
            check_is_evaluated(manifest, blessed_digest(input_dict), model_uri)
            change = ""
            if served is not None:
                label_map = open_storage(served.uri).read(LABEL_MAP_PATH) if served.uri else None
                change = describe_class_change(address, label_map, folder, config.get(CLASSES_KEY, "none"))
        identity = manifest.identity
        serving = next((model for model in models if model.identity == identity and model.traffic_percent), None)
        if serving is not None:
            logging.info("Pusher: nothing to do, %s already serves this model.", address)
            self._MarkPushed(pushed_model, pushed_destination=serving.name)
            pushed_model.set_int_custom_property(PUSHED_IS_NEW_PROPERTY, 0)
            return
        if any(model.identity == identity for model in rolled_back_models(models)):
            change = (
                f"{address}: this model was served before and was rolled back, so it is not deployed again; to serve "
                "it in spite of that, give it traffic at the endpoint"
            )
        elif change:
            change += "; to deploy it in spite of that, set push.allow_class_change to any"
        if change:
            reason = f"{change}."
            logging.warning("Pusher: not deployed. %s", reason)
            self._MarkNotPushed(pushed_model)
            pushed_model.set_string_custom_property(REASON_PROPERTY, reason)
            return
        if served is None:
            logging.info("Pusher: %s serves no model yet, so this one gets all traffic.", address)
            serving_args = {**config[constants.SERVING_ARGS_KEY], "traffic_percentage": _ALL_TRAFFIC}
            custom_config = json_utils.dumps({**config, constants.SERVING_ARGS_KEY: serving_args})
            exec_properties = {**exec_properties, keys.CUSTOM_CONFIG_KEY: custom_config}
        super().Do(input_dict, output_dict, exec_properties)
        label_model(address, pushed_model.get_string_custom_property(PUSHED_DESTINATION_PROPERTY), identity)
        pushed_model.set_int_custom_property(PUSHED_IS_NEW_PROPERTY, 1)
        if config[KEEP_KEY]:
            _undeploy_old(address, config[KEEP_KEY], models)


class VertexPusher(tfx_component.Pusher):
    """TFX's Vertex Pusher with `VertexExecutor`."""

    EXECUTOR_SPEC = ExecutorClassSpec(VertexExecutor)


def _undeploy_old(address: str, keep: int, before: Sequence[EndpointModel]) -> None:
    """Undeploy models without requests, but none that served before the push; the push succeeds if this fails."""
    try:
        undeploy_old(address, keep, {model.name for model in before if model.traffic_percent})
    except InputError as error:
        logging.warning("Pusher: the new model serves, but older ones still cost their machines: %s", error)
