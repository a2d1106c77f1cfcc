import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.kubeflow_config import Kubeflow, SecretVariable, Volume
from detloom.schemas.typed_dict import from_json, to_canonical_json

IMAGE = "registry.example.org/detloom:1.0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "kubeflow.example.org"}, r"host: got no such address, allowed: http:// or https://, without a user"),
        ({"host": "https://ann:hunter2@kubeflow.example.org"}, "host: got no such address"),
        ({"host": "https://kubeflow.example.org/pipeline?token=hunter2"}, "host: .* without a user, a query or a frag"),
        ({"host": "https://kubeflow.example.org/pipeline?hunter2"}, "host: got no such address"),
        ({"host": "https://kubeflow.example.org/pipeline#hunter2"}, "host: got no such address"),
        ({"host": "https://kubeflow.example.org/pipeline&token=hunter2"}, "host: got no such address"),
        ({"namespace": ""}, "namespace: got nothing"),
        ({"experiment": ""}, "experiment: got nothing"),
        ({"token": "eyJhbGciOi"}, "token: got no reference to a secret, allowed: env:NAME"),
        ({"schedule_timezone": "CEST-ish"}, "schedule_timezone: got 'CEST-ish', allowed: a name such as UTC"),
        ({"image": "Not An Image"}, "image: got 'Not An Image'"),
        ({"pipeline_root": "/data"}, "pipeline_root: got '/data', allowed: an address at minio://, s3://, gs://"),
        ({"training_dir": "data"}, "training_dir: got 'data', allowed: an absolute path"),
        (
            {"volumes": (Volume(claim="a", mount_path="/m"), Volume(claim="b", mount_path="/m"))},
            r"volumes: got \['/m', '/m'\], allowed: each mount_path once",
        ),
        (
            {"secrets": (SecretVariable(variable="A", secret="s", key="k"),) * 2},
            r"secrets: got \['A', 'A'\], allowed: each variable once",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message) as refusal:
        Kubeflow(**{"image": IMAGE, **settings})
    assert "hunter2" not in str(refusal.value)
    assert "eyJ" not in str(refusal.value)


def test_settings_travel_as_json():
    settings = Kubeflow(
        image=IMAGE,
        host="https://kubeflow.example.org/pipeline",
        token="env:KFP_TOKEN",
        schedule_timezone="Europe/Berlin",
        volumes=(Volume(claim="data", mount_path="/data"),),
    )
    assert from_json(Kubeflow, to_canonical_json(settings)) == settings
