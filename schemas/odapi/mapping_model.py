"""Rules for the fields of a detector: anchors, targets, losses and post-processing.

They were checked against the Object Detection API's builders, `ssd_meta_arch.py` and `core/post_processing.py`.
"""

from detloom.schemas.model import losses
from detloom.schemas.odapi.rules import (
    IN_FASTER_RCNN,
    Depends,
    Ignored,
    Mapped,
    Refused,
    Rule,
    Structure,
    at,
    each,
    unless,
)
from detloom.schemas.odapi.text_format import Message

_FASTER = Ignored(reason="selects among implementations with the same result")
_FAMILIES = "supported: model.ssd (SSD, RetinaNet, EfficientDet), model.center_net, model.faster_rcnn"
_NO_ANCHORS = Refused(
    reason="not supported; supported: ssd_anchor_generator, multiscale_anchor_generator, grid_anchor_generator"
)
_NO_CODER = Refused(reason="not supported; supported: faster_rcnn_box_coder, keypoint_box_coder")
_NO_CLASSIFICATION = Refused(
    reason="not supported; supported: weighted_sigmoid, weighted_softmax, weighted_sigmoid_focal"
)
_NO_SIMILARITY = Refused(reason="not supported; supported: iou_similarity")
IN_PIXELS = "_in_pixels"  # marks the plain tree of anchors in pixels when a file is written
_ANCHORWISE = Ignored(reason="the Object Detection API does not read it")
_EXPECTED = Ignored(reason="is used only with expected_loss_weights, which is refused")


def _hard_nms(message: Message) -> Rule:
    if message.scalar("soft_nms_sigma") != 0:
        return unless(False, "contradicts soft_nms_sigma; the Object Detection API fails too")
    return Ignored(reason="with soft_nms_sigma 0, NMS is always hard")


def _normalize_coordinates(message: Message) -> Rule:
    if IN_FASTER_RCNN in message.path:
        return unless(False, "the boxes of Faster R-CNN are in pixels")
    return unless(True, "boxes are always relative to the image")


MODEL: dict[str, Structure] = {
    "DetectionModel": Structure(
        choice="model",
        fields={
            "experimental_model": Refused(reason=f"experimental models are not supported; {_FAMILIES}"),
        },
    ),
    "Ssd": Structure(
        required=("box_coder", "matcher", "similarity_calculator"),
        fields={
            "similarity_calculator": at("", "the matcher always compares the intersection over union"),
            "inplace_batchnorm_update": Ignored(reason="TF1 only: time of updating moving averages"),
            "use_confidences_as_targets": unless(False, "confidences as targets are not supported"),
            "implicit_example_weight": Ignored(reason="is used only with use_confidences_as_targets, which is refused"),
            "explicit_background_class": unless(False, "label maps with a background class are not supported"),
            "mask_head_config": Refused(reason="masks are not supported"),
            "return_raw_detections_during_predict": Ignored(reason="adds outputs, does not change detections"),
        },
    ),
    "RegionSimilarityCalculator": Structure(
        choice="region_similarity",
        fields={
            "iou_similarity": Ignored(reason="the matcher always compares the intersection over union", constant={}),
            **each(_NO_SIMILARITY, "neg_sq_dist_similarity", "ioa_similarity", "thresholded_iou_similarity"),
        },
    ),
    # --- anchors ------------------------------------------------------------------------------------------------------
    "AnchorGenerator": Structure(
        choice="anchor_generator_oneof",
        fields={
            "flexible_grid_anchor_generator": _NO_ANCHORS,
        },
    ),
    "MultiscaleAnchorGenerator": Structure(
        fields={
            "normalize_coordinates": Depends(
                usual=Mapped(key="", read=lambda _: {}, write=lambda plain: False if IN_PIXELS in plain else None),
                when="in model.ssd: refused unless true, and in model.faster_rcnn unless false: the Object Detection "
                "API's boxes are relative to the image there, and in pixels here",
                choose=_normalize_coordinates,
            ),
        },
    ),
    # --- targets ------------------------------------------------------------------------------------------------------
    "BoxCoder": Structure(
        choice="box_coder_oneof",
        fields={
            **each(_NO_CODER, "mean_stddev_box_coder", "square_box_coder"),
        },
    ),
    "Matcher": Structure(
        choice="matcher_oneof",
        fields={
            "bipartite_matcher": Refused(reason="not supported, as in the TF2 loop; supported: argmax_matcher"),
        },
    ),
    "ArgMaxMatcher": Structure(fields={"use_matmul_gather": _FASTER}),
    # --- losses -------------------------------------------------------------------------------------------------------
    "Loss": Structure(
        fields={
            "random_example_sampler": Refused(reason="random sampling of anchors is not supported"),
            "equalization_loss": Ignored(reason="the Object Detection API's SSD does not use it"),
            "expected_loss_weights": unless("NONE", "expected losses are not supported"),
            **each(_EXPECTED, "min_num_negative_samples", "desired_negative_sampling_ratio"),
        },
    ),
    "ClassificationLoss": Structure(
        choice="classification_loss",
        fields={
            **each(_NO_CLASSIFICATION, "bootstrapped_sigmoid", "weighted_logits_softmax"),
            "penalty_reduced_logistic_focal_loss": at("", "in model.center_net"),
            "weighted_dice_classification_loss": _NO_CLASSIFICATION,
        },
    ),
    "WeightedSigmoidClassificationLoss": Structure(
        makes=losses.WeightedSigmoid, fields={"anchorwise_output": _ANCHORWISE}
    ),
    "WeightedSoftmaxClassificationLoss": Structure(
        makes=losses.WeightedSoftmax,
        fields={"anchorwise_output": _ANCHORWISE},
    ),
    "SigmoidFocalClassificationLoss": Structure(
        makes=losses.SigmoidFocal,
        fields={
            "anchorwise_output": _ANCHORWISE,
            "alpha": at("alpha", "if omitted, positives and negatives have the same weight"),
        },
    ),
    "PenaltyReducedLogisticFocalLoss": Structure(
        makes=losses.PenaltyReducedFocal,
        fields={name: Mapped(key=name, implied=0.0, note="0 if omitted") for name in ("alpha", "beta")},
    ),
    "LocalizationLoss": Structure(
        choice="localization_loss",
        fields={
            "l1_localization_loss": at("", "in model.center_net"),
        },
    ),
    "WeightedL2LocalizationLoss": Structure(makes=losses.WeightedL2, fields={"anchorwise_output": _ANCHORWISE}),
    "WeightedSmoothL1LocalizationLoss": Structure(
        makes=losses.WeightedSmoothL1,
        fields={"anchorwise_output": _ANCHORWISE},
    ),
    "L1LocalizationLoss": Structure(makes=losses.WeightedL1, fields={}),
    "WeightedIOULocalizationLoss": Structure(makes=losses.WeightedIou, fields={}),
    "WeightedGIOULocalizationLoss": Structure(makes=losses.WeightedGiou, fields={}),
    # --- post-processing ----------------------------------------------------------------------------------------------
    "PostProcessing": Structure(
        fields={
            "calibration_config": Refused(reason="calibrated scores are not supported"),
        },
    ),
    "BatchNonMaxSuppression": Structure(
        fields={
            **each(_FASTER, "use_static_shapes", "use_partitioned_nms", "use_cpu_nms"),
            "use_combined_nms": unless(False, "the Object Detection API's SSD fails with it too"),
            "change_coordinate_frame": unless(True, "boxes are always relative to the image without its padding"),
            "use_hard_nms": Depends(
                usual=Ignored(reason="with soft_nms_sigma 0, NMS is always hard"),
                when="with another soft_nms_sigma: refused unless false",
                choose=_hard_nms,
            ),
        },
    ),
}
