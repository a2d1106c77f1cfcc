import pytest

from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.network import (
    ConvHyperparams,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    L2Regularizer,
    RandomNormalInitializer,
)
from detloom.trainer_module.detectors.one_stage.odapi_keys import head_layer_keys

BP = "model/_box_predictor"
CLASSES = "class_predictions_with_background"
HYPERPARAMS = ConvHyperparams(regularizer=L2Regularizer(), initializer=RandomNormalInitializer())


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


def test_shared_tower_has_one_set_of_keys_with_norms_under_boxes(tiny_config):
    assert head_layer_keys(tiny_config.model) == {
        "head_offsets": f"{BP}/_box_prediction_head/_box_encoder_layers/0",
        "head_classes": f"{BP}/_prediction_heads/{CLASSES}/_class_predictor_layers/0",
        "head_conv_0": f"{BP}/_head_scope_conv_layers/PredictionTower/0",
        **{f"head_conv_0_level_{3 + i}_bn": f"{BP}/_base_tower_layers_for_heads/box_encodings/{i}/1" for i in range(3)},
        **{f"head_project_level_{3 + i}": f"{BP}/_additional_projection_layers/{i}/0" for i in range(3)},
        **{f"head_project_level_{3 + i}_bn": f"{BP}/_additional_projection_layers/{i}/1" for i in range(3)},
    }


def test_separate_towers_have_separate_keys(tiny_config, changed):
    settings = {"box_predictor.share_prediction_tower": False, "box_predictor.num_layers_before_predictor": 2}
    keys = head_layer_keys(changed(tiny_config.model, settings))
    assert keys["head_box_conv_1"] == f"{BP}/_head_scope_conv_layers/BoxPredictionTower/1"
    assert keys["head_class_conv_1"] == f"{BP}/_head_scope_conv_layers/ClassPredictionTower/1"
    assert keys["head_class_conv_1_level_5_bn"] == f"{BP}/_base_tower_layers_for_heads/{CLASSES}/2/4"


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
