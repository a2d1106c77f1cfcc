import pytest

from detloom.schemas.model.network import (
    ConvHyperparams,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    RandomNormalInitializer,
)
from detloom.trainer_module.detectors.one_stage.odapi_keys import neck_layer_keys

HYPERPARAMS = ConvHyperparams(regularizer=L2Regularizer(), initializer=RandomNormalInitializer())
FE = "model/_feature_extractor"


def keys_of(neck, backbone="mobilenet_v2", **settings):
    return neck_layer_keys(FeatureExtractor(backbone=backbone, neck=neck, conv_hyperparams=HYPERPARAMS, **settings))


def test_top_down_path_is_numbered_from_the_top():
    keys = keys_of(Fpn(min_level=3, max_level=6))
    assert keys == {
        "neck_lateral_5": f"{FE}/_fpn_features_generator/top_layers/0",
        "neck_lateral_4": f"{FE}/_fpn_features_generator/residual_blocks/0/0",
        "neck_smooth_4": f"{FE}/_fpn_features_generator/conv_layers/0/0",
        "neck_smooth_4_bn": f"{FE}/_fpn_features_generator/conv_layers/0/1",
        "neck_lateral_3": f"{FE}/_fpn_features_generator/residual_blocks/1/0",
        "neck_smooth_3": f"{FE}/_fpn_features_generator/conv_layers/1/0",
        "neck_smooth_3_bn": f"{FE}/_fpn_features_generator/conv_layers/1/1",
        "neck_coarse_6": f"{FE}/_coarse_feature_layers/0/0",
        "neck_coarse_6_bn": f"{FE}/_coarse_feature_layers/0/1",
    }


def test_explicit_padding_shifts_convolutions_by_one():
    keys = keys_of(Fpn(min_level=4, max_level=6), use_explicit_padding=True)
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
    keys = keys_of(ExtraFeatureLayers(num_layers=4), **settings)
    block = f"{FE}/feature_map_generator/convolutions/3"
    depthwise, last = places
    assert keys["neck_squeeze_7"] == f"{block}/0"
    assert keys.get("neck_coarse_7_depthwise") == (f"{block}/{depthwise}" if depthwise else None)
    assert (keys["neck_coarse_7"], keys["neck_coarse_7_bn"]) == (f"{block}/{last}", f"{block}/{last + 1}")
    assert "neck_coarse_5" not in keys


def test_mobilenet_v1_names_its_extra_layers_differently():
    keys = keys_of(ExtraFeatureLayers(num_layers=3), "mobilenet_v1")
    assert keys["neck_squeeze_6_bn"] == f"{FE}/_feature_map_generator/convolutions/2/1"
