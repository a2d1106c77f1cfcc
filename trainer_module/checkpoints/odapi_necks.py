"""Where the Object Detection API's checkpoints keep the layers of the necks `Fpn` and `ExtraFeatureLayers`."""

from detloom.schemas.network_config import ExtraFeatureLayers, FeatureExtractor, Fpn
from detloom.trainer_module.necks.pyramid_levels import COARSEST_BACKBONE_LEVEL, pyramid_levels

_EXTRACTOR = "model/_feature_extractor"


def neck_layer_keys(config: FeatureExtractor) -> dict[str, str]:
    """Keys by our layer name, without the variable's name; batch norms are named whether there are any or not."""
    match config.neck:
        case Fpn():
            return _fpn_keys(config, config.neck)
        case ExtraFeatureLayers():
            return _extra_layer_keys(config, config.neck)
    raise AssertionError(f"not here: {config.neck}")


def _fpn_keys(config: FeatureExtractor, neck: Fpn) -> dict[str, str]:
    """There, explicit padding is a layer of its own, so that the convolution is the second of its block."""
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
    """A block of layers for each level, without any for the backbone's: 1x1, padding, depthwise, convolution."""
    generator = "_feature_map_generator" if config.backbone == "mobilenet_v1" else "feature_map_generator"
    keys: dict[str, str] = {}
    for i, level in enumerate(pyramid_levels(neck)):
        if level <= COARSEST_BACKBONE_LEVEL:
            continue
        block, name = f"{_EXTRACTOR}/{generator}/convolutions/{i}", f"neck_coarse_{level}"
        keys |= _block(f"neck_squeeze_{level}", block, 0)
        place = 3 + int(config.use_explicit_padding)  # behind convolution, batch norm and activation
        if config.use_depthwise:
            keys |= _block(f"{name}_depthwise", block, place)
            place += 3
        keys |= _block(name, block, place)
    return keys


def _block(name: str, key: str, place: int) -> dict[str, str]:
    """A convolution and the batch norm behind it."""
    return {name: f"{key}/{place}", f"{name}_bn": f"{key}/{place + 1}"}
