"""Compare a CenterNet's keys with the reference's lists of variables and shapes."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import pytest

from detloom.schemas.model.center_net import CenterNet, CenterNetFeatureExtractor
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.centernet.network import build_centernet
from detloom.trainer_module.detectors.centernet.odapi_keys import centernet_layer_keys
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.weights.odapi_keys import VALUE, odapi_keys

# The last batch norm of ResNet-50 V2, which the reference stores and never uses; we have none.
_UNUSED_KEY = "model/_feature_extractor/_base_model/layer_with_weights-101/"
UNUSED = dict.fromkeys(("resnet50_v2_512x512_coco17_tpu-8", "resnet50_v2_512x512_kpts_coco17_tpu-8"), _UNUSED_KEY)


def read_keys(path: Path, unused: str) -> dict[str, tuple[int, ...]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    keys = {row["key"]: tuple(json.loads(row["shape"])) for row in rows if row["key"].startswith("model/")}
    return {key: shape for key, shape in keys.items() if not (unused and key.startswith(unused))}


SLOW = pytest.mark.slow


def assert_keys_of_the_zoo(config: CenterNet, path: Path, num_trained: int, unused: str) -> None:
    """Assert that each key occurs once with its shape; on small images, which changes no weight."""
    resizer = dataclasses.replace(config.image_resizer, min_dimension=128, max_dimension=128)
    config = dataclasses.replace(config, image_resizer=resizer)
    network = build_centernet(config, num_classes=90)
    keys = odapi_keys(family_of(config), network)
    shapes = {
        keys[f"{layer.name}/{variable.name}"]: tuple(variable.shape)
        for layer in network.layers
        for variable in layer.weights
    }
    assert len(set(keys.values())) == len(keys)
    assert shapes == read_keys(path, unused)
    assert sum(math.prod(variable.shape) for variable in network.trainable_variables) == num_trained


@pytest.mark.parametrize(
    ("name", "settings", "num_trained"),
    [
        pytest.param("resnet50_v1_fpn_512x512", {"backbone": "resnet50_v1"}, 25_277_214, marks=SLOW),
        pytest.param("resnet101_v1_fpn_512x512_coco17_tpu-8", {"backbone": "resnet101_v1"}, 44_295_454, marks=SLOW),
        pytest.param("resnet50_v2_512x512_coco17_tpu-8", {"backbone": "resnet50_v2"}, 29_846_622, marks=SLOW),
        pytest.param("hourglass104_512x512_coco17_tpu-8", {"backbone": "hourglass_104"}, 191_289_148, marks=SLOW),
        pytest.param("mobilenetv2_fpn_od_512x512", {"backbone": "mobilenet_v2"}, 2_533_254, marks=SLOW),
        (
            "mobilenetv2_fpn_sep_conv_flag_od_512x512",
            {"backbone": "mobilenet_v2", "use_separable_conv": True},
            2_507_198,
        ),
    ],
)
def test_every_key_of_the_zoo_occurs_once_with_its_shape(
    name, settings, num_trained, reference_dir, center_net_configs
):
    config = center_net_configs["resnet50"]
    resizer = dataclasses.replace(config.image_resizer, min_dimension=128, max_dimension=128)  # the hourglass needs 128
    extractor = CenterNetFeatureExtractor(**settings)
    config = dataclasses.replace(config, image_resizer=resizer, feature_extractor=extractor)
    path = reference_dir / "keys" / f"centernet_{name}.tsv"
    assert_keys_of_the_zoo(config, path, num_trained, UNUSED.get(name, ""))


# The checkpoint of MobileNetV2 is a zoo model without a configuration.
@pytest.mark.parametrize(
    ("name", "preset", "num_trained"),
    [
        ("mobilenetv2_fpn_kpts_512x512", "resnet50_v1_fpn_512x512_kpts", 2_721_755),
        pytest.param(
            "resnet50_v1_fpn_512x512_kpts_coco17_tpu-8", "resnet50_v1_fpn_512x512_kpts", 25_742_195, marks=SLOW
        ),
        pytest.param("resnet50_v2_512x512_kpts_coco17_tpu-8", "resnet50_v2_512x512_kpts", 30_311_603, marks=SLOW),
        pytest.param("hourglass104_512x512_kpts_coco17_tpu-32", "hourglass104_512x512_kpts", 194_873_318, marks=SLOW),
    ],
)
def test_every_key_with_keypoints_occurs_once_with_its_shape(name, preset, num_trained, reference_dir):
    config = find_preset(f"centernet_{preset}").config.model
    if name.startswith("mobilenet"):
        config = dataclasses.replace(config, feature_extractor=CenterNetFeatureExtractor(backbone="mobilenet_v2"))
    path = reference_dir / "keys" / f"centernet_{name}.tsv"
    assert_keys_of_the_zoo(config, path, num_trained, UNUSED.get(name, ""))


@pytest.mark.parametrize(
    ("name", "backbone"),
    [("resnet50_v2_512x512_coco17_tpu-8", "resnet50_v2"), ("hourglass104_512x512_coco17_tpu-8", "hourglass_104")],
)
def test_keys_follow_from_the_configuration(name, backbone, reference_dir):
    extractor = CenterNetFeatureExtractor(backbone=backbone)
    config = dataclasses.replace(find_preset("centernet_resnet50_v2_512x512").config.model, feature_extractor=extractor)
    keys = centernet_layer_keys(config)
    assert len(set(keys.values())) == len(keys)
    stored = read_keys(reference_dir / "keys" / f"centernet_{name}.tsv", UNUSED.get(name, ""))
    assert set(keys.values()) == {key.removesuffix(VALUE).rpartition("/")[0] for key in stored}


def test_only_heads_of_stacked_hourglasses_have_a_number():
    keys = centernet_layer_keys(find_preset("centernet_hourglass104_512x512").config.model)
    head = "model/_prediction_head_dict/object_center"
    assert keys["head_classes"] == f"{head}/1/layer_with_weights-1"
    assert keys["head_classes_hourglass1"] == f"{head}/0/layer_with_weights-1"
