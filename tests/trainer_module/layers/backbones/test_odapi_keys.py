"""Keys of thin networks: the numbers do not depend on the widths."""

import keras
import pytest

from detloom.schemas.model.network import BiFpn, FeatureExtractor, Fpn
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.layers.backbones.efficientnet import build_efficientnet
from detloom.trainer_module.layers.backbones.mobilenet_v1 import MOBILENET_HYPERPARAMS, build_mobilenet_v1
from detloom.trainer_module.layers.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.layers.backbones.odapi_keys import backbone_layer_keys
from detloom.trainer_module.layers.backbones.resnet_v1 import build_resnet_v1

BACKBONE = "model/_feature_extractor/classification_backbone/"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
BUILDERS = {
    "mobilenet_v1": build_mobilenet_v1,
    "mobilenet_v2": build_mobilenet_v2,
    "resnet50_v1": build_resnet_v1,
    "resnet101_v1": build_resnet_v1,
}


def thin_keys(build, extractor: FeatureExtractor) -> dict[str, str]:
    image = keras.Input((64, 64, 3))
    levels = build(extractor, image, freeze_batchnorm=False)
    return backbone_layer_keys(extractor, keras.Model(image, levels))


@pytest.mark.parametrize(
    ("backbone", "zoo_model"),
    [
        ("mobilenet_v1", "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8"),
        ("mobilenet_v2", "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"),
        ("resnet50_v1", "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8"),
        pytest.param("resnet101_v1", "ssd_resnet101_v1_fpn_640x640_coco17_tpu-8", marks=pytest.mark.nightly),
    ],
)
def test_layers_have_the_numbers_of_the_zoo(reference_dir, backbone, zoo_model):
    settings = {"neck": Fpn(), "conv_hyperparams": MOBILENET_HYPERPARAMS, "depth_multiplier": 0.1, "min_depth": 4}
    extractor = FeatureExtractor(backbone=backbone, **settings)
    rows = [row.split("\t") for row in (reference_dir / "keys" / f"{zoo_model}.tsv").read_text().splitlines()]
    rows = [row for row in rows if row[0].startswith(BACKBONE)]
    names = {name.rpartition("/")[0]: key.removesuffix(VALUE).rpartition("/")[0] for key, *_, name in rows}
    assert thin_keys(BUILDERS[backbone], extractor) == names


def test_blocks_unused_by_the_reference_are_in_its_classification_network():
    """EfficientNet-B2 has 23 blocks; the reference uses all but the second of the last stage."""
    extractor = find_preset("efficientdet_d2").config.model.feature_extractor
    neck = BiFpn(max_level=7, num_iterations=1, num_filters=8, features_of_last_blocks=True)
    keys = thin_keys(
        build_efficientnet,
        FeatureExtractor(backbone="efficientnet-b2", neck=neck, conv_hyperparams=extractor.conv_hyperparams),
    )
    used = BACKBONE.replace("classification_backbone", "_efficientnet")
    assert keys["stem_conv"] == f"{used}layer_with_weights-0"
    assert keys["block7a_project_bn"] == f"{used}layer_with_weights-173"
    assert keys["block7b_expand_conv"] == f"{BACKBONE}layer_with_weights-174"
    assert keys["block7b_project_bn"] == f"{BACKBONE}layer_with_weights-181"
