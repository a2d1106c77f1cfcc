"""Train with two workers: the Indexed Job of `detloom manifest`, undisturbed and with a deleted pod."""

import json

import pytest
import yaml
from click.testing import CliRunner
from cluster_access.helper_pod import MOUNT
from cluster_access.pods import wait_for
from kubernetes import client, utils

from detloom.pipelines.cli import cli
from detloom.pipelines.samples.sample_run_file import sample_run_file

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
STEPS, SAVED_EVERY = 600, 50
TRAINING = [
    f"train.num_steps={STEPS}",
    f"train.checkpoint_every_n={SAVED_EVERY}",
    "nodes=[{node: Trainer, max_retries: 3, cpu: 100m, memory: 3Gi}]",
]
DATA, EXAMPLES, KEPT = (f"{MOUNT}/workers/{name}" for name in ("digits", "examples", "kept"))
# The demo's data contain eight damaged images, which are more than 5% of so few.
WRITE_EXAMPLES = """
import subprocess, sys
from pathlib import Path
from detloom.pipelines.samples.demo_data import write_demo_data
write_demo_data(Path(sys.argv[1]), num_train=64, num_eval=16, num_test=16)
command = [sys.executable, "-m", "detloom.pipelines.cli", "ingest", "--input", sys.argv[1], "--output", sys.argv[2]]
done = subprocess.run([*command, "--max-reject-fraction", "0.1"], capture_output=True, text=True)
sys.exit(done.stdout[-2000:] + done.stderr[-2000:] if done.returncode else 0)
"""
# All workers but the chief write their state to a temporary folder; this code keeps it on the volume.
_KEEP_TEMPORARY_FOLDERS = f"""
import os, tempfile
if "JOB_COMPLETION_INDEX" in os.environ:
    tempfile.tempdir = f"{KEPT}/{{os.environ['HOSTNAME']}}"
    os.makedirs(tempfile.tempdir, exist_ok=True)
    tempfile.TemporaryDirectory.cleanup = lambda self: self._finalizer.detach()
"""
_WRITE_FILE = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(sys.argv[2])
"""
# Prints a digest of all saved values but the object graph.
_DIGEST = """
import hashlib, sys
import tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
digest, names = hashlib.sha256(), sorted(reader.get_variable_to_shape_map())
for name in names:
    if name != "_CHECKPOINTABLE_OBJECT_GRAPH":
        digest.update(name.encode() + getattr(reader.get_tensor(name), "tobytes", lambda: b"")())
print(len(names), digest.hexdigest())
"""
_FINAL = ("Complete", "Failed")  # conditions of a Job


class Workers:
    """One Indexed Job, and its folder of results."""

    def __init__(self, cluster, helper, pipeline, name):
        self.cluster, self.helper, self.name = cluster, helper, name
        self.out = f"{MOUNT}/workers/{name}"
        words = ["manifest", str(sample_run_file("demo")), "--workers", "2", "--name", name]
        words += ["--examples", EXAMPLES, "--out", self.out]
        sets = [word for setting in pipeline.settings for word in ("--set", setting)]
        result = CliRunner().invoke(cli, [*words, *sets])
        assert result.exit_code == 0, f"{result.exception!r} {result.output}"
        self.documents = list(yaml.safe_load_all(result.stdout))

    def start(self):
        namespace = self.cluster.namespace
        for document in self.documents:
            if document["kind"] == "Job":
                (container,) = document["spec"]["template"]["spec"]["containers"]
                container["env"].append({"name": "PYTHONPATH", "value": f"{KEPT}/code"})
            utils.create_from_dict(client.ApiClient(), document, namespace=namespace)

    def pods(self):
        selector = f"app.kubernetes.io/instance={self.name}"
        return self.cluster.core.list_namespaced_pod(self.cluster.namespace, label_selector=selector).items

    def wait(self):
        """Return whether the workers have succeeded, once they have succeeded or failed."""
        state = wait_for(self._final_state, f"the end of the job {self.name}", 1500)
        return state == "Complete"

    def _final_state(self):
        """Return the type of the final condition; None while there is none."""
        job = client.BatchV1Api().read_namespaced_job(self.name, self.cluster.namespace)
        final = [each.type for each in job.status.conditions or () if each.status == "True" and each.type in _FINAL]
        return final[0] if final else None

    def saved_steps(self):
        files = [file.rpartition("/")[2] for file in self.helper.files_under(f"{self.out}/checkpoints")]
        return sorted(int(file[5:-6]) for file in files if file.startswith("ckpt-") and file.endswith(".index"))

    def digest_of(self, checkpoint):
        return self.helper.run_python(_DIGEST, checkpoint).split()

    def delete(self):
        namespace = self.cluster.namespace
        for document in self.documents:
            where = {"name": document["metadata"]["name"], "namespace": namespace}
            match document["kind"]:
                case "Job":
                    client.BatchV1Api().delete_namespaced_job(**where, propagation_policy="Background")
                case "Service":
                    self.cluster.core.delete_namespaced_service(**where)
                case "ConfigMap":
                    self.cluster.core.delete_namespaced_config_map(**where)


@pytest.fixture(scope="module")
def examples(helper):
    """Write the examples and the code for the workers to the volume."""
    helper.run_python(WRITE_EXAMPLES, DATA, EXAMPLES)
    helper.run_python(_WRITE_FILE, f"{KEPT}/code/sitecustomize.py", _KEEP_TEMPORARY_FOLDERS)


@pytest.fixture(scope="module")
def make_workers(examples, small_pipeline, cluster, helper, session_name):
    made = []

    def make(name):
        workers = Workers(cluster, helper, small_pipeline("workers", *TRAINING), f"{session_name}-{name}")
        workers.start()
        made.append(workers)
        return workers

    yield make
    for workers in made:
        workers.delete()


@pytest.fixture(scope="module")
def undisturbed(make_workers, cluster):
    workers = make_workers("calm")
    assert workers.wait(), [cluster.read_log(pod.metadata.name, "trainer") for pod in workers.pods()]
    return workers


def test_two_workers_end_with_equal_weights(undisturbed, helper):
    """Needs room for two pods at a time, and cluster DNS with the names of pods of a headless service."""
    kept = [file for file in helper.files_under(KEPT) if undisturbed.name in file and file.endswith("/ckpt.index")]
    assert kept, json.dumps(helper.files_under(KEPT))
    newest = helper.run_python("import os, sys; print(max(sys.argv[1:], key=os.path.getmtime))", *kept).strip()
    chief = undisturbed.digest_of(f"{undisturbed.out}/checkpoints/ckpt-{STEPS}")
    assert int(chief[0]) > 50
    assert undisturbed.digest_of(newest.removesuffix(".index")) == chief


def test_the_weights_are_the_same_after_a_worker_was_lost(undisturbed, make_workers, cluster):
    """Needs in addition the permission to delete pods."""
    workers = make_workers("lost")
    wait_for(workers.saved_steps, "a checkpoint", 900)
    before = {pod.metadata.name for pod in workers.pods()}
    victim = next(name for name in before if name.startswith(f"{workers.name}-1"))
    cluster.delete_pod(victim)
    assert workers.wait()
    assert {pod.metadata.name for pod in workers.pods()} != before
    lost, calm = (each.digest_of(f"{each.out}/checkpoints/ckpt-{STEPS}") for each in (workers, undisturbed))
    assert lost == calm
