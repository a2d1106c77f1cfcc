"""Keys of the layers of a CenterNet in checkpoints of the Object Detection API."""

import keras

from detloom.schemas.model.center_net import CenterNet, PredictionHeadParams
from detloom.trainer_module.detectors.centernet.deepmac import PROJECTION, mask_hourglass
from detloom.trainer_module.detectors.centernet.network import EMBEDDING_HEAD, output_suffixes
from detloom.trainer_module.layers.backbones.hourglass import HOURGLASSES
from detloom.trainer_module.layers.backbones.odapi_keys import (
    backbone_layers,
    hourglass_layer_keys,
    numbered_layer_keys,
)

_BACKBONE_KEY = "model/_feature_extractor/_base_model"
_NECK_KEY = "model/_feature_extractor/_feature_extractor_model"
_HEAD_KEY = "model/_prediction_head_dict"  # ".S" stands for the slash in a head's name
_MASK_KEY = "model/_mask_net"
_NECK_LEVELS = (4, 3, 2)
_RESNETS_V2 = ("resnet50_v2", "resnet101_v2")


def centernet_layer_keys(config: CenterNet, network: keras.Model) -> dict[str, str]:
    """Return the key, without the variable name, of each layer with variables, by our layer name."""
    backbone = config.feature_extractor.backbone
    if backbone in HOURGLASSES:
        keys = hourglass_layer_keys(HOURGLASSES[backbone], network)
    else:
        keys = numbered_layer_keys(backbone_layers(network), _BACKBONE_KEY) | _neck_keys(config)
    centers, boxes = config.object_center_params, config.object_detection_task
    for index, suffix in enumerate(output_suffixes(config.feature_extractor)):
        keys |= _head_keys(f"object_center/{index}", centers.center_head_params, "head_class", "head_classes", suffix)
        keys |= _head_keys(f"box.Sscale/{index}", boxes.scale_head_params, "head_size", "head_size", suffix)
        keys |= _head_keys(f"box.Soffset/{index}", boxes.offset_head_params, "head_offset", "head_offset", suffix)
        if (task := config.keypoint_estimation_task) is not None:
            for part, params in (
                ("heatmap", task.heatmap_head_params),
                ("offset", task.offset_head_params),
                ("regression", task.regress_head_params),
            ):
                name = f"head_keypoint_{part}"
                keys |= _head_keys(f"{task.task_name}.Skeypoint.S{part}/{index}", params, name, name, suffix)
        if config.deepmac_mask_estimation is not None:
            for part in ("instance", "pixel"):
                name, key = f"head_{part}_embedding", f"{part.upper()}_EMBEDDING/{index}"
                keys |= _head_keys(key, EMBEDDING_HEAD, name, name, suffix)
    if (masks := config.deepmac_mask_estimation) is not None:
        keys |= {
            **hourglass_layer_keys(mask_hourglass(masks), network, f"{_MASK_KEY}/_net"),
            PROJECTION: f"{_MASK_KEY}/project_out",
        }
    return keys


def _neck_keys(config: CenterNet) -> dict[str, str]:
    """Return the keys of the neck. The whole backbone counts as the first layer with weights."""
    if config.feature_extractor.backbone in _RESNETS_V2:
        layers = [(f"neck_smooth_{level + 1}", f"neck_upsample_{level}") for level in _NECK_LEVELS]
        names = [layer for pair in layers for name in pair for layer in (name, f"{name}_bn")]
    else:
        names = ["neck_lateral_5"]
        for level in _NECK_LEVELS:
            names += [f"neck_lateral_{level}", f"neck_smooth_{level}", f"neck_smooth_{level}_bn"]
    return {name: f"{_NECK_KEY}/layer_with_weights-{index}" for index, name in enumerate(names, start=1)}


def _head_keys(key: str, params: PredictionHeadParams, prefix: str, last: str, suffix: str) -> dict[str, str]:
    names = [*(f"{prefix}_conv_{i}" for i in range(len(params.num_filters))), last]
    return {f"{name}{suffix}": f"{_HEAD_KEY}/{key}/layer_with_weights-{index}" for index, name in enumerate(names)}
