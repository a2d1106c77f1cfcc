import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_training.spans import write_span
from tfx.types import standard_artifacts

from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.example_gen.params import ExampleGenParams
from detloom.pipelines.container import run_node as node
from detloom.pipelines.container.example_gen_driver import local_data
from detloom.pipelines.container.example_gen_entrypoint import run_example_gen
from detloom.pipelines.container.run_node import Task
from detloom.pipelines.container.task_storage import TaskStorage
from detloom.pipelines.samples import demo_data
from detloom.schemas.errors import InputError

OUTPUTS = {"examples": "tfx.Examples", "rejects": "detloom.Rejects"}


@pytest.fixture(scope="module")
def spans(tmp_path_factory) -> Path:
    """Write two spans of images."""
    folder = tmp_path_factory.mktemp("data")
    for span in (3, 4):
        write_span(folder, span)
        (folder / str(span)).rename(folder / f"span-{span}")
    return folder


@pytest.fixture
def make_task(backend):
    """Return a function that makes a task of DetectionExampleGen with the parameters that TFX compiles."""

    def make(data_path: str, *, is_driver: bool = False) -> Task:
        splits = {split: f"annotations/{split}.json" for split in ("train", "eval", "test")}
        node = DetectionExampleGen(data_path, ExampleGenParams(format="coco", images_dir="images", splits=splits))
        properties = node.exec_properties
        parameters = {key: value for key, value in properties.items() if value is not None}
        invocation, inputs_spec = backend.arguments(OUTPUTS, parameters=parameters)
        return Task(
            place=backend.place,
            executor_class_path="" if is_driver else "detloom.components.example_gen.component.Executor",
            invocation=invocation,
            inputs_spec=inputs_spec,
            beam_args=(),
            is_driver=is_driver,
        )

    return make


def test_the_latest_span_is_ingested_and_recorded_in_the_artifact(make_task, backend, spans):
    task = make_task(f"{spans}/span-{{SPAN}}")
    if backend.place == "vertex":
        run_example_gen(replace(task, is_driver=True), backend.storage)
    run_example_gen(task, backend.storage)
    answer = backend.read_output()
    (examples,) = answer.artifacts["examples"].artifacts
    assert examples.uri == f"{backend.address}/examples"
    assert json.loads(examples.metadata["split_names"]) == ["train", "eval", "test"]
    assert len(list((backend.folder / "examples" / "Split-train").iterdir())) == 1
    assert (backend.folder / "rejects" / "report.json").is_file()
    assert read_back(examples)["span"] == 4
    assert read_back(examples)["input_fingerprint"].startswith("split:data,")


def read_back(artifact) -> dict[str, object]:
    """Return custom properties as the next node reads them."""
    from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils

    artifact.type.schema_title = "tfx.Examples"
    found = kubeflow_v2_entrypoint_utils._parse_raw_artifact(artifact, {})
    assert isinstance(found, standard_artifacts.Examples)
    names = ("span", "input_fingerprint")
    assert all(found.has_custom_property(name) for name in names)
    return {
        "span": found.get_int_custom_property("span"),
        "input_fingerprint": found.get_string_custom_property("input_fingerprint"),
    }


@pytest.mark.parametrize("place", ["vertex"])
def test_the_driver_resolves_the_parameters_of_vertexs_cache_key(make_task, backend, spans):
    run_example_gen(make_task(f"{spans}/span-{{SPAN}}", is_driver=True), backend.storage)
    answer = backend.read_output()
    values = answer.parameter_values
    assert values["span"].number_value == 4
    assert "version" not in values
    assert json.loads(values["data_folders"].string_value) == ["span-4"]
    assert json.loads(values["input_config"].string_value)["splits"][0]["pattern"] == "span-4/*"
    assert values["input_fingerprint"].string_value.startswith("split:data,")
    (examples,) = answer.artifacts["examples"].artifacts
    assert examples.uri == f"{backend.address}/examples"
    assert read_back(examples)["span"] == 4


@pytest.mark.parametrize("place", ["vertex"])
def test_the_executor_uses_the_result_of_the_driver(make_task, backend, spans, monkeypatch):
    task = make_task(f"{spans}/span-{{SPAN}}")
    run_example_gen(replace(task, is_driver=True), backend.storage)
    text = backend.output_file.read_text()
    assert "span-4/*" in text
    backend.output_file.write_text(text.replace("span-4", "span-3"))
    seen = []
    monkeypatch.setattr(node, "_execute", lambda task, executor_input: seen.append(executor_input))
    run_example_gen(task, backend.storage)
    assert json.loads(seen[0].inputs.parameter_values["data_folders"].string_value) == ["span-3"]


@pytest.mark.parametrize("place", ["kubeflow"])
def test_data_in_a_bucket_is_read_from_its_mount(make_task, backend, spans, monkeypatch):
    mounted = Path(backend.storage.local_path("gs://data"))
    mounted.mkdir(parents=True)
    (mounted / "digits").symlink_to(spans)
    seen = []
    monkeypatch.setattr(node, "_execute", lambda task, executor_input: seen.append(executor_input))
    monkeypatch.setattr(node, "finish_output", lambda *_, **__: None)
    run_example_gen(make_task("gs://data/digits/span-{SPAN}"), backend.storage)
    assert seen[0].inputs.parameter_values["input_base"].string_value == str(mounted / "digits")
    assert seen[0].inputs.parameter_values["span"].number_value == 4


def test_an_unmounted_bucket_is_refused(make_task, backend):
    with pytest.raises(InputError, match=r"data\.path: gs://data/digits .*/gcs/data"):
        run_example_gen(make_task("gs://data/digits/span-{SPAN}"), backend.storage)


def test_a_missing_span_is_reported_as_a_mistake(make_task, backend, tmp_path):
    with pytest.raises(InputError, match="no span of the data"):
        run_example_gen(make_task(f"{tmp_path}/span-{{SPAN}}"), backend.storage)


def test_generated_demo_data_always_has_the_same_fingerprint(make_task, backend, spans, monkeypatch):
    monkeypatch.setattr(demo_data, "write_embedded_digits", lambda folder: shutil.copytree(spans / "span-3", folder))
    seen = []
    monkeypatch.setattr(node, "_execute", lambda task, executor_input: seen.append(executor_input))
    monkeypatch.setattr(node, "finish_output", lambda *_, **__: None)
    for _ in range(2):
        run_example_gen(make_task("embedded:digits"), backend.storage)
    first, second = (dict(found.inputs.parameter_values) for found in seen)
    folders = [Path(found["input_base"].string_value) for found in (first, second)]
    assert folders[0] != folders[1]
    assert not any(folder.exists() for folder in folders)
    assert first["input_fingerprint"] == second["input_fingerprint"]


def test_demo_data_is_the_same_as_in_a_local_run(monkeypatch, tmp_path):
    sizes = []
    monkeypatch.setattr(demo_data, "write_demo_data", lambda folder, **arguments: sizes.append((folder, arguments)))
    demo_data.write_embedded_digits(tmp_path)
    assert sizes == [(tmp_path, {"num_train": 800, "num_eval": 60, "num_test": 120, "seed": 0})]


def test_a_local_path_is_not_changed(tmp_path):
    from kfp.pipeline_spec import pipeline_spec_pb2

    inputs = pipeline_spec_pb2.ExecutorInput.Inputs()
    inputs.parameter_values["input_base"].string_value = str(tmp_path)
    with local_data(inputs, TaskStorage(os.fspath(tmp_path))):
        assert inputs.parameter_values["input_base"].string_value == str(tmp_path)
