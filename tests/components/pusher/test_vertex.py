"""Deployment to Vertex AI with Google's client replaced: no network access."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import pytest
from google.api_core.exceptions import PermissionDenied
from google.cloud import aiplatform
from tfx.extensions.google_cloud_ai_platform.pusher import executor as tfx_executor
from tfx.types import Channel
from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel
from tfx.utils import json_utils

from detloom.components.pusher import vertex as vertex_pusher
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

CAT = b"item { id: 1 name: 'cat' }"


@pytest.fixture(autouse=True)
def no_copy(monkeypatch):
    monkeypatch.setattr(tfx_executor.io_utils, "copy_dir", lambda src, dst: None)
    monkeypatch.setattr(vertex_pusher, "open_storage", lambda address: SimpleNamespace(read=lambda name: CAT))


@pytest.fixture
def do(vertex, model):
    """Run the executor with the model folder; return the pushed model."""

    def run(folder=model, blessed=1, pushed_uri="gs://bucket/pushed", endpoint=ENDPOINT, allowed="none", digest=""):
        artifact, blessing, pushed = Model(), ModelBlessing(), PushedModel()
        artifact.uri, pushed.uri = str(folder.parent), pushed_uri
        (folder.parent / "Format-Serving").unlink(missing_ok=True)
        (folder.parent / "Format-Serving").symlink_to(folder)
        blessing.set_int_custom_property("blessed", blessed)
        blessing.set_string_custom_property("blessing_message", "Not blessed: AP50 0.100 is below 0.500.")
        blessing.set_string_custom_property("blessed_digest", digest)
        properties = {"custom_config": json_utils.dumps(vertex_custom_config(endpoint, allowed))}
        inputs = {"model": [artifact], "model_blessing": [blessing]}
        VertexExecutor().Do(inputs, {"pushed_model": [pushed]}, properties)
        return pushed

    return run


def state_of(pushed):
    """Return whether the model was pushed, and whether it is a new version."""
    is_new = pushed.get_int_custom_property("pushed_is_new") if pushed.has_custom_property("pushed_is_new") else None
    return pushed.get_int_custom_property("pushed"), is_new


def test_canary_gets_its_traffic_share_and_machines(do, vertex, monkeypatch):
    vertex.deploy(vertex.upload("gs://bucket/earlier"), 100)
    calls = []
    deploy = vertex.deploy
    upload = vertex.Model.upload

    def record(**arguments):
        calls.append(arguments)
        uploaded = upload(**arguments)
        uploaded.deploy = lambda **options: (
            calls.append(options) or deploy(uploaded.resource_name, options["traffic_percentage"])
        )
        return uploaded

    monkeypatch.setattr(vertex.Model, "upload", record)
    pushed = do()
    uploaded, deployed = calls
    assert (uploaded["artifact_uri"], uploaded["serving_container_image_uri"]) == (
        "gs://bucket/pushed",
        "serving-image",
    )
    assert deployed == {
        "endpoint": vertex.endpoints[0][1],
        "machine_type": "n1-standard-4",
        "min_replica_count": 1,
        "max_replica_count": 1,
        "accelerator_type": "NVIDIA_TESLA_T4",
        "accelerator_count": 1,
        "traffic_percentage": 10,
    }
    assert vertex.traffic == {"0": 90, "1": 10}
    assert vertex.initialized_with == {"project": "my-project", "location": "us-central1"}
    assert pushed.get_string_custom_property("pushed_destination") == "projects/1/models/2"


@pytest.mark.parametrize("exists", [False, True])
def test_first_model_of_an_endpoint_gets_all_traffic(exists, do, vertex):
    if exists:
        vertex.Endpoint.create("cells")
    do()
    assert vertex.traffic == {"0": 100}
    assert len(vertex.endpoints) == 1


def test_a_model_that_serves_already_is_not_deployed_again(do, vertex):
    assert state_of(do()) == (1, 1)
    assert state_of(do()) == (1, 0)
    assert len(vertex.models) == 1


def test_a_model_that_was_rolled_back_is_not_deployed_again(do, vertex, model, other_model):
    do(model)
    do(other_model, endpoint=replace(ENDPOINT, traffic_percent=100))
    vertex.traffic = {"0": 100, "1": 0}
    again = do(other_model)
    assert state_of(again) == (0, None)
    assert again.get_string_custom_property("reason")
    assert len(vertex.models) == 2


@pytest.mark.parametrize(
    ("served", "offers_grow"), [(CAT, True), (CAT.replace(b"cat", b"dog"), False), (None, False), (b"item {", False)]
)
def test_grow_is_offered_only_if_it_allows_the_push(do, vertex, model, monkeypatch, served, offers_grow):
    vertex.deploy(vertex.upload("gs://bucket/served"), 100)
    monkeypatch.setattr(vertex_pusher, "open_storage", lambda address: SimpleNamespace(read=lambda name: served))
    with (model / "assets" / "label_map.pbtxt").open("a") as label_map:
        label_map.write(" item { id: 2 name: 'dog' }")
    assert ("grow" in do().get_string_custom_property("reason")) == offers_grow


@pytest.mark.parametrize(("label_map", "reason"), [(CAT.replace(b"cat", b"dog"), "other classes"), (None, "unknown")])
def test_other_classes_or_other_files_than_those_that_were_blessed_are_not_deployed(
    do, vertex, monkeypatch, label_map, reason
):
    vertex.deploy(vertex.upload("gs://bucket/served"), 100)
    monkeypatch.setattr(vertex_pusher, "open_storage", lambda address: SimpleNamespace(read=lambda name: label_map))
    pushed = do(allowed="none" if label_map else "grow")
    assert state_of(pushed) == (0, None)
    assert reason in pushed.get_string_custom_property("reason")
    assert "set push.allow_class_change to any" in pushed.get_string_custom_property("reason")
    with pytest.raises(InputError, match="files of the model have changed"):
        do(allowed="any", digest="other")
    assert state_of(do(allowed="any")) == (1, 1)


def test_a_model_that_was_replaced_is_deployed_again(do, vertex, model, other_model):
    for folder in (model, other_model, model):
        assert state_of(do(folder, endpoint=replace(ENDPOINT, traffic_percent=100))) == (1, 1)
    assert vertex.traffic == {"1": 0, "2": 100}


ALL_TRAFFIC = replace(ENDPOINT, traffic_percent=100)


def test_old_models_without_requests_are_undeployed_but_stay_in_the_registry(do, vertex, make_model, tmp_path):
    vertex.deploy(vertex.upload("gs://bucket/of-another-team"), 0)
    for number in range(4):
        do(make_model(tmp_path / str(number) / "model", f"graph {number}".encode()), endpoint=ALL_TRAFFIC)
    assert vertex.traffic == {"0": 0, "3": 0, "4": 100}
    assert len(vertex.models) == 5
    do(make_model(tmp_path / "all" / "model", b"graph"), endpoint=replace(ALL_TRAFFIC, keep_deployed=0))
    assert vertex.traffic == {"0": 0, "3": 0, "4": 0, "5": 100}


def test_models_with_requests_and_the_one_that_served_before_the_push_stay_deployed(
    do, vertex, model, other_model, third_model
):
    do(model)
    do(other_model, endpoint=ALL_TRAFFIC)
    vertex.traffic = {"0": 100, "1": 0}  # a rollback
    do(third_model, endpoint=ALL_TRAFFIC)
    assert vertex.traffic == {"0": 0, "2": 100}
    vertex.traffic = {"0": 50, "2": 50}
    do(other_model)
    assert vertex.traffic == {"0": 45, "2": 45, "3": 10}


def test_a_model_that_cannot_be_undeployed_is_a_warning(do, vertex, model, other_model, third_model, caplog):
    do(model)
    do(other_model, endpoint=ALL_TRAFFIC)
    endpoint = type(vertex.endpoints[0][1])
    endpoint.undeploy = lambda self, deployed_model_id: (_ for _ in ()).throw(PermissionDenied("not allowed"))
    assert state_of(do(third_model, endpoint=ALL_TRAFFIC)) == (1, 1)
    assert "not allowed" in caplog.text


def test_arguments_exist_in_the_signature_of_googles_client():
    """Compare with the signature of the real method."""
    arguments = vertex_custom_config(ENDPOINT)["ai_platform_serving_args"]
    for_deploy = arguments.keys() - {"project", "endpoint_name"}
    assert for_deploy | {"endpoint"} <= inspect.signature(aiplatform.Model.deploy).parameters.keys()


def test_unblessed_model_is_not_deployed_and_the_reason_is_logged(do, vertex, caplog):
    caplog.set_level("INFO", logger="absl")
    assert state_of(do(blessed=0)) == (0, None)
    assert not vertex.models
    assert "Not blessed: AP50 0.100 is below 0.500." in caplog.text


def test_artifacts_outside_of_cloud_storage_are_refused_before_the_upload(do, vertex):
    with pytest.raises(InputError, match=r"push\.vertex: got artifacts in /pushed, allowed: .*gs://"):
        do(pushed_uri="/pushed")
    assert not vertex.models


def test_component_uses_vertex_executor():
    pusher = VertexPusher(model=Channel(type=Model), custom_config=vertex_custom_config(ENDPOINT))
    assert pusher.executor_spec.class_path == "detloom.components.pusher.vertex.VertexExecutor"
