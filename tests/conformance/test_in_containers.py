"""Run the demo's compiled job for Kubeflow in containers, one per task. `make test-image` builds the image first."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from conformance_driver.execute import run_job
from conformance_driver.job import read_job
from conformance_driver.run import Machine
from container_runner import ContainerRunner

from detloom.pipelines.samples.demo_data import write_embedded_digits
from detloom.pipelines.samples.sample_run_file import sample_run_file
from detloom.schemas.reading.overrides import parse_set
from detloom.schemas.run_file.read_run_file import read_run_file

ENGINE = "podman" if shutil.which("podman") else "docker"
IMAGE = os.environ.get("DETLOOM_TEST_IMAGE", "")
# Settings for the run, one per line, such as train.num_steps=30, to try the test.
SETTINGS = os.environ.get("DETLOOM_TEST_SETTINGS", "").splitlines()
KFP_PYTHON = os.environ.get("DETLOOM_KFP_PYTHON", "")
ROOT = "minio://mlpipeline/v2/artifacts"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(not IMAGE, reason="needs an image in DETLOOM_TEST_IMAGE; `make test-image` builds one"),
]


def in_image(*command: str) -> str:
    done = subprocess.run(
        [ENGINE, "run", "--rm", "--network=none", f"--entrypoint={command[0]}", IMAGE, *command[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_image_runs_as_non_root_and_contains_no_compiler():
    assert in_image("id", "-u") == "1000"
    assert in_image("sh", "-c", "command -v gcc g++ cc || echo none") == "none"


def test_the_image_contains_no_settings_of_the_build_machine():
    found = in_image(
        "sh", "-c", "pip config list; ls /etc/pip.conf /run/secrets ~/.cache 2>/dev/null; env | grep ^PIP_ || true"
    )
    assert found == ""


def compile_demo(place_of_models: str, push_to: str, settings: list[str]) -> str:
    from detloom.pipelines.compile.compile_job import compile_job

    overrides = [
        f"kubeflow.image={IMAGE}",
        f"kubeflow.pipeline_root={ROOT}",
        f"kubeflow.volumes=[{{claim: models, mount_path: {place_of_models}}}]",
        f"push_to={push_to}",
        *settings,
    ]
    run = read_run_file(sample_run_file("demo"), overrides=[parse_set(text) for text in overrides], place="kubeflow")
    return compile_job(run, "kubeflow")


def versions_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdigit())


def test_every_task_of_the_demo_runs_in_the_image_and_a_model_is_pushed(tmp_path):
    job = read_job(compile_demo("/models", "/models/demo", SETTINGS), "kubeflow", root=ROOT)
    (tmp_path / "models").mkdir()
    home = tmp_path / "home"
    machine = Machine(home, ContainerRunner(IMAGE, home / "logs"), claims={"models": tmp_path / "models"})
    result = run_job(job, machine)
    assert result.state == "SUCCEEDED", result.describe_failures()
    assert len(versions_in(tmp_path / "models" / "demo")) == 1


@pytest.fixture
def docker_host(tmp_path):
    """Return the address of the engine's service; podman's is started for the test."""
    if ENGINE != "podman":
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return
    address = f"unix://{tmp_path}/podman.sock"
    service = subprocess.Popen([ENGINE, "system", "service", "--time=0", address])
    try:
        while not (tmp_path / "podman.sock").exists():
            assert service.poll() is None, "podman's service did not start"
            time.sleep(0.1)
        yield address
    finally:
        service.terminate()
        service.wait()


def run_with_kfp(job, root, docker_host, *parameters):
    """Run a job with the SDK's local runner; its containers see only `root`."""
    script = Path(__file__).parent / "run_with_kfp.py"
    environment = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "DOCKER_HOST": docker_host}
    command = [KFP_PYTHON, script, job, root, *parameters]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout[-20_000:])  # pytest shows it with -rP
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    folder.chmod(0o777)  # the image has another user
    return folder


needs_kfp = pytest.mark.skipif(not KFP_PYTHON, reason="needs a Python with kfp 2.17 and docker in DETLOOM_KFP_PYTHON")


@needs_kfp
def test_the_same_job_runs_in_the_kfp_sdk(root, docker_host):
    short = [
        "train.num_steps=20",
        "eval.evaluate_every=20",
        "gates.floors=[]",
        "gates.no_floor_reason=The training has a few steps.",
    ]
    job = root.parent / "job.yaml"
    job.write_text(compile_demo(str(root), str(root / "models" / "demo"), short))
    run_with_kfp(job, root, docker_host)
    assert len(versions_in(root / "models" / "demo")) == 1


@needs_kfp
def test_the_pipeline_of_kfp_components_runs_in_the_kfp_sdk(root, docker_host, monkeypatch):
    """Run the example of docs/kfp_components.md with the data and the settings of the demo."""
    monkeypatch.chdir(root.parent)
    run_file = yaml.safe_load(sample_run_file("demo").read_text())
    run_file["train"]["num_steps"] = run_file["eval"]["evaluate_every"] = 20
    run_file["train"]["optimizer"]["learning_rate"] = {"type": "ConstantLearningRate", "learning_rate": 1e-3}
    run_file["gates"] = {"no_floor_reason": "The training has a few steps."}
    Path("cells.yaml").write_text(yaml.safe_dump(run_file))
    page = (Path(__file__).parents[2] / "docs" / "kfp_components.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(re.sub(r"components_of\(.*\)", f"components_of({IMAGE!r})", code), {})
    write_embedded_digits(root / "data")
    run_with_kfp("cells.job.yaml", root, docker_host, f"data={root}/data", f"serving={root}/serving")
    assert len(versions_in(root / "serving")) == 1
