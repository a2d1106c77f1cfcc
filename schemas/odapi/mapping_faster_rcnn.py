"""Rules for the fields of a Faster R-CNN.

They were checked against the Object Detection API's `model_builder.py` (`_build_faster_rcnn_model`),
`faster_rcnn_meta_arch.py`, `box_predictor_builder.py` and the feature extractors named there.
"""

from collections.abc import Mapping
from typing import Any

from detloom.schemas.model.network import Fpn
from detloom.schemas.odapi.mapping_model import IN_PIXELS
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
from detloom.schemas.odapi.tf1 import allowed_extractors
from detloom.schemas.reading.typed_dict import TYPE_KEY

_FASTER = Ignored(reason="selects among implementations with the same result")
_STATIC = Ignored(reason="detloom's shapes are always static; see docs/parity.md on images with few proposals")
_MORE_OUTPUTS = Ignored(reason="adds outputs, does not change detections")

# Supported feature extractors of the Object Detection API, with backbone and whether they have a feature pyramid.
FEATURE_EXTRACTORS: dict[str, tuple[str, bool]] = {
    f"faster_rcnn_resnet{depth}{suffix}_keras": (f"resnet{depth}_v1", has_pyramid)
    for suffix, has_pyramid in (("", False), ("_fpn", True))
    for depth in (50, 101, 152)
} | {"faster_rcnn_inception_resnet_v2_keras": ("inception_resnet_v2", False)}


def _backbone_and_neck(extractor: str) -> dict[str, Any]:
    if extractor not in FEATURE_EXTRACTORS:
        raise UnsupportedError(allowed_extractors(extractor, FEATURE_EXTRACTORS))
    backbone, has_pyramid = FEATURE_EXTRACTORS[extractor]
    return {"backbone": backbone, **({"neck": {TYPE_KEY: Fpn.__name__}} if has_pyramid else {})}


def _extractor(plain: Mapping[str, Any]) -> str:
    wanted = (plain["backbone"], plain["neck"] is not None)
    return next(name for name, found in FEATURE_EXTRACTORS.items() if found == wanted)


def _with_pyramid(usual: Mapped) -> Depends:
    """Return the rule of a field that only feature extractors with a pyramid have."""

    def choose(message: Message) -> Rule:
        extractor = message.scalar("type")
        if extractor in FEATURE_EXTRACTORS and not FEATURE_EXTRACTORS[extractor][1]:
            if message.values.get("conv_hyperparams") or usual.key != "override_base_feature_extractor_hyperparams":
                return Refused(reason=f"{extractor} does not have this field")
            return Ignored(reason="the Object Detection API reads it only with conv_hyperparams")
        return usual

    return Depends(usual=usual, when="with a type without fpn: refused", choose=choose)


FASTER_RCNN: dict[str, Structure] = {
    "FasterRcnn": Structure(
        fields={
            "first_stage_anchor_generator": Mapped(
                key="first_stage_anchor_generator",
                write=lambda plain: {**plain["first_stage_anchor_generator"], IN_PIXELS: True},
            ),
            "first_stage_box_predictor_conv_hyperparams": Mapped(
                key="first_stage_box_predictor_conv_hyperparams", implied={}
            ),
            "second_stage_classification_loss": at("second_stage_classification_loss", "a softmax if omitted"),
            "inplace_batchnorm_update": unless(False, "the Object Detection API's TF2 models fail with it"),
            **each(_FASTER, "use_matmul_crop_and_resize", "use_matmul_gather_in_matcher"),
            **each(_STATIC, "use_static_balanced_label_sampler", "use_static_shapes", "use_static_shapes_for_eval"),
            "resize_masks": Ignored(reason="masks always have the size of the network's input"),
            "use_partitioned_nms_in_first_stage": _FASTER,
            **each(_MORE_OUTPUTS, "return_raw_detections_during_predict", "output_final_box_features"),
            "output_final_box_rpn_features": _MORE_OUTPUTS,
            "use_combined_nms_in_first_stage": unless(False, "it keeps proposals outside of the image"),
            "context_config": Refused(reason="Context R-CNN is not supported"),
        },
    ),
    "FasterRcnnFeatureExtractor": Structure(
        required=("type",),
        fields={
            "type": Mapped(key="", read=_backbone_and_neck, write=_extractor, note="backbone and type of the neck"),
            "first_stage_features_stride": unless(16, "the backbones have no other stride here"),
            "conv_hyperparams": _with_pyramid(at("conv_hyperparams")),
            "override_base_feature_extractor_hyperparams": _with_pyramid(
                at("override_base_feature_extractor_hyperparams")
            ),
            "pad_to_multiple": Ignored(reason="the Object Detection API does not read it: always 32 with fpn, else 1"),
            "fpn": _with_pyramid(
                Mapped(key="neck", implied={"min_level": 2, "max_level": 6}, note="levels 2 to 6 if omitted")
            ),
        },
    ),
    "MaskRCNNBoxPredictor": Structure(
        fields={
            "fc_hyperparams": Mapped(key="fc_hyperparams", implied={}),
            "box_code_size": unless(4, "a box has four coordinates"),
            "predict_keypoints": unless(False, "keypoints are not supported, as in the Object Detection API"),
        },
    ),
}
