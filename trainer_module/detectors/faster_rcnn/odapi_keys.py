"""Keys of the layers of a Faster R-CNN in checkpoints of the Object Detection API."""

import keras

from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.network import MaskRcnnBoxPredictor
from detloom.trainer_module.detectors.faster_rcnn.anchors import feature_levels
from detloom.trainer_module.detectors.faster_rcnn.network import backbone_config, mask_prefix
from detloom.trainer_module.detectors.one_stage.odapi_keys import neck_layer_keys
from detloom.trainer_module.layers.backbones.odapi_keys import backbone_layers, numbered_layer_keys

_SSD_EXTRACTOR = "model/_feature_extractor/"
_FIRST = "model/_feature_extractor_for_proposal_features"
_SECOND = "model/_feature_extractor_for_box_classifier_features"
_SECOND_PART = ("conv5_", "mixed_7a_", "block8_", "conv_7b_")  # starts of the names of its layers
_RPN_CONV = "model/_first_stage_box_predictor_first_conv"
_RPN_HEADS = "model/_first_stage_box_predictor/_prediction_heads"
_HEADS = "model/_mask_rcnn_box_predictor"
_MASK_HEAD = f"{_HEADS}/_third_stage_heads/mask_predictions/_mask_predictor_layers"


def faster_rcnn_layer_keys(config: FasterRcnn, network: keras.Model) -> dict[str, str]:
    """Return the key, without the variable name, of each layer with variables, by our layer name.

    Keys of batch norms are included even if there are none.
    """
    keys = {**_extractor_keys(config, network), "head_rpn_conv": f"{_RPN_CONV}/layer_with_weights-0"}
    keys["head_rpn_conv_bn"] = f"{_RPN_CONV}/layer_with_weights-1"
    for index in range(len(feature_levels(config.feature_extractor))):
        keys[f"head_rpn_offsets_{index}"] = f"{_RPN_HEADS}/box_encodings/{index}/_box_encoder_layers/0"
        classes = f"{_RPN_HEADS}/class_predictions_with_background/{index}/_class_predictor_layers"
        keys[f"head_rpn_objectness_{index}"] = f"{classes}/0"
    predictor = config.second_stage_box_predictor
    place = 1 + int(predictor.use_dropout)  # after flattening
    offsets = "head_offsets" if predictor.share_box_across_classes else "head_classes_offsets"
    for name, key in (
        ("head_classes", f"{_HEADS}/_class_prediction_head/_class_predictor_layers"),
        (offsets, f"{_HEADS}/_box_prediction_head/_box_encoder_layers"),
    ):
        keys |= {name: f"{key}/{place}", f"{name}_bn": f"{key}/{place + 1}"}
    return keys | _mask_keys(predictor)


def _mask_keys(predictor: MaskRcnnBoxPredictor) -> dict[str, str]:
    """Return the keys of the mask head: each convolution is followed by batch norm and activation."""
    num_hidden = predictor.mask_prediction_num_conv_layers - 1
    prefix = mask_prefix(predictor)
    places = {f"{prefix}_conv_{index}": 3 * index for index in range(num_hidden)}
    last = 3 * num_hidden
    if predictor.convolve_then_upsample_masks:
        places[f"{prefix}_upsampled_conv"] = last + 1  # after the enlargement
        last += 4
    keys = {name: f"{_MASK_HEAD}/{place}" for name, place in places.items()}
    batch_norms = {f"{name}_bn": f"{_MASK_HEAD}/{place + 1}" for name, place in places.items()}
    name = "head_masks" if predictor.masks_are_class_agnostic else "head_classes_masks"
    return {**keys, **batch_norms, name: f"{_MASK_HEAD}/{last}"}


def classification_layer_keys(network: keras.Model) -> dict[str, str]:
    """Return the keys of the backbone's layers in the numbering of a checkpoint trained on classification."""
    first, second = _parts_of_backbone(network)
    return numbered_layer_keys([*first, *second])


def _extractor_keys(config: FasterRcnn, network: keras.Model) -> dict[str, str]:
    first, second = _parts_of_backbone(network)
    if config.feature_extractor.neck is None:
        return numbered_layer_keys(first, _FIRST) | numbered_layer_keys(second, _SECOND)
    extractor = backbone_config(config.feature_extractor)
    # The names of the attributes have no underscore here.
    keys = numbered_layer_keys([*first, *second]) | neck_layer_keys(extractor)
    keys = {name: key.removeprefix(_SSD_EXTRACTOR).removeprefix("_") for name, key in keys.items()}
    has_batch_norm = extractor.conv_hyperparams.batch_norm is not None
    regions = ["neck_region_dense_1", *(["neck_region_bn"] if has_batch_norm else []), "neck_region_dense_2"]
    return {name: f"{_FIRST}/{key}" for name, key in keys.items()} | numbered_layer_keys(regions, _SECOND)


def _parts_of_backbone(network: keras.Model) -> tuple[list[str], list[str]]:
    """Return the names of the layers before and after the crops, which are numbered separately without a pyramid."""
    names = backbone_layers(network)
    second = [name for name in names if name.startswith(_SECOND_PART)]
    return [name for name in names if name not in second], second
