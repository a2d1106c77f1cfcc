import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.vertex import Vertex

PLACE = {"project": "my-project", "region": "us-central1", "image": "x/detloom:1", "pipeline_root": "gs://bucket/root"}
KEY = "projects/my-project/locations/us-central1/keyRings/ring/cryptoKeys/key"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("project", "My Project", "project: got 'My Project', allowed: the id of a project"),
        ("region", "here", "region: got 'here', allowed: a region such as us-central1"),
        ("pipeline_root", "gs://", "pipeline_root: got 'gs://', allowed: an address at gs://"),
        ("pipeline_root", "/data", "pipeline_root: got '/data'"),
        ("training_dir", "/gcs/bucket/x", "training_dir: got '/gcs/bucket/x', allowed: an address at gs://"),
        ("service_account", "runner", "service_account: got 'runner', allowed: the e-mail address of an account"),
        ("network", "default", "network: got 'default', allowed: such as projects/123/global/networks/name"),
        ("encryption_key", "key", "encryption_key: got 'key', allowed: such as projects/p/locations/us-central1/key"),
        ("labels", {"Team": "cells"}, "labels: got Team: cells, allowed: lower case letters"),
        ("labels", {"team": "x" * 64}, "labels: got team: x+, allowed: .*at most 63"),
    ],
)
def test_invalid_vertex_settings_are_rejected(field, value, message):
    with pytest.raises(InputError, match=message):
        Vertex(**{**PLACE, field: value})
