"""The demo, and single commands, with real object-store servers: `make test-object-stores` starts them.

Other servers can be used: DETLOOM_TEST_BUCKETS="gs://BUCKET s3://BUCKET" names two buckets whose content is replaced.
"""

import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from detloom.components.pusher.push import list_versions, push_model, read_records, roll_back
from detloom.components.pusher.versions import open_destination, verify_version
from detloom.components.storage.storage import open_storage
from detloom.pipelines.samples.demo_data import write_embedded_digits
from detloom.pipelines.samples.sample_run_file import sample_run_file
from detloom.schemas.contracts.rejects import REJECTS_FILE, REPORT_FILE

BUCKETS = "DETLOOM_TEST_BUCKETS"
STEPS = 400  # enough to be better than a detector that ignores the image

pytestmark = pytest.mark.object_stores


@pytest.fixture(scope="module")
def buckets():
    """Return new folders at gs:// and at s3://, by scheme."""
    addresses = os.environ.get(BUCKETS, "").split()
    if not addresses:
        pytest.skip(f"needs object-store servers: {BUCKETS}, which `make test-object-stores` sets")
    return {address[:2]: f"{address}/{uuid.uuid4().hex[:8]}" for address in addresses}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    write_embedded_digits(folder)
    return folder


@pytest.fixture(scope="module")
def upload(buckets, digits):
    """Return a function that uploads the demo's data and returns the address."""

    def call(scheme):
        storage = open_storage(f"{buckets[scheme]}/digits")
        storage.list_names()
        with ThreadPoolExecutor(8) as threads:
            files = [path for path in digits.rglob("*") if path.is_file()]
            list(threads.map(lambda path: storage.upload(path, path.relative_to(digits).as_posix()), files))
        return storage.root

    return call


def detloom(*words, is_refused=False):
    """Run a command in a process of its own and return its output."""
    command = [sys.executable, "-m", "detloom.pipelines.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == is_refused, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def ingest(data, out, *options):
    splits = ",".join(f"{name}=annotations/{name}.json" for name in ("train", "eval", "test"))
    return detloom("ingest", "--input", data, "--output", out, "--format", "coco", "--splits", splits, *options)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_examples_from_a_bucket_are_those_of_a_local_folder(scheme, upload, digits, tmp_path):
    ingest(digits, tmp_path / "local")
    ingest(upload(scheme), tmp_path / "remote", "--workers", 2)
    files = {path.relative_to(tmp_path / "local") for path in (tmp_path / "local").rglob("*") if path.is_file()}
    different = {
        path.name
        for path in files
        if (tmp_path / "local" / path).read_bytes() != (tmp_path / "remote" / path).read_bytes()
    }
    assert different <= {REPORT_FILE, REJECTS_FILE}  # the name of the data folder; where an image was searched


@pytest.fixture(scope="module")
def pushed(buckets, upload, tmp_path_factory):
    """Run the demo with data, artifacts and pushed models in a bucket; return the run file and the workspace."""
    folder = tmp_path_factory.mktemp("demo")
    text = sample_run_file("demo").read_text()
    changes = {
        "path: embedded:digits": f"path: {upload('gs')}",
        "num_steps: 1000": f"num_steps: {STEPS}",
        "total_steps: 1000": f"total_steps: {STEPS}",
        "evaluate_every: 500": "evaluate_every: 200",
        "min: 0.7": "min: 0.1",
    }
    for before, after in changes.items():
        text = text.replace(before, after)
    text += f"pipeline_root: {buckets['gs']}/root\npush_to: {buckets['gs']}/serving\n"
    (folder / "run.yaml").write_text(text)
    assert "pushed" in detloom("run", folder / "run.yaml", "--workspace", folder / "workspace")
    return folder / "run.yaml", folder / "workspace"


def test_the_demo_runs_in_a_bucket(pushed, buckets, digits, tmp_path):
    run_file, workspace = pushed
    serving = f"{buckets['gs']}/serving"
    (version,) = list_versions(serving)
    assert verify_version(open_destination(serving), version) == []
    assert "intact" in detloom("verify", serving)
    image = next((digits / "images").iterdir())
    assert "with a score of at least" in detloom(
        "predict", "--model", serving, image, "--json", tmp_path / "found.json"
    )
    assert str(version) in detloom("lineage", f"{serving}/{version}", "--workspace", workspace)
    again = detloom("run", run_file, "--workspace", workspace)
    assert "cached" in again
    assert list_versions(serving) == [version]
    assert not (Path.cwd() / "gs:").exists()


def test_commands_read_examples_and_models_from_a_bucket(pushed, buckets, tmp_path):
    storage = open_storage(buckets["gs"])
    (number,) = storage.list_names("root/DetectionExampleGen/examples")
    examples = f"{buckets['gs']}/root/DetectionExampleGen/examples/{number}"
    out = f"{buckets['gs']}/evaluation"
    detloom("evaluate", "--model", f"{buckets['gs']}/serving", "--examples", f"{examples}/Split-test", "--out", out)
    detloom("validate", examples, "--output", f"{buckets['gs']}/validation")
    detloom("inspect", examples, "--output", f"{buckets['gs']}/pages/inspect.html")
    names = {entry.path for folder in ("evaluation", "validation", "pages") for entry in storage.walk(folder)}
    assert {"evaluation/report.html", "validation/report.html", "pages/inspect.html"} <= names
    arguments = ("--examples", examples, "--out", tmp_path / "run", "--set", "train.num_steps=2")
    detloom("train", sample_run_file("demo"), *arguments, "--set", "train.optimizer.learning_rate.total_steps=2",
            "--set", "train.optimizer.learning_rate.warmup_steps=1")  # fmt: skip
    assert (tmp_path / "run/model/Format-Serving/saved_model.pb").is_file()


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_models_are_pushed_verified_and_rolled_back(scheme, pushed, buckets):
    source, target = f"{buckets['gs']}/serving", f"{buckets[scheme]}/by_hand"
    detloom("push", source, "--to", target, "--reason", "test")
    with open_destination(source).fetch(list_versions(source)[0]) as folder:
        (folder / "assets.extra/note.txt").parent.mkdir(exist_ok=True)
        (folder / "assets.extra/note.txt").write_text("another model")
        push_model(folder, target)
    first, second = list_versions(target)
    assert detloom("versions", target).count("intact") == 2
    assert detloom("verify", target).count("intact") == 2
    detloom("rollback", target, "--reason", "worse")
    third = list_versions(target)[-1]
    assert [record["version"] for record in read_records(target)] == [first, second, third]
    assert roll_back(target, reason="not worse", to=second).is_new
    assert open_storage(target).list_names(with_hidden=True)[:2] == [".push.lock", str(first)]  # no leftovers


def test_other_commands_refuse_s3_by_name(buckets):
    address = f"{buckets['s3']}/by_hand"
    assert address in detloom("predict", "--model", address, "x.jpg", is_refused=True)
