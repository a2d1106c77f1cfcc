import json

import pytest
import yaml

from detloom.pipelines import job_fingerprint
from detloom.pipelines.job_fingerprint import read_job_fingerprints
from detloom.schemas.errors import InputError

ONE, OTHER = "0123456789abcdef", "1234567890123456"  # the second would be a number in YAML if it were not quoted


def executors(*fingerprints: str) -> dict:
    """As in the deploymentSpec of both backends."""
    command = ["python", "-m", "detloom.pipelines.container.entrypoint", "--place", "kubeflow", "--package_fingerprint"]
    return {
        "deploymentSpec": {
            "executors": {
                f"node{i}_executor": {"container": {"command": [*command, fingerprint], "args": ["--x", "{{$}}"]}}
                for i, fingerprint in enumerate(fingerprints)
            }
        }
    }


def test_a_job_for_vertex():
    job = json.dumps({"displayName": "demo", "pipelineSpec": executors(ONE, ONE)}, indent=2)
    assert read_job_fingerprints(job.encode(), "job.json") == (ONE,)
    assert read_job_fingerprints(json.dumps(json.loads(job)).encode(), "job.json") == (ONE,)


@pytest.mark.parametrize("flow", [True, False])
def test_a_job_for_kubeflow(flow):
    job = yaml.safe_dump_all([executors(ONE, ONE), {"platforms": {"kubernetes": {}}}], default_flow_style=flow)
    assert read_job_fingerprints(job.encode(), "job.yaml") == (ONE,)


def test_commands_in_json_within_json():
    specs = json.dumps({"worker_pool_specs": [{"container_spec": executors(ONE)}]}, indent=1)
    job = json.dumps({"custom_config": json.dumps({"ai_platform_training_args": specs})})
    assert read_job_fingerprints(job.encode(), "job.json") == (ONE,)


def test_flag_and_value_may_be_one_word():
    assert read_job_fingerprints(f'["--package_fingerprint={ONE}"]'.encode(), "job.json") == (ONE,)


def test_a_job_of_several_versions_shows_all():
    job = yaml.safe_dump(executors(OTHER, ONE, OTHER))
    assert read_job_fingerprints(job.encode(), "job.yaml") == (ONE, OTHER)


@pytest.mark.parametrize(
    "job", [b"", b"\x00\xff", b"name: demo\n", b"--package_fingerprint", f"--package_fingerprint: {ONE}0".encode()]
)
def test_what_holds_no_fingerprint_is_refused(job):
    with pytest.raises(InputError, match=r"job.yaml: got no --package_fingerprint .* `detloom compile`"):
        read_job_fingerprints(job, "job.yaml")


def test_a_huge_file_is_refused(monkeypatch):
    monkeypatch.setattr(job_fingerprint, "MAX_JOB_BYTES", 1 << 20)
    with pytest.raises(InputError, match="got more than 1 MiB"):
        read_job_fingerprints(b" " * ((1 << 20) + 1), "job.yaml")
