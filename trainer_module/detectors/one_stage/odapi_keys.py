"""Keys of the layers of a single-shot detector in checkpoints of the Object Detection API."""

import keras

from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.network import (
    BiFpn,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.trainer_module.layers.backbones.odapi_keys import backbone_layer_keys
from detloom.trainer_module.layers.necks.bifpn import bifpn_nodes, is_backbone_feature
from detloom.trainer_module.layers.necks.pyramid_levels import COARSEST_BACKBONE_LEVEL, pyramid_levels

_EXTRACTOR = "model/_feature_extractor"
_BIFPN = f"{_EXTRACTOR}/_bifpn_stage"
_PREDICTOR = "model/_box_predictor"
_BOXES, _CLASSES = "box_encodings", "class_predictions_with_background"


def odapi_layer_keys(config: Ssd, network: keras.Model) -> dict[str, str]:
    """Return the key, without the variable name, of each layer with variables, by our layer name."""
    extractor = config.feature_extractor
    return {**backbone_layer_keys(extractor, network), **neck_layer_keys(extractor), **head_layer_keys(config)}


def neck_layer_keys(config: FeatureExtractor) -> dict[str, str]:
    """Return the keys of a neck, by our layer name; keys of batch norms are included even if there are none."""
    match config.neck:
        case Fpn():
            return _fpn_keys(config, config.neck)
        case ExtraFeatureLayers():
            return _extra_layer_keys(config, config.neck)
        case BiFpn():
            return bifpn_layer_keys(config)
    raise AssertionError(f"no such neck: {config.neck}")


def _fpn_keys(config: FeatureExtractor, neck: Fpn) -> dict[str, str]:
    """Return the keys. Explicit padding is a separate layer there; the convolution is then the second of its block."""
    top, pyramid = min(neck.max_level, COARSEST_BACKBONE_LEVEL), f"{_EXTRACTOR}/_fpn_features_generator"
    place = int(config.use_explicit_padding)
    keys = {f"neck_lateral_{top}": f"{pyramid}/top_layers/0"}
    for i, level in enumerate(range(top - 1, neck.min_level - 1, -1)):
        keys[f"neck_lateral_{level}"] = f"{pyramid}/residual_blocks/{i}/0"
        keys |= _block(f"neck_smooth_{level}", f"{pyramid}/conv_layers/{i}", place)
    for i, level in enumerate(range(top + 1, neck.max_level + 1)):
        keys |= _block(f"neck_coarse_{level}", f"{_EXTRACTOR}/_coarse_feature_layers/{i}", place)
    return keys


def _extra_layer_keys(config: FeatureExtractor, neck: ExtraFeatureLayers) -> dict[str, str]:
    """Return the keys of a block per level that is not of the backbone: 1x1, padding, depthwise, convolution."""
    generator = "_feature_map_generator" if config.backbone == "mobilenet_v1" else "feature_map_generator"
    keys: dict[str, str] = {}
    for i, level in enumerate(pyramid_levels(neck)):
        if level <= COARSEST_BACKBONE_LEVEL:
            continue
        block, name = f"{_EXTRACTOR}/{generator}/convolutions/{i}", f"neck_coarse_{level}"
        keys |= _block(f"neck_squeeze_{level}", block, 0)
        place = 3 + int(config.use_explicit_padding)  # after convolution, batch norm and activation
        if config.use_depthwise:
            keys |= _block(f"{name}_depthwise", block, place)
            place += 3
        keys |= _block(name, block, place)
    return keys


def bifpn_layer_keys(config: FeatureExtractor) -> dict[str, str]:
    """Return the keys of a BiFPN, by our layer name.

    They consist of the number of the node, the number of the input, and the number of the operation of the input (1x1
    convolution, batch norm, pooling) or after the sum (activation, convolution, batch norm).
    """
    assert isinstance(config.neck, BiFpn), config.neck
    keys = {}
    for number, node in enumerate(bifpn_nodes(config.neck)):
        name = f"neck_{node.name}"
        for index, feature in enumerate(node.inputs):
            if is_backbone_feature(feature):
                operations = f"{_BIFPN}/node_input_blocks/{number}/{index}/1"
                keys[f"{name}_input_{index}_conv"] = f"{operations}/0"
                keys[f"{name}_input_{index}_bn"] = f"{operations}/1"
        if len(node.inputs) > 1:
            if config.neck.combine_method != "sum":
                keys[f"{name}_combine"] = f"{_BIFPN}/node_combine_op/{number}"
            keys[f"{name}_conv"] = f"{_BIFPN}/node_post_combine_block/{number}/1"
            if config.conv_hyperparams.batch_norm is not None:
                keys[f"{name}_bn"] = f"{_BIFPN}/node_post_combine_block/{number}/2"
    return keys


def head_layer_keys(config: Ssd) -> dict[str, str]:
    """Return the keys of the heads, by our layer name; keys of batch norms are included even if there are none."""
    levels = pyramid_levels(config.feature_extractor.neck)
    match config.box_predictor:
        case ConvolutionalBoxPredictor():
            return _level_head_keys(config.box_predictor, len(levels))
        case WeightSharedConvolutionalBoxPredictor():
            return _shared_head_keys(config.box_predictor, levels)
    raise AssertionError(f"no such heads: {config.box_predictor}")


def _level_head_keys(head: ConvolutionalBoxPredictor, num_levels: int) -> dict[str, str]:
    keys: dict[str, str] = {}
    for index in range(num_levels):
        for i in range(head.num_layers_before_predictor):
            keys |= _block(f"head_conv_{i}_{index}", f"{_PREDICTOR}/_shared_nets/{index}", 3 * i)
        for what, last, kind, layers, place in (
            ("box", "head_offsets", _BOXES, "_box_encoder_layers", 0),
            ("class", "head_classes", _CLASSES, "_class_predictor_layers", int(head.use_dropout)),
        ):
            key = f"{_PREDICTOR}/_prediction_heads/{kind}/{index}/{layers}"
            if head.use_depthwise:
                keys |= _block(f"head_{what}_depthwise_{index}", key, place)
                place += 3
            keys[f"{last}_{index}"] = f"{key}/{place}"
    return keys


def _shared_head_keys(head: WeightSharedConvolutionalBoxPredictor, levels: tuple[int, ...]) -> dict[str, str]:
    keys = {
        "head_offsets": f"{_PREDICTOR}/_box_prediction_head/_box_encoder_layers/0",
        "head_classes": f"{_PREDICTOR}/_prediction_heads/{_CLASSES}/_class_predictor_layers/{int(head.use_dropout)}",
    }
    towers = [("head_box_conv", "BoxPredictionTower", _BOXES), ("head_class_conv", "ClassPredictionTower", _CLASSES)]
    if head.share_prediction_tower:
        towers = [("head_conv", "PredictionTower", _BOXES)]
    layers_per_conv = 2 if head.conv_hyperparams.batch_norm is None else 3
    for name, scope, kind in towers:
        for i in range(head.num_layers_before_predictor):
            keys[f"{name}_{i}"] = f"{_PREDICTOR}/_head_scope_conv_layers/{scope}/{i}"
            for index, level in enumerate(levels):
                norm = f"{_PREDICTOR}/_base_tower_layers_for_heads/{kind}/{index}/{layers_per_conv * i + 1}"
                keys[f"{name}_{i}_level_{level}_bn"] = norm
    for index, level in enumerate(levels):
        keys |= _block(f"head_project_level_{level}", f"{_PREDICTOR}/_additional_projection_layers/{index}", 0)
    return keys


def _block(name: str, key: str, place: int) -> dict[str, str]:
    """Return the keys of a convolution and the batch norm after it."""
    return {name: f"{key}/{place}", f"{name}_bn": f"{key}/{place + 1}"}
