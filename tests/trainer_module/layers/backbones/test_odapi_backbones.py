from collections.abc import Callable

import keras
import pytest

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.layers.backbones.mobilenet_v1 import build_mobilenet_v1
from detloom.trainer_module.layers.backbones.odapi_keys import backbone_layer_keys

BACKBONE = "model/_feature_extractor/classification_backbone/"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
NORM = BatchNorm()


def make_extractor(backbone, *, batch_norm=NORM, **settings) -> FeatureExtractor:
    hyperparams = ConvHyperparams(
        regularizer=L2Regularizer(weight=0.0), initializer=TruncatedNormalInitializer(), batch_norm=batch_norm
    )
    return FeatureExtractor(backbone=backbone, conv_hyperparams=hyperparams, **{"neck": Fpn(), **settings})


def test_first_block_of_mobilenet_v2_has_no_expansion():
    keys = backbone_layer_keys(make_extractor("mobilenet_v2"))
    assert keys["bn_Conv1"] == f"{BACKBONE}layer_with_weights-1"
    assert keys["expanded_conv_project_BN"] == f"{BACKBONE}layer_with_weights-5"
    assert keys["block_1_expand"] == f"{BACKBONE}layer_with_weights-6"
    assert keys["Conv_1_bn"] == f"{BACKBONE}layer_with_weights-103"
    assert len(keys) == 104


def test_resnet_shortcut_is_numbered_beside_the_last_convolution_of_a_block():
    keys = backbone_layer_keys(make_extractor("resnet50_v1"))
    names = ("2_bn", "0_conv", "3_conv", "0_bn", "3_bn")
    indices = [int(keys[f"conv3_block1_{name}"].rpartition("-")[2]) for name in names]
    assert indices == [25, 26, 27, 28, 29]
    assert keys["conv3_block2_1_conv"] == f"{BACKBONE}layer_with_weights-30"


def test_only_convolutions_are_counted_without_batch_norm():
    extractor = make_extractor("mobilenet_v1", batch_norm=None, override_base_feature_extractor_hyperparams=True)
    keys = backbone_layer_keys(extractor)
    assert keys["conv_pw_1"] == f"{BACKBONE}layer_with_weights-2"
    image = keras.Input((64, 64, 3))
    network = keras.Model(image, build_mobilenet_v1(extractor, image, freeze_batchnorm=False))
    assert set(keys) == {layer.name for layer in network.layers if layer.weights}


ZOO = {
    "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8": make_extractor("mobilenet_v1"),
    "ssd_mobilenet_v2_320x320_coco17_tpu-8": make_extractor("mobilenet_v2", neck=ExtraFeatureLayers()),
    "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8": make_extractor("mobilenet_v2", use_depthwise=True),
    "ssd_mobilenet_v2_fpnlite_640x640_coco17_tpu-8": make_extractor("mobilenet_v2", use_depthwise=True),
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8": make_extractor("resnet50_v1"),
    "ssd_resnet50_v1_fpn_1024x1024_coco17_tpu-8": make_extractor("resnet50_v1"),
    "ssd_resnet101_v1_fpn_640x640_coco17_tpu-8": make_extractor("resnet101_v1"),
    "ssd_resnet152_v1_fpn_640x640_coco17_tpu-8": make_extractor("resnet152_v1"),
}


@pytest.fixture
def backbone_rows(reference_dir) -> Callable[[str], dict[str, list[str]]]:
    """Return a zoo model's list: key -> shape, type, the variable's name."""

    def read(model: str) -> dict[str, list[str]]:
        rows = (reference_dir / "keys" / f"{model}.tsv").read_text().splitlines()
        return {row.split("\t")[0]: row.split("\t")[1:] for row in rows if row.startswith(BACKBONE)}

    return read


@pytest.mark.parametrize("model", ZOO)
def test_layers_have_the_numbers_of_the_zoo(backbone_rows, model):
    rows = backbone_rows(model)
    assert rows
    names = {row[2].rpartition("/")[0]: key.removesuffix(VALUE).rpartition("/")[0] for key, row in rows.items()}
    assert backbone_layer_keys(ZOO[model]) == names
