"""Compare our networks with the lists of variables in the model zoo's checkpoints."""

import csv
import json
import math
from dataclasses import replace

import keras
import pytest

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNetFeatureExtractor
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.network import FixedShapeResizer
from detloom.schemas.odapi.pipeline_config import read_pipeline_config
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.detectors.faster_rcnn.anchors import build_first_stage_anchors
from detloom.trainer_module.detectors.preprocess import network_hw
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_keys

LABEL_MAP = LabelMap.from_names(["person", *(str(i) for i in range(89))])
DEFAULT = ("ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8", "centernet_mobilenetv2_fpn_kpts_512x512")
SLOW = (
    "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8",
    "ssd_mobilenet_v2_320x320_coco17_tpu-8",
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8",
    "ssd_efficientdet_d0_512x512_coco17_tpu-8",
    "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8",
    "centernet_mobilenetv2_fpn_sep_conv_flag_od_512x512",
    "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8",
    "faster_rcnn_resnet50_v1_fpn_640x640_coco17_tpu-8",
)
NIGHTLY = (
    "ssd_resnet101_v1_fpn_640x640_coco17_tpu-8",
    "ssd_resnet152_v1_fpn_640x640_coco17_tpu-8",
    "ssd_efficientdet_d1_640x640_coco17_tpu-8",
    "ssd_efficientdet_d2_768x768_coco17_tpu-8",
    "ssd_efficientdet_d3_896x896_coco17_tpu-32",
    "ssd_efficientdet_d4_1024x1024_coco17_tpu-32",
    "ssd_efficientdet_d5_1280x1280_coco17_tpu-32",
    "ssd_efficientdet_d6_1408x1408_coco17_tpu-32",
    "ssd_efficientdet_d7_1536x1536_coco17_tpu-32",
    "center_net_deepmac_512x512_voc_only_tpu-32",
    "centernet_hourglass104_512x512_coco17_tpu-8",
    "centernet_hourglass104_512x512_kpts_coco17_tpu-32",
    "centernet_mobilenetv2_fpn_od_512x512",
    "centernet_resnet101_v1_fpn_512x512_coco17_tpu-8",
    "centernet_resnet50_v1_fpn_512x512",
    "centernet_resnet50_v2_512x512_coco17_tpu-8",
    "centernet_resnet50_v2_512x512_kpts_coco17_tpu-8",
    "faster_rcnn_resnet101_v1_640x640_coco17_tpu-8",
    "faster_rcnn_resnet152_v1_640x640_coco17_tpu-8",
    "mask_rcnn_inception_resnet_v2_1024x1024_coco17_gpu-8",
)
# Checkpoints without a configuration: the preset that they change, and the settings of the backbone.
WITHOUT_FILE = {
    "centernet_mobilenetv2_fpn_kpts_512x512": ("resnet50_v1_fpn_512x512_kpts", {"backbone": "mobilenet_v2"}),
    "centernet_mobilenetv2_fpn_od_512x512": ("resnet101_v1_fpn_512x512", {"backbone": "mobilenet_v2"}),
    "centernet_mobilenetv2_fpn_sep_conv_flag_od_512x512": (
        "resnet101_v1_fpn_512x512",
        {"backbone": "mobilenet_v2", "use_separable_conv": True},
    ),
    "centernet_resnet50_v1_fpn_512x512": ("resnet101_v1_fpn_512x512", {"backbone": "resnet50_v1"}),
}
# Stored and never run, so that we have none: EfficientDet's ImageNet classifier, the last batch norm of ResNet-50 V2,
# and the random numbers of Deep-MAC.
UNUSED = {
    "efficientdet": "model/_feature_extractor/classification_backbone/",
    "resnet50_v2": "model/_feature_extractor/_base_model/layer_with_weights-101/",
    "deepmac": "model/_self_supervised_rng",
}
MASK_NETWORK = "model/_mask_net/"  # is not in the list: the reference builds it with the first ground truth


def config_of(name, reference_dir):
    if name not in WITHOUT_FILE:
        return read_pipeline_config(reference_dir / "zoo_configs" / f"{name}.config").model
    preset, settings = WITHOUT_FILE[name]
    config = find_preset(f"centernet_{preset}").config.model
    return replace(config, feature_extractor=CenterNetFeatureExtractor(**settings))


def on_small_images(config):
    """Change the size of images, which changes no weight; hourglasses need 128 pixels."""
    if isinstance(config.image_resizer, FixedShapeResizer):
        return replace(config, image_resizer=replace(config.image_resizer, height=128, width=128))
    resizer = replace(config.image_resizer, min_dimension=128, max_dimension=128, pad_to_max_dimension=True)
    return replace(config, image_resizer=resizer)


def read_table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def count(shapes) -> int:
    return sum(map(math.prod, shapes))


@pytest.mark.parametrize(
    "name",
    [
        *DEFAULT,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY),
    ],
)
def test_every_key_of_the_zoo_matches_one_variable_with_its_shape(reference_dir, name):
    config = config_of(name, reference_dir)
    small = on_small_images(config)
    network = build_detector(small, LABEL_MAP).network
    keys = odapi_keys(family_of(small), network)
    variables = {keys[f"{layer.name}/{each.name}"]: each for layer in network.layers for each in layer.weights}
    variables = {key: each for key, each in variables.items() if not key.startswith(MASK_NETWORK)}
    rows = [row for row in read_table(reference_dir / "keys" / f"{name}.tsv") if row["key"].startswith("model/")]
    stored = {row["key"]: json.loads(row["shape"]) for row in rows if row["key"].endswith(VALUE)}
    prefixes = tuple(prefix for part, prefix in UNUSED.items() if part in name)
    unused = {key: stored.pop(key) for key in list(stored) if key.startswith(prefixes)}
    assert len(set(keys.values())) == len(keys)
    assert {key: list(each.shape) for key, each in variables.items()} == stored

    (row,) = [row for row in read_table(reference_dir / "keys/summary.tsv") if row["config"] == name]
    if "efficientdet" in name:
        is_statistic = {key: key.removesuffix(VALUE).endswith(("moving_mean", "moving_variance")) for key in unused}
        row["params_trainable"] = int(row["params_trainable"]) - count(
            shape for key, shape in unused.items() if not is_statistic[key]
        )
    trained = [each.shape for each in variables.values() if each.trainable]
    assert count(trained) == int(row["params_trainable"])
    if isinstance(config, FasterRcnn):  # anchors of SSDs are compared in boxes/test_anchors.py
        anchors = build_first_stage_anchors(config, network_hw(config.image_resizer))
        assert len(anchors.is_inner_A) == int(row["num_anchors"])
    keras.backend.clear_session()
