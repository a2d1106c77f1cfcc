"""Deployment to Vertex AI with Google's client replaced: no network access."""

import inspect
from unittest import mock

import pytest
from google.cloud import aiplatform
from tfx.extensions.google_cloud_ai_platform import prediction_clients
from tfx.extensions.google_cloud_ai_platform.pusher import executor as tfx_executor
from tfx.types import Channel
from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel
from tfx.utils import json_utils

from detloom.components.pusher.vertex import VertexExecutor, VertexPusher, vertex_custom_config
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.push import VertexEndpoint

ENDPOINT = VertexEndpoint(
    project="my-project",
    region="us-central1",
    endpoint_name="cells",
    container_image="serving-image",
    traffic_percent=10,
    accelerator_type="NVIDIA_TESLA_T4",
)


@pytest.fixture
def client(monkeypatch):
    """Replace Google's client as TFX uses it; `client.endpoint` is the existing endpoint."""
    client = mock.create_autospec(aiplatform)
    client.endpoint = mock.Mock(traffic_split={"7": 100}, resource_name="projects/1/endpoints/2")
    client.Endpoint.list.return_value = [client.endpoint]
    client.Model.upload.return_value.resource_name = "projects/1/models/3"
    monkeypatch.setattr(prediction_clients, "aiplatform", client)
    monkeypatch.setattr("detloom.components.pusher.vertex.aiplatform", client)
    monkeypatch.setattr(tfx_executor.io_utils, "copy_dir", lambda src, dst: None)
    return client


def do(blessed=1, pushed_uri="gs://bucket/pushed", endpoint=ENDPOINT):
    model, blessing, pushed = Model(), ModelBlessing(), PushedModel()
    model.uri, pushed.uri = "/model", pushed_uri
    blessing.set_int_custom_property("blessed", blessed)
    blessing.set_string_custom_property("blessing_message", "Not blessed: AP50 0.100 is below 0.500.")
    properties = {"custom_config": json_utils.dumps(vertex_custom_config(endpoint))}
    VertexExecutor().Do({"model": [model], "model_blessing": [blessing]}, {"pushed_model": [pushed]}, properties)
    return pushed


def deployed_with(client):
    (call,) = client.Model.upload.return_value.deploy.call_args_list
    return call.kwargs


def test_canary_gets_its_traffic_share_and_machines(client):
    pushed = do()
    assert deployed_with(client) == {
        "endpoint": client.endpoint,
        "machine_type": "n1-standard-4",
        "min_replica_count": 1,
        "max_replica_count": 1,
        "accelerator_type": "NVIDIA_TESLA_T4",
        "accelerator_count": 1,
        "traffic_percentage": 10,
    }
    upload = client.Model.upload.call_args.kwargs
    assert (upload["artifact_uri"], upload["serving_container_image_uri"]) == ("gs://bucket/pushed", "serving-image")
    client.init.assert_called_with(project="my-project", location="us-central1")
    assert pushed.get_string_custom_property("pushed_destination") == "projects/1/models/3"


@pytest.mark.parametrize("endpoints", ["none", "one without models"])
def test_first_model_of_an_endpoint_gets_all_traffic(endpoints, client):
    client.endpoint.traffic_split = {}
    found = [client.endpoint] if endpoints == "one without models" else []
    client.Endpoint.list.side_effect = [found, found, [client.endpoint]]
    do()
    assert deployed_with(client)["traffic_percentage"] == 100
    assert client.Endpoint.create.called == (endpoints == "none")


def test_arguments_exist_in_the_signature_of_googles_client():
    """Compare with the signature of the real method."""
    arguments = vertex_custom_config(ENDPOINT)["ai_platform_serving_args"]
    for_deploy = arguments.keys() - {"project", "endpoint_name"}
    assert for_deploy | {"endpoint"} <= inspect.signature(aiplatform.Model.deploy).parameters.keys()


def test_unblessed_model_is_not_deployed_and_the_reason_is_logged(client, caplog):
    caplog.set_level("INFO", logger="absl")
    pushed = do(blessed=0)
    assert pushed.get_int_custom_property("pushed") == 0
    assert not client.Model.upload.called
    assert "Not blessed: AP50 0.100 is below 0.500." in caplog.text


def test_artifacts_outside_of_cloud_storage_are_refused_before_the_upload(client):
    with pytest.raises(InputError, match=r"push\.vertex: got artifacts in /pushed, allowed: .*gs://"):
        do(pushed_uri="/pushed")
    assert not client.Model.upload.called


def test_component_uses_vertex_executor():
    pusher = VertexPusher(model=Channel(type=Model), custom_config=vertex_custom_config(ENDPOINT))
    assert pusher.executor_spec.class_path == "detloom.components.pusher.vertex.VertexExecutor"
