import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.kubeflow import Kubeflow, SecretVariable, Volume

IMAGE = "registry.example.org/detloom:1.0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "kubeflow.example.org"}, r"host: .*http:// or https://"),
        ({"ui": "https://ann:hunter2@kubeflow.example.org"}, "ui: "),
        ({"host": "https://ann:hunter2@kubeflow.example.org"}, "host: "),
        ({"host": "https://kubeflow.example.org/pipeline?token=hunter2"}, "host: "),
        ({"host": "https://kubeflow.example.org/pipeline?hunter2"}, "host: "),
        ({"host": "https://kubeflow.example.org/pipeline#hunter2"}, "host: "),
        ({"host": "https://kubeflow.example.org/pipeline&token=hunter2"}, "host: "),
        ({"namespace": ""}, "namespace: must not be empty"),
        ({"experiment": ""}, "experiment: must not be empty"),
        ({"token": "eyJhbGciOi"}, "token: got .*allowed: env:NAME"),
        ({"schedule_timezone": "CEST-ish"}, "schedule_timezone: got 'CEST-ish', allowed: a name such as UTC"),
        ({"image": "Not An Image"}, "image: got 'Not An Image'"),
        ({"service_account": "My Account"}, "service_account: got 'My Account'"),
        ({"pipeline_root": "/data"}, "pipeline_root: got '/data', allowed: an address at minio://, s3://, gs://"),
        ({"training_dir": "data"}, "training_dir: got 'data', allowed: an absolute path"),
        (
            {"volumes": (Volume(claim="a", mount_path="/m"), Volume(claim="b", mount_path="/m"))},
            "volumes: .*'/m' appears twice",
        ),
        (
            {"secrets": (SecretVariable(variable="A", secret="s", key="k"),) * 2},
            "secrets: .*'A' appears twice",
        ),
    ],
)
def test_invalid_kubeflow_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=message) as refusal:
        Kubeflow(**{"image": IMAGE, **settings})
    assert "hunter2" not in str(refusal.value)
    assert "eyJ" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "public"),
    [
        ({"host": "http://localhost:8080"}, ""),
        ({"host": "http://127.0.0.1:8080/pipeline"}, ""),
        ({"host": "http://[::1]:8080"}, ""),
        ({"host": "https://k.example/pipeline"}, "https://k.example/pipeline"),
        ({"host": "http://localhost:8080", "ui": "https://k.example"}, "https://k.example"),
        ({}, ""),
    ],
)
def test_links_for_other_people_do_not_lead_to_this_machine(settings, public):
    assert Kubeflow(image=IMAGE, **settings).public_ui == public
