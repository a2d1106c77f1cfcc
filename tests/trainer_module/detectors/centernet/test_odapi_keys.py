"""Compare a CenterNet's keys with the reference's lists of variables and shapes."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import pytest

from detloom.schemas.model.center_net import CenterNet, CenterNetFeatureExtractor
from detloom.trainer_module.detectors.centernet.network import build_centernet
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.weights.odapi_keys import odapi_keys

# The last batch norm of ResNet-50 V2, which the reference stores and never uses; we have none.
UNUSED = {"resnet50_v2_512x512_coco17_tpu-8": "model/_feature_extractor/_base_model/layer_with_weights-101/"}


def read_keys(path: Path, unused: str) -> dict[str, tuple[int, ...]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    keys = {row["key"]: tuple(json.loads(row["shape"])) for row in rows if row["key"].startswith("model/")}
    return {key: shape for key, shape in keys.items() if not (unused and key.startswith(unused))}


@pytest.mark.parametrize(
    ("name", "extractor", "num_trained"),
    [
        ("resnet50_v1_fpn_512x512", CenterNetFeatureExtractor(backbone="resnet50_v1"), 25_277_214),
        pytest.param(
            "resnet101_v1_fpn_512x512_coco17_tpu-8",
            CenterNetFeatureExtractor(backbone="resnet101_v1"),
            44_295_454,
            marks=pytest.mark.slow,
        ),
        ("resnet50_v2_512x512_coco17_tpu-8", CenterNetFeatureExtractor(backbone="resnet50_v2"), 29_846_622),
        ("mobilenetv2_fpn_od_512x512", CenterNetFeatureExtractor(backbone="mobilenet_v2"), 2_533_254),
        (
            "mobilenetv2_fpn_sep_conv_flag_od_512x512",
            CenterNetFeatureExtractor(backbone="mobilenet_v2", use_separable_conv=True),
            2_507_198,
        ),
    ],
)
def test_every_key_of_the_zoo_occurs_once_with_its_shape(
    name, extractor, num_trained, reference_dir, center_net_configs
):
    config: CenterNet = dataclasses.replace(center_net_configs["resnet50"], feature_extractor=extractor)
    network = build_centernet(config, num_classes=90)
    keys = odapi_keys(family_of(config), network)
    shapes = {
        keys[f"{layer.name}/{variable.name}"]: tuple(variable.shape)
        for layer in network.layers
        for variable in layer.weights
    }
    assert len(set(keys.values())) == len(keys)
    assert shapes == read_keys(reference_dir / "keys" / f"centernet_{name}.tsv", UNUSED.get(name, ""))
    assert sum(math.prod(variable.shape) for variable in network.trainable_variables) == num_trained
