"""Paths of a run file for a pipeline that runs in containers."""

from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_run_file import build_run, check_paths, load_run_tree, read_run_file
from detloom.schemas.run_file.run_file import Place, RunFile

_DATA = "data: {path: 'DATA', splits: {train: a, eval: b, test: c}}"
_VERTEX = "vertex: {project: my-project, region: us-central1, image: x/detloom:1, pipeline_root: 'gs://bucket/root/'}"
_KUBEFLOW = "kubeflow: {image: 'x/detloom:1', pipeline_root: 'minio://mlpipeline/root'}"


def _read(folder: Path, text: str, place: Place) -> RunFile:
    file = folder / "run.yaml"
    file.write_text(f"name: cells\n{text}\n", encoding="utf-8")
    return read_run_file(file, place=place)


def _lines(data: str, *others: str) -> str:
    return "\n".join((_DATA.replace("DATA", data), *others))


def test_default_push_and_records_folders_on_vertex_are_below_the_pipeline_root(tmp_path):
    run = _read(tmp_path, _lines("gs://bucket/cells", _VERTEX, "retrain: {min_new_images: 1}"), "vertex")
    assert (run.data.path, run.push_to, run.workspace) == ("gs://bucket/cells", "gs://bucket/root/cells/serving", "")
    assert run.retrain is not None
    assert run.retrain.records == "gs://bucket/root/cells/serving"


def test_container_paths_are_not_checked_and_the_certificate_is_relative_to_the_run_file(tmp_path):
    section = _KUBEFLOW.replace("image:", "ca_certificate: ca.pem, image:")
    run = _read(tmp_path, _lines("/data/cells", section, "push_to: /models/cells"), "kubeflow")
    assert (run.data.path, run.push_to) == ("/data/cells", "/models/cells")
    assert run.kubeflow is not None
    assert run.kubeflow.ca_certificate == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("written", "read"),
    [("${CELLS}/{SPAN}", "gs://bucket/cells/{SPAN}"), ("embedded:digits", "embedded:digits")],
)
def test_environment_variables_are_expanded_on_this_machine(tmp_path, monkeypatch, written, read):
    monkeypatch.setenv("CELLS", "gs://bucket/cells")
    assert _read(tmp_path, _lines(written, _VERTEX), "vertex").data.path == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_lines("/data", "push_to: /models"), r"run\.yaml:1: kubeflow: .*missing; docs/kubeflow\.md"),
        (_lines("/data", _KUBEFLOW), r"push_to: got '', allowed on Kubeflow: an absolute path in the containers or an"),
        (
            _lines("cells", _KUBEFLOW, "push_to: /m"),
            r"run\.yaml:2: data\.path: got 'cells', allowed on Kubeflow: an abs",
        ),
        (_lines("s3://b/x", _KUBEFLOW, "push_to: /m"), r"data\.path: got 's3://b/x', allowed on Kubeflow: .* gs://\."),
        (
            _lines("/data", _KUBEFLOW, "push_to: /m", "train: {fine_tune_checkpoint: zoo/ckpt-0}"),
            r"run\.yaml:5: train\.fine_tune_checkpoint: got 'zoo/ckpt-0', allowed on Kubeflow: an absolute path in the",
        ),
        (_lines("/data", _KUBEFLOW, "push_to: ftp://x"), r"push_to: got 'ftp://x', allowed on Kubeflow: .* at gs://"),
    ],
)
def test_paths_that_containers_cannot_use_are_rejected(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        _read(tmp_path, text, "kubeflow")


@pytest.mark.parametrize("checkpoint", ["/models/ckpt-0", "gs://bucket/zoo/ckpt-0", "imagenet"])
def test_checkpoint_that_containers_can_read_is_accepted(tmp_path, checkpoint):
    text = _lines("/data", _KUBEFLOW, "push_to: /m", f"train: {{fine_tune_checkpoint: '{checkpoint}'}}")
    assert _read(tmp_path, text, "kubeflow").train.fine_tune_checkpoint == checkpoint


def test_retrain_with_an_endpoint_needs_a_records_folder(tmp_path):
    endpoint = "push: {vertex: {project: my-project, region: us-central1, endpoint_name: cells, container_image: x/y}}"
    with pytest.raises(InputError, match=r"retrain\.records: .*required.*push\.vertex"):
        _read(tmp_path, _lines("/data", _VERTEX, endpoint, "retrain: {min_new_images: 1}"), "vertex")


def test_a_run_file_is_valid_if_its_paths_are_somewhere(tmp_path):
    file = tmp_path / "run.yaml"

    def check(*lines: str) -> None:
        file.write_text(f"name: cells\n{_lines(*lines)}\n", encoding="utf-8")
        tree, _ = load_run_tree(file)
        check_paths(build_run(tree), tree, file)

    check("gs://bucket/cells", _VERTEX)
    with pytest.raises(InputError, match=r"data\.path: got 'nowhere', allowed on Kubeflow"):
        check("nowhere", _KUBEFLOW)
