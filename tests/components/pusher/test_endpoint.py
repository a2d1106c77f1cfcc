"""Tests of what an endpoint serves, with Google's client replaced."""

import inspect

import pytest
from google.api_core.exceptions import PermissionDenied
from google.cloud import aiplatform
from google.cloud.aiplatform_v1.types import DeployedModel

from detloom.components.pusher.endpoint import (
    find_served,
    label_model,
    read_endpoint,
    rolled_back_identities_at,
    rolled_back_models,
)
from detloom.schemas.errors import InputError

ADDRESS = "vertex://my-project/us-central1/cells"
FIRST, SECOND, THIRD = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def deploy(vertex):
    """Upload, deploy and label a model; return its resource name."""

    def run(digest, percent=100):
        name = vertex.upload("gs://bucket/model")
        vertex.deploy(name, percent)
        label_model(ADDRESS, name, digest)
        return name

    return run


def served():
    found = find_served(read_endpoint(ADDRESS))
    return found and found.identity


def test_a_missing_endpoint_serves_nothing(vertex):
    assert read_endpoint(ADDRESS) == []
    assert served() is None
    assert rolled_back_identities_at(ADDRESS) == set()
    assert vertex.initialized_with == {"project": "my-project", "location": "us-central1"}


def test_the_model_with_most_traffic_serves(deploy):
    deploy(FIRST)
    assert served() == FIRST
    deploy(SECOND, percent=10)
    assert served() == FIRST
    deploy(THIRD, percent=100)
    assert served() == THIRD


def test_a_canary_was_not_rolled_back(deploy):
    deploy(FIRST)
    deploy(SECOND, percent=10)
    assert rolled_back_identities_at(ADDRESS) == set()


@pytest.mark.parametrize("how", ["its traffic is taken away", "it is removed", "the earlier one is deployed again"])
def test_a_newer_model_without_traffic_was_rolled_back(how, deploy, vertex):
    first = deploy(FIRST)
    second = deploy(SECOND)
    if how == "it is removed":
        vertex.undeploy(second)
        vertex.traffic = {"0": 100}
    elif how == "its traffic is taken away":
        vertex.traffic = {"0": 100, "1": 0}
    else:
        vertex.deploy(first, 100)
    assert served() == FIRST
    assert [model.name for model in rolled_back_models(read_endpoint(ADDRESS))] == [second]
    assert rolled_back_identities_at(ADDRESS) == {SECOND}


def test_a_replaced_model_was_not_rolled_back(deploy):
    deploy(FIRST)
    deploy(SECOND)
    assert rolled_back_identities_at(ADDRESS) == set()


def test_a_model_that_something_else_deployed_has_no_digest(deploy, vertex):
    deploy(FIRST)
    vertex.deploy(vertex.upload("gs://bucket/by-hand", team="cells"), 100)
    assert served() == ""


def test_a_refused_request_is_one_sentence(vertex, monkeypatch):
    def refuse(filter):
        raise PermissionDenied("no access")

    monkeypatch.setattr(vertex.Endpoint, "list", refuse)
    with pytest.raises(InputError, match=ADDRESS):
        read_endpoint(ADDRESS)


def test_googles_client_has_what_is_used():
    assert "filter" in inspect.signature(aiplatform.Model.list).parameters
    assert "labels" in inspect.signature(aiplatform.Model.update).parameters
    assert "deployed_model_id" in inspect.signature(aiplatform.Endpoint.undeploy).parameters
    assert {"id", "model", "create_time"} <= DeployedModel.meta.fields.keys()
    for name in ("resource_name", "uri", "create_time", "labels"):
        assert hasattr(aiplatform.Model, name)
    for name in ("name", "traffic_split", "list_models"):
        assert hasattr(aiplatform.Endpoint, name)
