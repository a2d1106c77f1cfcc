"""A run file over a small COCO data set, with a detector that trains in seconds."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detloom.pipelines.demo_data import write_demo_data
from detloom.schemas.read_run_file import build_run, load_run_tree
from detloom.schemas.run_file import RunFile

sys.path.append(str(Path(__file__).parent / "fakes"))  # tests are no package; this makes fake_backends one

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
evaluator: {{num_pictures: 2}}
gates: {{baseline: {{min_ap_change: -1.0}}}}
"""


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    """The run file; the data lies in `data/` beside it."""
    data = tmp_path / "data"
    write_demo_data(data, num_train=16, num_eval=6, num_test=6, seed=1, image_hw=(96, 96))
    path = tmp_path / "run.yaml"
    path.write_text(RUN_FILE.format(workspace=tmp_path / "workspace", data=data))
    return path


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFile]:
    """A run file made of a few sections; nothing that it names is there."""
    path = tmp_path_factory.mktemp("run_of") / "run.yaml"

    def make(**sections: Any) -> RunFile:
        data = {
            "name": "cells",
            "data": {"path": "/data/cells", "split_by_ratio": {}},
            "train": {"batch_size": 4, "num_steps": 8},
            **sections,
        }
        path.write_text(json.dumps(data))  # which is YAML
        return build_run(load_run_tree(path)[0])

    return make


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The API of a Kubeflow cluster (FakeKubeflow), and nothing that this machine has to sign in with."""
    from fake_backends.kubeflow import FakeKubeflow

    monkeypatch.setattr("kfp.client.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "no_context.json"))
    with FakeKubeflow() as fake:
        yield fake


@pytest.fixture
def region() -> Iterator[Any]:
    """The services of a region of Vertex AI (FakeVertex)."""
    from fake_backends.vertex import FakeVertex

    with FakeVertex() as fake:
        yield fake
