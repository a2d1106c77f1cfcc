import json

import yaml
from command_line import detloom_command, sentence

RUN = {
    "name": "cells",
    "data": {"path": "photos", "split_by_ratio": {}},
    "train": {"batch_size": 4, "num_steps": 8},
    "kubeflow": {"image": "r/detloom:1", "volumes": [{"claim": "shared", "mount_path": "/data"}]},
}
FOLDERS = ["--examples", "/data/examples", "--out", "/data/out"]


def manifest(tmp_path, *arguments, **sections):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({**RUN, **sections}))
    return detloom_command("manifest", path, *FOLDERS, *arguments)


def test_default_is_a_job_for_two_machines_and_overrides_reach_the_configuration(tmp_path):
    result = manifest(tmp_path, "--set", "train.num_steps=99")
    assert result.exit_code == 0, result.output
    config, _, job = yaml.safe_load_all(result.output)
    assert (job["kind"], job["metadata"]["name"], job["spec"]["completions"]) == ("Job", "cells", 2)
    assert json.loads(config["data"]["config.json"])["train"]["num_steps"] == 99


def test_file_has_the_same_content_as_standard_output(tmp_path):
    printed = manifest(tmp_path, "--workers", 4, "--name", "night").output
    file = tmp_path / "night.yaml"
    result = manifest(tmp_path, "--workers", 4, "--name", "night", "-o", file)
    assert (result.exit_code, result.output) == (0, "")
    assert file.read_text() == printed
    assert [each["kind"] for each in yaml.safe_load_all(printed)] == ["ConfigMap", "Service", "Job"]


def test_a_missing_section_and_a_checkpoint_that_containers_cannot_see_are_refused(tmp_path):
    assert "kubeflow: the section is missing" in sentence(manifest(tmp_path, kubeflow=None))
    result = manifest(tmp_path, train={**RUN["train"], "fine_tune_checkpoint": "zoo/ckpt-0"})
    assert "train.fine_tune_checkpoint: got 'zoo/ckpt-0', allowed on Kubernetes: " in sentence(result)
