import json
import os
import re
from pathlib import Path

import pytest
import yaml

import detloom
from detloom.components.fingerprints import check_code, package_fingerprint, read_job_code
from detloom.pipelines.compile.compile_pipeline import format_json, format_yaml
from detloom.pipelines.compile.pipeline_spec import containers_of, dags_of, tasks_of
from detloom.pipelines.compile.shorten_job import constants_of
from detloom.pipelines.container.run_node import VERTEX_PUSHER

ROOT = Path(detloom.__file__).parents[1]
GPU, DATAFLOW = "kubeflow_gpu", "vertex_gpu_dataflow"  # with a decision, messages, retries and limits
TO_ENDPOINT = "push.vertex={project: my-project, region: us-central1, endpoint_name: cells, container_image: image}"
CHANGES = (
    "nodes=[{node: Notifier, max_retries: 4, cpu: 500m}, {node: ProductionModel, cpu: '2', max_retries: 3}]",
    "gates={floors: [], no_floor_reason: The run is a trial of the cluster.}",
)
LARGEST = (
    "notifications.events=[failed,refused,pushed,skipped]",
    "tuner={max_trials: 12}",
    "nodes=[{node: '*', max_retries: 2, time_limit_minutes: 60, cpu: '2', memory: 8Gi, ephemeral_storage: 20Gi}]",
)
WEIGHTS = (
    "kubeflow.volumes=[{claim: data, mount_path: /data}, {claim: w, mount_path: /w, nodes: [ModelCard]}]",
    "train.fine_tune_checkpoint=/w/ckpt-0",
    "push_to=/data/models",
    "notifications.events=[pushed]",
    "kubeflow.pipeline_root=''",
)


def sources_of(task):
    """Return the sources of a task's inputs: an input of the DAG, or a task and its output."""
    inputs = task["inputs"].get("artifacts", {})
    return {
        key: each.get("componentInputArtifact") or ".".join(sorted(each["taskOutputArtifact"].values()))
        for key, each in inputs.items()
    }


def test_without_a_decision_there_is_one_dag_and_training_waits_for_both_validators(compile_spec):
    spec = compile_spec("kubeflow_cpu")
    assert len(list(dags_of(spec))) == 1
    assert {"ExampleValidator", "DatasetValidator"} <= set(spec["root"]["dag"]["tasks"]["Trainer"]["dependentTasks"])


def test_jobs_have_no_resolver_and_compare_with_the_model_that_serves(compile_spec):
    spec = compile_spec("kubeflow_cpu")
    assert all(set(executor) == {"container"} for executor in spec["deploymentSpec"]["executors"].values())
    tasks = tasks_of(spec)
    assert sources_of(tasks["ProductionModel"]) == {"candidate": "Trainer.model"}
    assert sources_of(tasks["DetectionEvaluator"])["baseline_model"] == "ProductionModel.model"
    pushed_to = json.loads(constants_of(tasks["Pusher"])["push_destination"])["filesystem"]["base_directory"]
    assert constants_of(tasks["ProductionModel"])["production"] == pushed_to


def test_the_model_of_an_endpoint_serves_and_tfx_deploys_the_next_one(compile_spec):
    spec = compile_spec("vertex_tpu_v5e", TO_ENDPOINT)
    assert containers_of(spec)["Pusher"]["args"][1] == VERTEX_PUSHER
    assert constants_of(tasks_of(spec)["ProductionModel"])["production"] == "vertex://my-project/us-central1/cells"


def test_nodes_with_the_same_task_share_an_entry_of_the_run_file(compile_spec):
    spec = compile_spec(GPU, *CHANGES)
    tries = {key: task["retryPolicy"]["maxRetryCount"] for key, task in tasks_of(spec).items() if "retryPolicy" in task}
    notifiers = {"Notifier": 4, "SkipNotifier": 4, "FailureNotifier": 4}
    assert tries == {**notifiers, "ProductionModel": 3, "WarmStartModel": 3}
    assert containers_of(spec)["WarmStartModel"]["resources"] == {"cpuRequest": 2.0}
    assert containers_of(spec)["FailureNotifier"]["resources"] == {"cpuRequest": 0.5}


@pytest.mark.parametrize(
    ("name", "history"),
    [
        (DATAFLOW, "gs://my-bucket/vertex/cells-gpu/serving/dataset_reports/cells-gpu"),
        ("kubeflow_cpu", "/models/demo/dataset_reports/demo"),
    ],
)
def test_reports_are_kept_in_a_folder_that_all_runs_share(name, history, compile_spec):
    assert constants_of(tasks_of(compile_spec(name))["DatasetValidator"])["history"] == history


def test_the_address_of_the_packaged_schema_contains_its_digest(compile_spec):
    path = constants_of(tasks_of(compile_spec("kubeflow_cpu"))["ImportSchemaGen"])["schema_file"]
    assert re.fullmatch(r"package://detloom\.schemas\.contracts/example_schema\.pbtxt\?sha256=[0-9a-f]{16}", path)


@pytest.mark.parametrize("name", [GPU, DATAFLOW, "kubeflow_cpu"])
def test_no_two_containers_are_equal(name, compile_spec):
    """Check that containers differ, because open-source Kubeflow stores one component per distinct container, so that
    the second would get the outputs of the first (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/argo.go,
    hashComponentContainer)."""
    texts = [json.dumps(container, sort_keys=True) for container in containers_of(compile_spec(name)).values()]
    assert len(set(texts)) == len(texts)


def test_the_largest_job_is_small_enough_for_argo(compile_spec):
    """Check the size of a job with retraining, a search, all notifications, retries and limits.

    Argo compresses the nodes of a workflow above 1 MiB, and Kubeflow Pipelines then shows old states. Its nodes contain
    the specification of each task some twenty times: measured on a cluster, those of the demo had 770 kB.
    """
    assert len(json.dumps(compile_spec(GPU, *LARGEST))) < 50_000


@pytest.mark.parametrize("name", [GPU, DATAFLOW])
def test_the_job_contains_no_secret_and_the_code_of_its_tasks(name, compile_text):
    text = compile_text(name)
    assert "planted-user" not in text  # the value of SMTP_USER
    found = read_job_code(text.encode(), "job")
    for code in found:
        check_code(code)
    assert any("detloom.trainer_module" in code for code in found)
    assert str(ROOT) not in text
    assert os.environ["HOME"] not in text or os.environ["HOME"] == "/"


def test_formatting_the_parsed_job_gives_the_same_text(compile_text):
    documents = "".join(line for line in compile_text(GPU).splitlines(True) if not line.startswith("#"))
    assert format_yaml(yaml.safe_load_all(documents)) == documents
    text = compile_text(DATAFLOW)
    assert format_json(json.loads(text)) == text


def test_a_job_for_kubeflow_begins_with_its_origin_and_without_a_date(compile_text, compile_spec):
    text = compile_text(GPU)
    header = text[: text.index("components:")]
    assert f"detloom {detloom.__version__} " in header
    assert f"package {package_fingerprint()}" in header
    assert not re.search(r"20\d\d-|\d\d:\d\d", header)
    year = next(task["retryPolicy"]["backoffMaxDuration"] for task in tasks_of(compile_spec(GPU)).values())
    assert year == "31536000s"
    assert "backoffMaxDuration is a year" in header


def test_the_settings_can_be_read_in_comments_at_the_end(compile_text):
    text = compile_text(GPU)
    comments = text[text.index("# Settings of the tasks") :].splitlines()
    assert all(line.startswith("# ") for line in comments)
    (gates,) = [line.partition(": gates: ")[2] for line in comments if line.startswith("# DetectionEvaluator: gates: ")]
    assert "floors" in json.loads(gates)


def test_every_changed_setting_changes_what_the_cache_compares(compile_spec):
    def inputs_of(node, *settings):
        return tasks_of(compile_spec(GPU, *settings))[node]["inputs"]

    assert inputs_of("DetectionEvaluator") != inputs_of("DetectionEvaluator", *CHANGES)
    assert inputs_of("Trainer") == inputs_of("Trainer", *CHANGES)


def volumes_of(text):
    """Return the mount paths of each node."""
    _, platform = yaml.safe_load_all(text)
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return {
        label.removesuffix("_executor"): [mount["mountPath"] for mount in entry.get("pvcMount", ())]
        for label, entry in executors.items()
    }


def test_only_nodes_with_a_path_on_a_volume_get_it(compile_text):
    mounts = volumes_of(compile_text(GPU))  # the data and unfinished training are on it, models are pushed to gs://
    assert {node for node, paths in mounts.items() if paths} == {"DetectionExampleGen", "Trainer"}
    weights = volumes_of(compile_text(GPU, *WEIGHTS))
    assert {node for node, paths in weights.items() if "/w" in paths} == {"Trainer", "ModelCard"}
    on_data = {node for node, paths in weights.items() if "/data" in paths}
    assert on_data == {
        *("DatasetValidator", "DetectionExampleGen", "ProductionModel", "Pusher", "RetrainDecision"),
        *("Trainer", "TrainingRecord", "WarmStartModel"),
    }


def test_without_failure_notifications_and_a_root_there_is_no_exit_handler_and_no_root(compile_spec):
    spec = compile_spec(GPU, *WEIGHTS)
    assert "tfx-dag" not in spec["components"]
    assert "training" in spec["root"]["dag"]["tasks"]
    assert "defaultPipelineRoot" not in spec


def test_the_pipeline_root_is_set_where_each_backend_reads_it(compile_text, compile_spec):
    assert compile_spec(GPU)["defaultPipelineRoot"] == "s3://artifacts/kfp"
    job = json.loads(compile_text("vertex_tpu_v5e", TO_ENDPOINT))
    assert job["runtimeConfig"]["gcsOutputDirectory"] == job["pipelineSpec"]["defaultPipelineRoot"]
    assert job["labels"]["team"] == "vision"
    assert job["displayName"] == "cells-tpu"


# All of them are texts; without quotes, YAML 1.1 or 1.2 reads something else.
ODD = [*("12345678e0123456", "1e3", "0o17", "0x1f", ".inf", "1:30"), *("true", "no", "y", "null", "~", "")]
ODD += ["- a", "a: b", "a #b"]


def test_documents_are_sorted_and_separated_and_shared_objects_written_twice():
    assert format_yaml([{"root": 1, "dag": [2.0]}, {"platforms": {}}]) == "dag:\n- 2.0\nroot: 1\n---\nplatforms: {}\n"
    shared = {"a": "b"}
    assert "&" not in format_yaml([{"one": shared, "two": shared}])
    text = '{\n "a": {\n  "c": "\\u00e9",\n  "d": 2\n },\n "b": 1\n}\n'
    assert format_json({"b": 1, "a": {"d": 2, "c": "\u00e9"}}) == text


@pytest.mark.parametrize("text", ODD)
def test_strings_that_look_like_other_types_are_quoted(text):
    written = format_yaml([{"key": text}])
    assert written.startswith(("key: '", 'key: "'))
    assert yaml.safe_load(written) == {"key": text}


@pytest.mark.parametrize("text", ["line\nline", "tab\t", "emoji \U0001f600", "'", '"', "{{$}}", "x" * 5000 + " y"])
def test_every_string_survives_a_round_trip(text):
    assert yaml.safe_load(format_yaml([{text: text}])) == {text: text}
