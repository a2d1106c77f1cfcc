"""Rules for the fields of a CenterNet.

They were checked against the Object Detection API's `model_builder.py` (`_build_center_net_model`),
`center_net_meta_arch.py` and the feature extractors named there.
"""

import typing
from collections.abc import Mapping
from typing import Any

from detloom.schemas.model import center_net as tree
from detloom.schemas.model.deepmac import DeepMac, MaskNetwork
from detloom.schemas.odapi.rules import (
    Depends,
    Ignored,
    Mapped,
    Refused,
    Rule,
    Structure,
    UnsupportedError,
    at,
    each,
    unless,
)
from detloom.schemas.odapi.text_format import Message

# The Object Detection API's names of the supported feature extractors, with their backbones.
_BACKBONES = {
    "resnet_v1_50_fpn": "resnet50_v1",
    "resnet_v1_101_fpn": "resnet101_v1",
    "resnet_v2_50": "resnet50_v2",
    "resnet_v2_101": "resnet101_v2",
    **{f"hourglass_{depth}": f"hourglass_{depth}" for depth in (10, 20, 32, 52, 104)},
    "mobilenet_v2_fpn": "mobilenet_v2",
    "mobilenet_v2_fpn_sep_conv": "mobilenet_v2",
}
_SUPPORTED = "supported: object_detection_task, keypoint_estimation_task, deepmac_mask_estimation"
# The class of persons by its name in COCO's label map, which label maps have as `name`, with the `display_name`.
_DISPLAY_NAMES = {"/m/01g317": "person"}
_DEPTH = "the depth of keypoints is not supported"
_DEPTH_SETTINGS = ("per_keypoint_depth", "keypoint_depth_loss_weight")
_OTHER_RANKING = Ignored(reason="is used only with another candidate_ranking_mode, which is refused")
_WEAK = "masks are trained from masks only"
_WEAK_LOSSES = ("box_consistency", "color_consistency", "augmented_self_supervision")
_OF_WEAK = Ignored(reason=f"is used only with a loss that is refused: {_WEAK}")
_OF_SELF_SUPERVISION = (
    "max_translation",
    "flip_probability",
    "warmup_start",
    "warmup_steps",
    "loss",
    "scale_min",
    "scale_max",
)
_SEPARABLE = "mobilenet_v2_fpn_sep_conv"


def _backbone(extractor: str) -> str:
    if extractor not in _BACKBONES:
        raise UnsupportedError(", ".join(_BACKBONES))
    return _BACKBONES[extractor]


def _extractor(plain: Mapping[str, Any]) -> str:
    return next(name for name, backbone in _BACKBONES.items() if backbone == plain["backbone"])


def _mask_network(name: str) -> str:
    if name not in typing.get_args(MaskNetwork):
        raise UnsupportedError(", ".join(typing.get_args(MaskNetwork)))
    return name


def _with_mobilenet(key: str) -> Depends:
    """Return the rule of a field that only MobileNet's feature extractors read."""

    def choose(message: Message) -> Rule:
        if str(message.scalar("type")).startswith(("resnet", "hourglass")):
            return Ignored(reason="the Object Detection API's ResNets and Hourglasses do not read it")
        return at(key)

    return Depends(usual=at(key), when="with a ResNet or an Hourglass: ignored", choose=choose)


def _use_separable_conv(message: Message) -> Rule:
    if message.scalar("type") == _SEPARABLE:
        return Mapped(key="use_separable_conv", read=lambda _: True)
    return _with_mobilenet("use_separable_conv").choose(message)


def _heads(*names: str) -> dict[str, Rule | Depends]:
    """Return the rules of heads: an omitted head has the tree's layer, an empty one has none."""
    return {name: Mapped(key=name, adds={"num_filters": [], "kernel_sizes": []}) for name in names}


CENTER_NET: dict[str, Structure] = {
    "CenterNet": Structure(
        single={"keypoint_estimation_task": "keypoints of more than one class are not supported"},
        fields={
            "keypoint_label_map_path": Ignored(
                reason="keypoint_label_to_std names the keypoints: COCO's in COCO's order, others in the order of the "
                "file, which has to be that of the data"
            ),
            "mask_estimation_task": Refused(reason=f"masks are not supported; {_SUPPORTED}"),
            "densepose_estimation_task": Refused(reason=f"DensePose is not supported; {_SUPPORTED}"),
            "track_estimation_task": Refused(reason=f"tracking is not supported; {_SUPPORTED}"),
            "temporal_offset_task": Refused(reason=f"tracking is not supported; {_SUPPORTED}"),
            "compute_heatmap_sparse": Ignored(reason="selects among implementations with the same result"),
            "post_processing": Refused(reason="NMS of the heatmap's peaks is not supported"),
            "output_prediction_dict": Ignored(reason="adds outputs, does not change detections"),
        },
    ),
    "CenterNetFeatureExtractor": Structure(
        fields={
            "type": Mapped(key="backbone", read=_backbone, write=_extractor, note="detloom's name of the network"),
            "use_depthwise": Ignored(reason="only unsupported feature extractors read it"),
            "depth_multiplier": _with_mobilenet("depth_multiplier"),
            "use_separable_conv": Depends(
                usual=at("use_separable_conv"),
                when=f"with a ResNet or an Hourglass: ignored; with {_SEPARABLE}: true if it is set to any value",
                choose=_use_separable_conv,
            ),
            "upsampling_interpolation": _with_mobilenet("upsampling_interpolation"),
        },
    ),
    "CenterNet.ObjectDetection": Structure(fields=_heads("scale_head_params", "offset_head_params")),
    "CenterNet.KeypointEstimation": Structure(
        fields={
            **_heads("heatmap_head_params", "offset_head_params", "regress_head_params"),
            "keypoint_class_name": Mapped(
                key="keypoint_class_name",
                read=lambda name: _DISPLAY_NAMES.get(name, name),
                note="/m/01g317, COCO's name of persons, becomes person; else the class's name in the label map",
            ),
            "candidate_ranking_mode": unless("min_distance", "the nearest candidate is taken"),
            **each(_OTHER_RANKING, "score_distance_offset", "score_distance_multiplier", "std_dev_multiplier"),
            "predict_depth": unless(False, _DEPTH),
            **each(Ignored(reason=f"is used only with predict_depth: {_DEPTH}"), *_DEPTH_SETTINGS),
            "rescore_instances": unless(False, "scores of objects do not depend on their keypoints"),
            "rescoring_threshold": Ignored(reason="is used only with rescore_instances, which is refused"),
            "argmax_postprocessing": unless(False, "keypoints are refined with all peaks"),
            "gaussian_denom_ratio": Ignored(reason="is used only with argmax_postprocessing, which is refused"),
        },
    ),
    "CenterNet.KeypointEstimation.KeypointLabelToStdEntry": Structure(
        makes=tree.KeypointStd, fields={"key": at("name"), "value": at("std")}
    ),
    "CenterNet.DeepMACMaskEstimation": Structure(
        makes=DeepMac,
        fields={
            "network_type": Mapped(key="network_type", read=_mask_network),
            "mask_num_subsamples": unless(-1, "the masks of all boxes are trained, as in the Object Detection API"),
            "predict_full_resolution_masks": unless(False, "masks are predicted in boxes"),
            "postprocess_crop_size": Ignored(reason="is used only with predict_full_resolution_masks"),
            "max_roi_jitter_ratio": unless(0.0, "boxes are not moved before their masks are cropped"),
            "jitter_mode": Ignored(reason="is used only with max_roi_jitter_ratio, which is refused"),
            **each(unless(0.0, _WEAK), *(f"{name}_loss_weight" for name in _WEAK_LOSSES)),
            "pointly_supervised_keypoint_loss_weight": unless(0.0, _WEAK),
            **each(_OF_WEAK, "color_consistency_threshold", "color_consistency_dilation"),
            **each(_OF_WEAK, "color_consistency_warmup_steps", "color_consistency_warmup_start"),
            **each(_OF_WEAK, "box_consistency_loss_normalize", "box_consistency_tightness"),
            **each(_OF_WEAK, *(f"augmented_self_supervision_{name}" for name in _OF_SELF_SUPERVISION)),
            "ignore_per_class_box_overlap": unless(False, "pixels in several boxes of a class count for all of them"),
        },
    ),
    "CenterNet.ObjectCenterParams": Structure(
        fields={
            **_heads("center_head_params"),
            "use_labeled_classes": unless(False, "a loss of labelled classes only is not supported"),
            "keypoint_weights_for_center": Refused(reason="centers computed from keypoints are not supported"),
        },
    ),
}
