"""Rules for the fields of a network: resizers, convolutions, feature extractors and heads.

They were checked against the Object Detection API's `hyperparams_builder.py` (`KerasLayerHyperparams`),
`model_builder.py`, `box_predictor_builder.py` (`build_keras`) and the feature extractors named there.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from detloom.schemas.model import network as tree
from detloom.schemas.odapi.rules import (
    IN_FASTER_RCNN,
    NOTHING,
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

_NOT_READ = "the Object Detection API's TF2 models do not read it"
_NO_RESIZER = Refused(reason="not supported; supported: fixed_shape_resizer, keep_aspect_ratio_resizer")
_NO_PREDICTOR = Refused(
    reason="not supported; supported: convolutional_box_predictor, weight_shared_convolutional_box_predictor"
)
_ONLY_MASK_RCNN = Refused(reason="not supported in model.faster_rcnn; supported: mask_rcnn_box_predictor")
_NO_NORM = Refused(reason="not supported; supported: batch_norm, sync_batch_norm")
_BOX_CODE = unless(4, "a box has four coordinates")
_GRAY = unless(False, "gray images are not supported")
_NO_CLIP = Refused(reason="clipping of box encodings is not supported")

# Supported feature extractors of the Object Detection API, with backbone and neck.
FEATURE_EXTRACTORS: dict[str, tuple[str, type]] = {
    "ssd_mobilenet_v1_keras": ("mobilenet_v1", tree.ExtraFeatureLayers),
    "ssd_mobilenet_v1_fpn_keras": ("mobilenet_v1", tree.Fpn),
    "ssd_mobilenet_v2_keras": ("mobilenet_v2", tree.ExtraFeatureLayers),
    "ssd_mobilenet_v2_fpn_keras": ("mobilenet_v2", tree.Fpn),
    **{f"ssd_resnet{depth}_v1_fpn_keras": (f"resnet{depth}_v1", tree.Fpn) for depth in (50, 101, 152)},
    **{f"ssd_efficientnet-b{i}_bifpn_keras": (f"efficientnet-b{i}", tree.BiFpn) for i in range(8)},
}
# Iterations and channels of a BiFPN if the message `bifpn` is omitted, by the number of the EfficientNet.
_BIFPN = ((3, 64), (4, 88), (5, 112), (6, 160), (7, 224), (7, 288), (8, 384), (8, 384))


def _backbone_and_neck(extractor: str) -> dict[str, Any]:
    if extractor not in FEATURE_EXTRACTORS:
        raise UnsupportedError(allowed_extractors(extractor, FEATURE_EXTRACTORS))
    backbone, neck = FEATURE_EXTRACTORS[extractor]
    return {"backbone": backbone, "neck": {TYPE_KEY: neck.__name__}}


def _extractor(plain: Mapping[str, Any]) -> str:
    """Return the type with this backbone and neck; for EfficientNet-Lite one with its neck.

    The format has no EfficientNet-Lite, so that the writer adds the backbone to detloom's extension.
    """
    backbone = re.sub(r"-lite\d", "-b0", plain["backbone"])
    wanted = (backbone, plain["neck"][TYPE_KEY])
    return next(name for name, (backbone, neck) in FEATURE_EXTRACTORS.items() if (backbone, neck.__name__) == wanted)


def _with_neck(neck: type, key: str, implied: Any = NOTHING) -> Any:
    """Return the rule of a field that only feature extractors with this neck have."""

    def choose(message: Message) -> Rule:
        extractor = message.scalar("type")
        if extractor in FEATURE_EXTRACTORS and FEATURE_EXTRACTORS[extractor][1] is not neck:
            return Refused(reason=f"{extractor} does not have this field")
        return Mapped(key=key, implied=implied)

    return choose


def _bifpn(message: Message) -> Rule:
    extractor = message.scalar("type")
    implied: Any = NOTHING
    if extractor in FEATURE_EXTRACTORS and FEATURE_EXTRACTORS[extractor][1] is tree.BiFpn:
        number = int(FEATURE_EXTRACTORS[extractor][0][-1])
        iterations, channels = _BIFPN[number]
        method = "sum" if number >= 6 else "fast_attention"
        implied = {"num_iterations": iterations, "num_filters": channels, "combine_method": method}
    rule: Rule = _with_neck(tree.BiFpn, "neck", implied)(message)
    return rule


def _depends_on_type(key: str, neck: type, choose: Any) -> Depends:
    return Depends(usual=at(key), when=f"with a type whose neck is not {neck.__name__}: refused", choose=choose)


def _batch_norm(plain: Mapping[str, Any], *, is_synchronized: bool = False) -> Any:
    batch_norm = plain["batch_norm"]
    return batch_norm if batch_norm and batch_norm["synchronized"] == is_synchronized else None


def _predictor_of(is_of_faster_rcnn: bool) -> Depends:
    """Return the rule of a box predictor that only Faster R-CNN has, or only the other families have."""
    other = _NO_PREDICTOR if is_of_faster_rcnn else _ONLY_MASK_RCNN

    def write(plain: Mapping[str, Any]) -> Any:
        return plain if ("fc_hyperparams" in plain) == is_of_faster_rcnn else None

    usual = Mapped(key="", write=write)

    def choose(message: Message) -> Rule:
        return usual if (IN_FASTER_RCNN in message.path) == is_of_faster_rcnn else other

    return Depends(
        usual=usual, when=f"in model.{'ssd' if is_of_faster_rcnn else 'faster_rcnn'}: refused", choose=choose
    )


_NOT_IN_FASTER_RCNN = _predictor_of(False)
_ONLY_IN_FASTER_RCNN = _predictor_of(True)

NETWORK: dict[str, Structure] = {
    # --- image resizing -----------------------------------------------------------------------------------------------
    "ImageResizer": Structure(
        choice="image_resizer_oneof",
        fields={
            **each(_NO_RESIZER, "identity_resizer", "conditional_shape_resizer", "pad_to_multiple_resizer"),
        },
    ),
    "FixedShapeResizer": Structure(fields={"convert_to_grayscale": _GRAY}),
    "KeepAspectRatioResizer": Structure(fields={"convert_to_grayscale": _GRAY}),
    # --- convolutions -------------------------------------------------------------------------------------------------
    "Hyperparams": Structure(
        makes=tree.ConvHyperparams,
        fields={
            "op": Ignored(reason=_NOT_READ),
            "regularizer": Mapped(key="regularizer", implied={}, note="an L2Regularizer with weight 0 if omitted"),
            "initializer": Mapped(key="initializer", implied={}, note="Keras' default, glorot_uniform, if omitted"),
            "batch_norm": Mapped(key="batch_norm", write=_batch_norm),
            "sync_batch_norm": Mapped(
                key="batch_norm",
                write=partial(_batch_norm, is_synchronized=True),
                adds={"synchronized": True},
                note="with batch_norm.synchronized",
            ),
            "regularize_depthwise": Ignored(reason=_NOT_READ),
            "group_norm": _NO_NORM,
        },
    ),
    "Regularizer": Structure(
        choice="regularizer_oneof",
        otherwise={TYPE_KEY: "L2Regularizer", "weight": 0.0},
    ),
    "Initializer": Structure(
        choice="initializer_oneof",
        otherwise={TYPE_KEY: "VarianceScalingInitializer", "factor": 1.0, "mode": "FAN_AVG", "uniform": True},
        fields={
            "keras_initializer_by_name": Refused(
                reason="not supported; supported: truncated_normal_initializer, random_normal_initializer, "
                "variance_scaling_initializer"
            ),
        },
    ),
    "BatchNorm": Structure(
        fields={
            "train": Ignored(reason=f"{_NOT_READ}; they read model.ssd.freeze_batchnorm"),
        },
    ),
    # --- backbone and neck --------------------------------------------------------------------------------------------
    "SsdFeatureExtractor": Structure(
        makes=tree.FeatureExtractor,
        required=("type",),
        fields={
            "type": Mapped(key="", read=_backbone_and_neck, write=_extractor, note="backbone and type of the neck"),
            "conv_hyperparams": Mapped(key="conv_hyperparams", implied={}),
            "fpn": _depends_on_type("neck", tree.Fpn, _with_neck(tree.Fpn, "neck")),
            "bifpn": _depends_on_type("neck", tree.BiFpn, _bifpn),
            "num_layers": _depends_on_type(
                "neck.num_layers", tree.ExtraFeatureLayers, _with_neck(tree.ExtraFeatureLayers, "neck.num_layers")
            ),
            "replace_preprocessor_with_placeholder": unless(False, "placeholders exist in TF1 only"),
            "spaghettinet_arch_name": unless("", "SpaghettiNet is not supported"),
        },
    ),
    "FeaturePyramidNetworks": Structure(makes=tree.Fpn),
    "BidirectionalFeaturePyramidNetworks": Structure(makes=tree.BiFpn),
    # --- heads --------------------------------------------------------------------------------------------------------
    "BoxPredictor": Structure(
        choice="box_predictor_oneof",
        fields={
            "convolutional_box_predictor": _NOT_IN_FASTER_RCNN,
            "weight_shared_convolutional_box_predictor": _NOT_IN_FASTER_RCNN,
            "mask_rcnn_box_predictor": _ONLY_IN_FASTER_RCNN,
            "rfcn_box_predictor": Refused(
                reason="R-FCN exists in TF1 only; model.faster_rcnn supports mask_rcnn_box_predictor"
            ),
        },
    ),
    "ConvolutionalBoxPredictor": Structure(
        fields={
            "conv_hyperparams": Mapped(key="conv_hyperparams", implied={}),
            "box_code_size": _BOX_CODE,
            "apply_sigmoid_to_scores": Ignored(reason=f"{_NOT_READ}; they read post_processing.score_converter"),
            "box_encodings_clip_range": _NO_CLIP,
        },
    ),
    "WeightSharedConvolutionalBoxPredictor": Structure(
        fields={
            "conv_hyperparams": Mapped(key="conv_hyperparams", implied={}),
            "box_code_size": _BOX_CODE,
            "box_encodings_clip_range": _NO_CLIP,
        },
    ),
}
