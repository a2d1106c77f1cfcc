import contextlib

import pytest

from detloom.pipelines.compile.check_run import check_parameters, check_run
from detloom.schemas.errors import InputError

ENDPOINT = "{project: my-project, region: us-central1, endpoint_name: cells, container_image: gcr.io/tf}"


@pytest.mark.parametrize("name", ["kubeflow_cpu", "kubeflow_gpu", "kubeflow_tpu_v5e", "vertex_gpu_dataflow"])
def test_valid_run_files_pass(name, read_run):
    check_run(read_run(name), "kubeflow" if name.startswith("kubeflow") else "vertex")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("kubeflow_cpu", ["name=my_demo"], r"^name: got 'my_demo', allowed on Kubeflow: lower case letters and digits"),
        ("vertex_tpu_v3", ["name=cells-"], r"^name: got 'cells-', allowed on Vertex: "),
        ("kubeflow_cpu", ["push_to=/elsewhere"], r"^push_to: got '/elsewhere', allowed on Kubeflow: .* \(/models\)"),
        (
            "kubeflow_cpu",
            ["data.path=/elsewhere"],
            r"^data\.path: got '/elsewhere', allowed on Kubeflow: .* \(/models\)",
        ),
        ("kubeflow_cpu", ["push_to=/models/../x"], r"^push_to: got '/models/\.\./x', allowed on Kubeflow"),
        ("kubeflow_gpu", ["retrain.records=/records"], r"^retrain\.records: got '/records', .* \(/data\)"),
        (
            "vertex_tpu_v3",
            ["push_to=/models"],
            r"^push_to: got '/models', allowed on Vertex: an address at gs://, because",
        ),
        ("vertex_tpu_v3", ["push_to=/gcs/b/../c/d"], r"^push_to: got '/gcs/b/\.\./c/d', .*; write 'gs://c/d'\.$"),
        (
            "kubeflow_tpu_v5e",
            [f"push.vertex={ENDPOINT}", "push_to=''"],
            r"^push\.vertex: got an endpoint, allowed on Kubeflow: a folder of versions \(push_to\)",
        ),
        ("vertex_tpu_v3", ["model.type=Nothing"], "model"),
    ],
)
def test_settings_that_the_backend_would_refuse_or_lose_are_refused(name, settings, message, read_run):
    with pytest.raises(InputError, match=message):
        check_run(read_run(name, *settings), "kubeflow" if name.startswith("kubeflow") else "vertex")


@pytest.mark.parametrize("name", ["kubeflow_tpu_v5e", "vertex_tpu_v3", "vertex_tpu_v5e", "kubeflow_gpu"])
def test_a_tpu_needs_the_line_whose_tensorflow_has_a_build_for_it(name, read_run, monkeypatch):
    monkeypatch.setattr("detloom.pipelines.compile.check_run.tfx_line", lambda: "1.21")
    refused = pytest.raises(
        InputError, match=r"^TFX: got 1\.21, allowed with a TPU: 1\.16.*; run `make venv TFX_LINE=1\.16`"
    )
    with refused if "tpu" in name else contextlib.nullcontext():
        check_run(read_run(name), "kubeflow" if name.startswith("kubeflow") else "vertex")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["push_to=''"], r"push_to: got '', allowed on Kubeflow: an absolute path"),
        (["data.path=data/cells"], r"data\.path: got 'data/cells', allowed on Kubeflow: an absolute path"),
        (["kubeflow=null"], "kubeflow: the section is missing"),
    ],
)
def test_a_run_file_without_settings_for_the_cluster_is_refused(settings, message, read_run):
    with pytest.raises(InputError, match=message):
        read_run("kubeflow_cpu", *settings)


@pytest.mark.parametrize(
    "setting",
    [
        "accelerator: {type: nvidia-l4}",
        "cpu_limit: '4'",
        "memory_limit: 8Gi",
        "ephemeral_storage: 9Gi",
        "node_selector: {a: b}",
        "tolerations: [{key: a}]",
    ],
)
def test_settings_of_nodes_that_vertex_ignores_are_refused_unless_the_file_is_for_kubeflow_too(setting, read_run):
    nodes = f"nodes=[{{node: DetectionEvaluator, cpu: '2', {setting}}}]"
    with pytest.raises(InputError, match=rf"^nodes, DetectionEvaluator: {setting.partition(':')[0]}: .*Vertex AI; "):
        check_run(read_run("vertex_tpu_v3", nodes), "vertex")
    check_run(read_run("vertex_tpu_v3", nodes, "kubeflow={image: x/detloom:1}"), "vertex")


def spec_with(**parameters):
    values = {name: {"runtimeValue": {"constant": value}} for name, value in parameters.items()}
    return {"components": {}, "root": {"dag": {"tasks": {"Gen": {"inputs": {"parameters": values}}}}}}


def test_values_that_kubernetes_would_expand_are_refused_on_kubeflow():
    spec = spec_with(group="(cam[0-9]+)$$", other="{{$.pipeline_job_name}} costs 5$")
    with pytest.raises(InputError, match=r"^Gen: group: got '\$\$'"):
        check_parameters(spec, "kubeflow")
    check_parameters(spec, "vertex")
    with pytest.raises(InputError, match=r"got '\$\('"):
        check_parameters(spec_with(group="$(HOME)"), "kubeflow")


def test_settings_larger_than_a_process_argument_are_refused():
    check_parameters(spec_with(names="x" * 90_000), "vertex")
    with pytest.raises(InputError, match=r"^Gen: .* 1\d{5} bytes, .* 100000; .* names"):
        check_parameters(spec_with(names="x" * 100_000, few="y"), "vertex")
