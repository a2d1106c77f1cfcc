"""Where the Object Detection API's checkpoints keep the layers of the heads."""

from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import ConvolutionalBoxPredictor, WeightSharedConvolutionalBoxPredictor
from detloom.trainer_module.necks.pyramid_levels import pyramid_levels

_PREDICTOR = "model/_box_predictor"
_BOXES, _CLASSES = "box_encodings", "class_predictions_with_background"


def head_layer_keys(config: Ssd) -> dict[str, str]:
    """Keys by our layer name, without the variable's name; batch norms are named whether there are any or not."""
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
    """A convolution and the batch norm behind it."""
    return {name: f"{key}/{place}", f"{name}_bn": f"{key}/{place + 1}"}
