"""Fixtures: a run file over a small COCO data set with a detector that trains in seconds, and fake backends."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detloom.pipelines.samples.demo_data import write_demo_data
from detloom.schemas.run_file.read_run_file import build_run, load_run_tree, read_run_file
from detloom.schemas.run_file.run_file import RunFile

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "fakes")]  # tests are not a package

RUN_FILE = """
name: small
workspace: {workspace}
data:
  format: coco
  path: {data}
  splits: {{train: annotations/train.json, eval: annotations/eval.json, test: annotations/test.json}}
  max_reject_fraction: 0.5
model:
  add_background_class: false
  image_resizer: {{height: 64, width: 64}}
  feature_extractor: {{depth_multiplier: 0.1, neck: {{max_level: 5, additional_layer_depth: 16}}}}
  anchor_generator: {{max_level: 5, aspect_ratios: [1.0], scales_per_octave: 1}}
  box_predictor: {{depth: 16, num_layers_before_predictor: 1}}
train:
  batch_size: 4
  num_steps: 4
  steps_per_call: 2
  optimizer: {{type: AdamWOptimizer, learning_rate: {{type: ConstantLearningRate, learning_rate: 0.001}}}}
  augmentations: []
eval: {{batch_size: 4, evaluate_every: 4}}
evaluator: {{num_images: 2}}
gates: {{baseline: {{min_ap_change: -1.0}}, no_floor_reason: "The training has a few steps."}}
"""


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the data of `small_run` once."""
    folder = tmp_path_factory.mktemp("small") / "data"
    write_demo_data(folder, num_train=16, num_eval=6, num_test=6, seed=1, image_hw=(96, 96))
    return folder


@pytest.fixture
def small_run(tmp_path: Path, small_data: Path) -> Path:
    """Write the run file and its data in `data/`."""
    data = shutil.copytree(small_data, tmp_path / "data")
    path = tmp_path / "run.yaml"
    path.write_text(RUN_FILE.format(workspace=tmp_path / "workspace", data=data))
    return path


@pytest.fixture(scope="session")
def read_small_run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFile]:
    """Return a function that reads the run file of `small_run` with further lines; nothing is executed with it."""
    folder = tmp_path_factory.mktemp("read_small_run")

    def read(*lines: str) -> RunFile:
        text = RUN_FILE.format(workspace=folder / "workspace", data=small_data)
        (folder / "run.yaml").write_text(text + "".join(f"{line}\n" for line in lines))
        return read_run_file(folder / "run.yaml")

    return read


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return version 7 of a SavedModel that detects the red and the green area of an image."""
    import tiny_detector

    model_dir: Path = tiny_detector.write_tiny_detector(tmp_path_factory.mktemp("model") / "7")
    return model_dir


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFile]:
    """Return a function that makes a RunFile of sections; the paths in it do not exist."""
    path = tmp_path_factory.mktemp("run_of") / "run.yaml"

    def make(**sections: Any) -> RunFile:
        data = {
            "name": "cells",
            "data": {"path": "/data/cells", "split_by_ratio": {}},
            "train": {"batch_size": 4, "num_steps": 8},
            **sections,
        }
        path.write_text(json.dumps(data))  # JSON is YAML
        return build_run(load_run_tree(path)[0])

    return make


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Run a fake Kubeflow API and hide the credentials of this machine."""
    from fake_backends.kubeflow import FakeKubeflow

    monkeypatch.setattr("kfp.client.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "no_context.json"))
    with FakeKubeflow() as fake:
        yield fake


@pytest.fixture
def region() -> Iterator[Any]:
    """Run the fake services of a Vertex AI region."""
    from fake_backends.vertex import FakeVertex

    with FakeVertex() as fake:
        yield fake
