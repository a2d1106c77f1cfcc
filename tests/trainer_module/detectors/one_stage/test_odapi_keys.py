"""Keys of settings that no network of the default key lists and parity tests has; see weights/test_zoo_key_lists.py."""

import csv
from dataclasses import replace

import pytest

from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.network import (
    ConvHyperparams,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    RandomNormalInitializer,
)
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.one_stage.odapi_keys import bifpn_layer_keys, head_layer_keys, neck_layer_keys

FE, BP = "model/_feature_extractor", "model/_box_predictor"
CLASSES = "class_predictions_with_background"
HYPERPARAMS = ConvHyperparams(regularizer=L2Regularizer(), initializer=RandomNormalInitializer())


def neck_keys(neck, backbone="mobilenet_v2", **settings):
    return neck_layer_keys(FeatureExtractor(backbone=backbone, neck=neck, conv_hyperparams=HYPERPARAMS, **settings))


def test_explicit_padding_shifts_convolutions_by_one():
    keys = neck_keys(Fpn(min_level=4, max_level=6), use_explicit_padding=True)
    assert keys["neck_smooth_4"] == f"{FE}/_fpn_features_generator/conv_layers/0/1"
    assert keys["neck_coarse_6_bn"] == f"{FE}/_coarse_feature_layers/0/2"
    assert keys["neck_lateral_4"] == f"{FE}/_fpn_features_generator/residual_blocks/0/0"


@pytest.mark.parametrize(
    ("settings", "places"),  # of the depthwise and the last convolution, after the 1x1 one, its batch norm, activation
    [
        ({}, (None, 3)),
        ({"use_explicit_padding": True}, (None, 4)),
        ({"use_depthwise": True}, (3, 6)),
        ({"use_depthwise": True, "use_explicit_padding": True}, (4, 7)),
    ],
)
def test_extra_layers_are_numbered_after_the_two_of_the_backbone(settings, places):
    keys = neck_keys(ExtraFeatureLayers(num_layers=4), **settings)
    block = f"{FE}/feature_map_generator/convolutions/3"
    depthwise, last = places
    assert keys["neck_squeeze_7"] == f"{block}/0"
    assert keys.get("neck_coarse_7_depthwise") == (f"{block}/{depthwise}" if depthwise else None)
    assert (keys["neck_coarse_7"], keys["neck_coarse_7_bn"]) == (f"{block}/{last}", f"{block}/{last + 1}")
    assert "neck_coarse_5" not in keys
    keys = neck_keys(ExtraFeatureLayers(num_layers=3), "mobilenet_v1")  # which names them differently
    assert keys["neck_squeeze_6_bn"] == f"{FE}/_feature_map_generator/convolutions/2/1"


def our_name(variable_name: str) -> str:
    """Convert "EfficientDet-D0/bifpn/node_05/1_dn_lvl_3/input_0_up_lvl_3/1x1_pre_sample/conv/bias" to our layer name.

    The index of the node's input is left out: `neck_1_down_3_input_conv`.
    """
    node, *parts = variable_name.split("/")[3:-1]
    node = node.replace("_dn_lvl_", "_down_").replace("_up_lvl_", "_up_")
    kinds = {"conv": "conv", "separable_conv": "conv", "batchnorm": "bn", "combine": "combine"}
    return f"neck_{node}_{'input_' if parts[0].startswith('input') else ''}{kinds[parts[-1]]}"


@pytest.mark.parametrize("size", ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"])
def test_every_key_of_a_bifpn_belongs_to_the_equivalent_layer(reference_dir, size):
    (file,) = (reference_dir / "keys").glob(f"ssd_efficientdet_{size}_*.tsv")
    with file.open() as lines:
        rows = [row for row in csv.DictReader(lines, delimiter="\t") if "/_bifpn_stage/" in row["key"]]
    theirs = {}
    for row in rows:
        path = row["key"].split("/.ATTRIBUTES")[0].rpartition("/")[0]
        theirs[path] = our_name(row["variable_name"])
    keys = bifpn_layer_keys(find_preset(f"efficientdet_{size}").config.model.feature_extractor)
    # In the reference's configurations the convolution is always at a node's first input.
    assert {path: name.replace("input_0", "input") for name, path in keys.items()} == theirs


def test_keys_of_a_bifpn_depend_on_its_structure():
    config = find_preset("efficientdet_d7x").config.model.feature_extractor
    keys = bifpn_layer_keys(config)
    # Nodes 0 to 2 are the levels 6 to 8, 3 and 4 the first levels 7 and 6 of the top-down path, 5 is level 5.
    assert keys["neck_0_up_6_input_0_conv"] == f"{FE}/_bifpn_stage/node_input_blocks/0/0/1/0"
    assert keys["neck_1_down_7_bn"] == f"{FE}/_bifpn_stage/node_post_combine_block/3/2"
    assert keys["neck_1_down_5_input_0_bn"] == f"{FE}/_bifpn_stage/node_input_blocks/5/0/1/1"
    assert "neck_1_down_7_combine" not in keys  # a plain sum
    weighted = bifpn_layer_keys(replace(config, neck=replace(config.neck, combine_method="attention")))
    assert weighted["neck_1_down_7_combine"] == f"{FE}/_bifpn_stage/node_combine_op/3"


def test_projected_levels_and_separate_towers_have_keys(tiny_config, changed):
    settings = {"box_predictor.share_prediction_tower": False, "box_predictor.num_layers_before_predictor": 2}
    keys = head_layer_keys(changed(tiny_config.model, settings))
    assert keys["head_box_conv_1"] == f"{BP}/_head_scope_conv_layers/BoxPredictionTower/1"
    assert keys["head_class_conv_1"] == f"{BP}/_head_scope_conv_layers/ClassPredictionTower/1"
    assert keys["head_class_conv_1_level_5_bn"] == f"{BP}/_base_tower_layers_for_heads/{CLASSES}/2/4"
    assert keys["head_project_level_4"] == f"{BP}/_additional_projection_layers/1/0"
    assert keys["head_project_level_4_bn"] == f"{BP}/_additional_projection_layers/1/1"


@pytest.fixture
def level_head_keys(tiny_config, changed):
    def keys(**settings):
        changes = {
            "feature_extractor.neck": ExtraFeatureLayers(num_layers=2),
            "anchor_generator": SsdAnchorGenerator(num_layers=2, aspect_ratios=(1.0,)),
            "box_predictor": ConvolutionalBoxPredictor(conv_hyperparams=HYPERPARAMS, **settings),
        }
        return head_layer_keys(changed(tiny_config.model, changes))

    return keys


def test_dropout_shifts_the_class_layer_by_one(tiny_config, changed, level_head_keys):
    keys = head_layer_keys(changed(tiny_config.model, {"box_predictor.use_dropout": True}))
    assert keys["head_classes"] == f"{BP}/_prediction_heads/{CLASSES}/_class_predictor_layers/1"
    keys = level_head_keys(use_dropout=True)
    assert keys["head_classes_1"] == f"{BP}/_prediction_heads/{CLASSES}/1/_class_predictor_layers/1"
    assert keys["head_offsets_1"] == f"{BP}/_prediction_heads/box_encodings/1/_box_encoder_layers/0"


def test_each_level_has_separate_keys(level_head_keys):
    keys = level_head_keys(use_dropout=False, num_layers_before_predictor=2, use_depthwise=True, kernel_size=3)
    boxes = f"{BP}/_prediction_heads/box_encodings/1/_box_encoder_layers"
    assert keys["head_conv_1_1"] == f"{BP}/_shared_nets/1/3"  # after a convolution, its batch norm and activation
    assert keys["head_conv_1_1_bn"] == f"{BP}/_shared_nets/1/4"
    assert keys["head_box_depthwise_1"] == f"{boxes}/0"
    assert keys["head_box_depthwise_1_bn"] == f"{boxes}/1"
    assert keys["head_offsets_1"] == f"{boxes}/3"
    assert len(keys) == 2 * (4 + 3 + 3)  # levels; tower, boxes, classes
