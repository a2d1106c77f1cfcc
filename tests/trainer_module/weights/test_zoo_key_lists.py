"""Compare our networks with the lists of variables in the model zoo's checkpoints."""

import csv

import keras
import numpy as np
import pytest

from detloom.schemas.odapi.pipeline_config import read_pipeline_config
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.detectors.faster_rcnn.network import build_networks
from detloom.trainer_module.detectors.one_stage.network import build_ssd
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_keys

SMALL = ("ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8",)
LARGE = (
    "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8",
    "ssd_mobilenet_v2_320x320_coco17_tpu-8",
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8",
    "ssd_mobilenet_v2_fpnlite_640x640_coco17_tpu-8",
    "ssd_resnet50_v1_fpn_1024x1024_coco17_tpu-8",
    "ssd_resnet101_v1_fpn_640x640_coco17_tpu-8",
    "ssd_resnet152_v1_fpn_640x640_coco17_tpu-8",
    "ssd_efficientdet_d0_512x512_coco17_tpu-8",
    "ssd_efficientdet_d1_640x640_coco17_tpu-8",
    "ssd_efficientdet_d2_768x768_coco17_tpu-8",
    "ssd_efficientdet_d3_896x896_coco17_tpu-32",
    "ssd_efficientdet_d4_1024x1024_coco17_tpu-32",
    "ssd_efficientdet_d5_1280x1280_coco17_tpu-32",
    "ssd_efficientdet_d6_1408x1408_coco17_tpu-32",
    "ssd_efficientdet_d7_1536x1536_coco17_tpu-32",
)
TWO_STAGES = (
    "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8",
    "faster_rcnn_resnet50_v1_800x1333_coco17_gpu-8",
    "faster_rcnn_resnet50_v1_1024x1024_coco17_tpu-8",
    "faster_rcnn_resnet50_v1_fpn_640x640_coco17_tpu-8",
    "faster_rcnn_resnet101_v1_640x640_coco17_tpu-8",
    "faster_rcnn_resnet152_v1_640x640_coco17_tpu-8",
    "mask_rcnn_inception_resnet_v2_1024x1024_coco17_gpu-8",
)
# EfficientDet's ImageNet classifier, which the reference stores beside the backbone and never runs; we have none.
UNUSED = "model/_feature_extractor/classification_backbone/"


def read_shapes(path) -> dict[str, list[int]]:
    """Return the shapes in a checkpoint by key, without bookkeeping values."""
    with path.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {
        row["key"]: [int(side) for side in row["shape"].strip("[]").split(",")] for row in rows if row["shape"] != "[]"
    }


def count(shapes) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_every_key_of_the_zoo_matches_one_variable_with_its_shape(reference_dir, name):
    config = read_pipeline_config(reference_dir / "zoo_configs" / f"{name}.config").model
    network = build_ssd(config, num_classes=90)
    stored = read_shapes(reference_dir / "keys" / f"{name}.tsv")
    unused = {key: stored.pop(key) for key in list(stored) if "efficientdet" in name and key.startswith(UNUSED)}
    keys = odapi_keys(family_of(config), network)
    ours = {f"{layer.name}/{each.name}": list(each.shape) for layer in network.layers for each in layer.weights}
    assert len(set(keys.values())) == len(keys)
    assert {keys[variable]: shape for variable, shape in ours.items()} == stored

    with (reference_dir / "keys/summary.tsv").open() as file:
        (row,) = [row for row in csv.DictReader(file, delimiter="\t") if row["config"] == name]
    statistics = [key for key in unused if key.removesuffix(VALUE).endswith(("moving_mean", "moving_variance"))]
    unused_statistics = count(unused.pop(key) for key in statistics)
    assert count(each.shape for each in network.trainable_variables) == int(row["params_trainable"]) - count(
        unused.values()
    )
    non_trainable = count(each.shape for each in network.non_trainable_weights)  # without dropout state
    assert non_trainable == int(row["params_moving_stats"]) - unused_statistics
    assert network.output["offsets_BA4"].shape == (None, int(row["num_anchors"]), 4)
    keras.backend.clear_session()


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_STAGES)
def test_every_key_of_a_faster_rcnn_matches_one_variable_with_its_shape(reference_dir, name):
    config = read_pipeline_config(reference_dir / "zoo_configs" / f"{name}.config").model
    networks = build_networks(config, num_classes=90)
    keys = odapi_keys(family_of(config), networks.whole)
    ours = {f"{layer.name}/{each.name}": list(each.shape) for layer in networks.whole.layers for each in layer.weights}
    assert len(set(keys.values())) == len(keys)
    stored = read_shapes(reference_dir / "keys" / f"{name}.tsv")
    assert {keys[variable]: shape for variable, shape in ours.items()} == stored

    with (reference_dir / "keys/summary.tsv").open() as file:
        (row,) = [row for row in csv.DictReader(file, delimiter="\t") if row["config"] == name]
    assert count(each.shape for each in networks.whole.trainable_variables) == int(row["params_trainable"])
    non_trainable = count(each.shape for each in networks.whole.non_trainable_weights)  # without the seed of sampling
    assert non_trainable == int(row["params_moving_stats"])
    assert networks.whole.output["rpn_offsets_BA4"].shape == (None, int(row["num_anchors"]), 4)
    keras.backend.clear_session()
