import json
import os
import re
from pathlib import Path

import pytest
import yaml

import detloom
from detloom.pipelines.compile.compile_job import compile_job
from detloom.pipelines.compile.format_job import format_json, format_yaml
from detloom.pipelines.compile.pipeline_spec import containers_of, dags_of, tasks_of
from detloom.pipelines.container.run_node import VERTEX_PUSHER
from detloom.pipelines.job_fingerprint import read_job_fingerprints
from detloom.pipelines.package_fingerprint import package_fingerprint

ROOT = Path(detloom.__file__).parents[1]
GPU, DATAFLOW = "kubeflow_gpu", "vertex_gpu_dataflow"  # with a decision, messages, retries and limits
SKIPPED = {"Trainer", "DetectionEvaluator", "ModelCard", "Pusher", "TrainingRecord", "Notifier"}
CHECKS = {"DetectionExampleGen", "StatisticsGen", "ImportSchemaGen", "ExampleValidator", "DatasetValidator"}
WANTED = "(inputs.artifacts['{}'].artifacts[0].metadata['train'] == 1.0)"


def constants_of(task):
    parameters = task["inputs"]["parameters"]
    return {name: each["runtimeValue"]["constant"] for name, each in parameters.items() if "runtimeValue" in each}


def sources_of(task):
    """Names of inputs of the DAG, or of tasks and their outputs."""
    inputs = task["inputs"].get("artifacts", {})
    return {
        key: each.get("componentInputArtifact") or ".".join(sorted(each["taskOutputArtifact"].values()))
        for key, each in inputs.items()
    }


@pytest.mark.parametrize("name", [GPU, DATAFLOW])
def test_all_that_hangs_on_the_decision_is_one_dag_with_one_condition(name, compile_spec):
    spec = compile_spec(name)
    outer, inner = spec["components"]["tfx-dag"]["dag"]["tasks"], spec["components"]["training"]["dag"]["tasks"]
    assert set(outer) == {*CHECKS, "RetrainDecision", "SkipNotifier", "training"}
    extra = {
        GPU: {"WarmStartModel", "ProductionModel"},
        DATAFLOW: {"BaselineResolver-model-blessing-resolver", "BaselineResolver-model-resolver"},
    }
    assert set(inner) == SKIPPED | extra[name]
    assert outer["training"]["triggerPolicy"] == {"condition": WANTED.format("RetrainDecision-decision")}
    assert outer["SkipNotifier"]["triggerPolicy"] == {"condition": f"!({WANTED.format('decision')})"}
    assert {key for key, task in tasks_of(spec).items() if "condition" in task.get("triggerPolicy", {})} == {
        "training",
        "SkipNotifier",
    }
    assert set(outer["training"]["inputs"]["artifacts"]) == {
        "DatasetValidator-report",
        "DetectionExampleGen-examples",
        "DetectionExampleGen-rejects",
        "RetrainDecision-decision",
    }
    assert {"ExampleValidator", "DatasetValidator"} <= set(outer["RetrainDecision"]["dependentTasks"])
    assert inner["TrainingRecord"]["dependentTasks"] == ["DetectionEvaluator", "Pusher"]
    assert sources_of(inner["TrainingRecord"])["decision"] == "RetrainDecision-decision"


@pytest.mark.parametrize("name", ["kubeflow_cpu", "vertex_tpu_v3"])
def test_without_a_decision_there_is_one_dag_and_training_waits_for_both_validators(name, compile_spec):
    spec = compile_spec(name)
    assert len(list(dags_of(spec))) == 1
    assert {"ExampleValidator", "DatasetValidator"} <= set(spec["root"]["dag"]["tasks"]["Trainer"]["dependentTasks"])


@pytest.mark.parametrize("name", [GPU, DATAFLOW])
def test_the_exit_handler_runs_when_all_else_has_ended_and_is_told_how(name, compile_spec):
    spec = compile_spec(name)
    tasks = spec["root"]["dag"]["tasks"]
    assert set(tasks) == {"tfx-dag", "FailureNotifier"}
    handler = tasks["FailureNotifier"]
    assert handler["dependentTasks"] == ["tfx-dag"]
    assert handler["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    status = handler["inputs"]["parameters"]["final_status"]
    assert status == {"taskFinalStatus": {"producerTask": "tfx-dag"}}
    told = containers_of(spec)["FailureNotifier"]["args"]
    declared = json.loads(told[told.index("--json_serialized_inputs_spec_args") + 1])
    assert declared["parameters"]["final_status"] == {"parameterType": "TASK_FINAL_STATUS"}


def test_who_wants_no_word_of_failures_gets_no_exit_handler(compile_spec):
    spec = compile_spec(GPU, "notifications.events=[pushed]")
    assert "tfx-dag" not in spec["components"]
    assert "training" in spec["root"]["dag"]["tasks"]


@pytest.mark.parametrize("name", [GPU, "kubeflow_cpu"])
def test_open_source_kubeflow_gets_no_resolver_and_the_baseline_from_the_pushed_versions(name, compile_spec):
    spec = compile_spec(name)
    assert all(set(executor) == {"container"} for executor in spec["deploymentSpec"]["executors"].values())
    tasks = tasks_of(spec)
    assert sources_of(tasks["ProductionModel"]) == {"candidate": "Trainer.model"}
    assert sources_of(tasks["DetectionEvaluator"])["baseline_model"] == "ProductionModel.model"
    assert constants_of(tasks["ProductionModel"])["push_to"] in ("gs://models/cells", "/models/demo")


def test_a_warm_start_on_kubeflow_is_from_the_newest_pushed_version(compile_spec):
    tasks = tasks_of(compile_spec(GPU))
    assert "artifacts" not in tasks["WarmStartModel"]["inputs"]
    assert sources_of(tasks["Trainer"])["base_model"] == "WarmStartModel.model"


def test_on_vertex_resolvers_that_its_compiler_knows_find_baseline_and_start(compile_spec):
    spec = compile_spec("vertex_tpu_v5e")
    tasks = tasks_of(spec)
    assert sources_of(tasks["DetectionEvaluator"])["baseline_model"] == "BaselineResolver-model-resolver.model"
    assert sources_of(tasks["Trainer"])["base_model"] == "WarmStartResolver-model-resolver.model"
    assert "ProductionModel" not in tasks


def test_what_no_cache_may_answer_runs_in_every_run(compile_spec):
    def uncached(name):
        tasks = tasks_of(compile_spec(name))
        dags = {"training", "tfx-dag"}
        return {key for key, task in tasks.items() if not task.get("cachingOptions", {}).get("enableCache")} - dags

    always = {"Pusher", "RetrainDecision", "TrainingRecord", "Notifier", "SkipNotifier", "FailureNotifier"}
    assert uncached(GPU) == {*always, "ProductionModel", "WarmStartModel", "DetectionExampleGen"}
    resolvers = {"BaselineResolver-model-blessing-resolver", "BaselineResolver-model-resolver"}
    assert uncached(DATAFLOW) == {*always, *resolvers, "Trainer"}  # its max_age_days makes age a reason to train


def test_a_model_that_is_deployed_already_is_not_deployed_again_by_each_run(compile_spec):
    endpoint = "{project: my-project, region: us-central1, endpoint_name: cells, container_image: image}"
    spec = compile_spec("vertex_tpu_v5e", f"push.vertex={endpoint}")
    assert tasks_of(spec)["Pusher"]["cachingOptions"] == {"enableCache": True}
    assert containers_of(spec)["Pusher"]["args"][1] == VERTEX_PUSHER


def test_retries_and_limits_are_those_of_the_run_file(compile_spec):
    tasks = tasks_of(compile_spec(GPU))
    tries = {key: task.get("retryPolicy", {}).get("maxRetryCount", 0) for key, task in tasks.items()}
    assert {key for key, count in tries.items() if count == 0} == {"tfx-dag", "training"}
    assert (tries["Trainer"], tries["Pusher"], tries["FailureNotifier"]) == (5, 2, 2)
    commands = {key: container["command"] for key, container in containers_of(compile_spec(GPU)).items()}
    limited = {key: command[-1] for key, command in commands.items() if "--time_limit_seconds" in command}
    assert limited == {"Trainer": "43200"}  # 720 minutes
    assert containers_of(compile_spec(DATAFLOW))["DetectionEvaluator"]["command"][-1] == "3600"


def test_nodes_that_do_one_thing_at_two_places_share_an_entry_of_the_run_file(compile_spec):
    nodes = "nodes=[{node: Notifier, max_retries: 4}, {node: ProductionModel, cpu: '2', max_retries: 3}]"
    spec = compile_spec(GPU, nodes)
    tries = {key: task["retryPolicy"]["maxRetryCount"] for key, task in tasks_of(spec).items() if "retryPolicy" in task}
    notifiers = {"Notifier": 4, "SkipNotifier": 4, "FailureNotifier": 4}
    assert tries == {**notifiers, "ProductionModel": 3, "WarmStartModel": 3}
    assert containers_of(spec)["WarmStartModel"]["resources"] == {"cpuLimit": 2.0}


def test_the_exit_handler_gets_what_its_entry_says(compile_spec):
    nodes = "nodes=[{node: Notifier, cpu: 500m, memory: 1G}]"
    for name in (GPU, DATAFLOW):
        resources = containers_of(compile_spec(name, nodes))["FailureNotifier"]["resources"]
        assert resources == {"cpuLimit": 0.5, "memoryLimit": 1.0}


def test_resources_are_limits_in_cores_and_gigabytes(compile_spec):
    containers = containers_of(compile_spec(GPU))
    # 32 * 2**30 / 10**9 = 34.359738368
    gpu = {"type": "nvidia.com/gpu", "count": "1"}
    assert containers["Trainer"]["resources"] == {"cpuLimit": 8.0, "memoryLimit": 34.359738368, "accelerator": gpu}
    assert "resources" not in containers["StatisticsGen"]
    tpu = containers_of(compile_spec("kubeflow_tpu_v5e"))["Trainer"]["resources"]["accelerator"]
    assert tpu == {"type": "google.com/tpu", "count": "8"}
    assert containers_of(compile_spec(DATAFLOW))["DetectionEvaluator"]["resources"]["cpuLimit"] == 4.0


def test_beam_gives_away_the_work_of_the_nodes_that_the_run_file_names_and_no_other(compile_spec):
    containers = containers_of(compile_spec(DATAFLOW))
    away = {key for key, container in containers.items() if "--runner=DataflowRunner" in container["args"]}
    assert away == {"StatisticsGen", "DetectionEvaluator"}
    for node in ("DatasetValidator", "ModelCard"):
        assert containers[node]["args"][-2] == "--json_serialized_inputs_spec_args"  # nothing of Beam's behind it


def test_example_gens_driver_runs_before_vertex_looks_into_its_cache(compile_spec):
    containers = containers_of(compile_spec(DATAFLOW))
    assert {key for key, container in containers.items() if "lifecycle" in container} == {"DetectionExampleGen"}
    assert containers["DetectionExampleGen"]["lifecycle"]["preCacheCheck"]["command"][-1] == "--driver"
    assert not any("lifecycle" in container for container in containers_of(compile_spec(GPU)).values())


@pytest.mark.parametrize(
    ("name", "history"),
    [
        (GPU, "gs://models/cells/dataset_reports/cells-gpu"),
        (DATAFLOW, "gs://my-bucket/vertex/cells-gpu/serving/dataset_reports/cells-gpu"),
        ("kubeflow_cpu", "/models/demo/dataset_reports/demo"),
    ],
)
def test_reports_that_outlive_a_run_lie_where_all_runs_find_them(name, history, compile_spec):
    assert constants_of(tasks_of(compile_spec(name))["DatasetValidator"])["history"] == history


def test_the_schema_is_the_packages_own_under_a_name_that_changes_with_it(compile_spec):
    path = constants_of(tasks_of(compile_spec("kubeflow_cpu"))["ImportSchemaGen"])["schema_file"]
    assert re.fullmatch(r"package://detloom\.schemas/example_schema\.pbtxt\?sha256=[0-9a-f]{16}", path)


@pytest.mark.parametrize("name", [GPU, DATAFLOW, "kubeflow_cpu", "vertex_tpu_v5e"])
def test_no_two_containers_are_the_same(name, compile_spec):
    """Open-source Kubeflow keeps one component for all with one container (kubeflow/pipelines, backend/src/v2/compiler/
    argocompiler/argo.go, hashComponentContainer): the second would get the outputs of the first."""
    texts = [json.dumps(container, sort_keys=True) for container in containers_of(compile_spec(name)).values()]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", [GPU, DATAFLOW])
def test_no_secret_is_in_the_file_and_one_fingerprint_is(name, read_run, monkeypatch):
    monkeypatch.setenv("SMTP_USER", "planted-user")
    text = compile_job(read_run(name), "kubeflow" if name == GPU else "vertex")
    assert "planted-user" not in text
    assert read_job_fingerprints(text.encode(), "job") == (package_fingerprint(),)
    assert str(ROOT) not in text
    assert os.environ["HOME"] not in text or os.environ["HOME"] == "/"


def test_the_text_is_what_its_documents_are_written_as(compile_text):
    text = compile_text(GPU)
    assert format_yaml(yaml.safe_load_all(text)) == text
    text = compile_text(DATAFLOW)
    assert format_json(json.loads(text)) == text


def test_where_artifacts_go_stands_where_each_backend_reads_it(compile_text, compile_spec):
    assert compile_spec(GPU)["defaultPipelineRoot"] == "s3://artifacts/kfp"
    job = json.loads(compile_text("vertex_tpu_v5e"))
    assert job["runtimeConfig"]["gcsOutputDirectory"] == job["pipelineSpec"]["defaultPipelineRoot"]
    assert job["labels"]["team"] == "vision"
    assert job["displayName"] == "cells-tpu"
    assert "defaultPipelineRoot" not in compile_spec("kubeflow_cpu", "kubeflow.pipeline_root=''")
