"""Where the Object Detection API's checkpoints hold EfficientNet's variables.

It numbers the layers that have weights in the order in which features pass them. Its feature extractor holds two models
over the same layers: the whole classification network, and that up to the last feature map which the pyramid takes.
The latter is written where both hold a layer, so that only what lies behind it stands under the former's name.
"""

from dataclasses import replace

from detloom.schemas.network_config import BiFpn, FeatureExtractor
from detloom.trainer_module.backbones.efficientnet import efficientnet_layers

_USED = "model/_feature_extractor/_efficientnet/layer_with_weights-"
_WHOLE = "model/_feature_extractor/classification_backbone/layer_with_weights-"


def efficientnet_layer_keys(config: FeatureExtractor) -> dict[str, str]:
    """Object path by layer name.

    With `features_of_last_blocks`, which the Object Detection API does not know, the blocks that it has but does not
    use are found too.
    """
    assert isinstance(config.neck, BiFpn), config.neck
    theirs = replace(config, neck=replace(config.neck, features_of_last_blocks=False))
    used = set(efficientnet_layers(theirs))
    return {
        name: f"{_USED if name in used else _WHOLE}{index}" for index, name in enumerate(efficientnet_layers(config))
    }
