"""Rules for the fields of a detector: anchors, targets, losses and post-processing.

They were checked against the Object Detection API's builders, `ssd_meta_arch.py` and `core/post_processing.py`.
"""

from detloom.schemas.model import detector as tree
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
    same,
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
            "ssd": at(""),
            "faster_rcnn": at(""),
            "center_net": at(""),
            "experimental_model": Refused(reason=f"experimental models are not supported; {_FAMILIES}"),
        },
    ),
    "Ssd": Structure(
        makes=tree.Ssd,
        required=("box_coder", "matcher", "similarity_calculator"),
        fields={
            **same("num_classes", "image_resizer", "feature_extractor", "box_coder", "matcher"),
            **same("box_predictor", "anchor_generator", "post_processing", "loss"),
            **same("normalize_loss_by_num_matches", "normalize_loc_loss_by_codesize"),
            **same("add_background_class", "encode_background_as_zeros", "freeze_batchnorm"),
            "similarity_calculator": at("", "the matcher always compares the intersection over union"),
            "negative_class_weight": at("negative_class_weight"),
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
            "ssd_anchor_generator": at(""),
            "multiscale_anchor_generator": at(""),
            "grid_anchor_generator": at(""),
            "flexible_grid_anchor_generator": _NO_ANCHORS,
        },
    ),
    "MultiscaleAnchorGenerator": Structure(
        makes=tree.MultiscaleAnchorGenerator,
        fields={
            **same("min_level", "max_level", "anchor_scale", "aspect_ratios", "scales_per_octave"),
            "normalize_coordinates": Depends(
                usual=Mapped(key="", read=lambda _: {}, write=lambda plain: False if IN_PIXELS in plain else None),
                when="in model.ssd: refused unless true, and in model.faster_rcnn unless false: the Object Detection "
                "API's boxes are relative to the image there, and in pixels here",
                choose=_normalize_coordinates,
            ),
        },
    ),
    "SsdAnchorGenerator": Structure(
        makes=tree.SsdAnchorGenerator,
        fields=same(
            "num_layers",
            "min_scale",
            "max_scale",
            "aspect_ratios",
            "reduce_boxes_in_lowest_layer",
            "base_anchor_height",
            "base_anchor_width",
            "height_stride",
            "width_stride",
            "height_offset",
            "width_offset",
            "scales",
            "interpolated_scale_aspect_ratio",
        ),
    ),
    "GridAnchorGenerator": Structure(
        makes=tree.GridAnchorGenerator,
        fields={
            **same("scales", "aspect_ratios", "height", "width"),
            **same("height_stride", "width_stride", "height_offset", "width_offset"),
        },
    ),
    # --- targets ------------------------------------------------------------------------------------------------------
    "BoxCoder": Structure(
        choice="box_coder_oneof",
        fields={
            "faster_rcnn_box_coder": at(""),
            "keypoint_box_coder": at(""),
            **each(_NO_CODER, "mean_stddev_box_coder", "square_box_coder"),
        },
    ),
    "FasterRcnnBoxCoder": Structure(
        makes=tree.FasterRcnnBoxCoder, fields=same("y_scale", "x_scale", "height_scale", "width_scale")
    ),
    "KeypointBoxCoder": Structure(
        makes=tree.KeypointBoxCoder,
        fields=same("num_keypoints", "y_scale", "x_scale", "height_scale", "width_scale"),
    ),
    "Matcher": Structure(
        choice="matcher_oneof",
        fields={
            "argmax_matcher": at(""),
            "bipartite_matcher": Refused(reason="not supported, as in the TF2 loop; supported: argmax_matcher"),
        },
    ),
    "ArgMaxMatcher": Structure(
        makes=tree.ArgMaxMatcher,
        fields={
            **same("matched_threshold", "unmatched_threshold", "ignore_thresholds"),
            **same("negatives_lower_than_unmatched", "force_match_for_each_row"),
            "use_matmul_gather": _FASTER,
        },
    ),
    # --- losses -------------------------------------------------------------------------------------------------------
    "Loss": Structure(
        makes=losses.Loss,
        fields={
            **same("localization_loss", "classification_loss", "hard_example_miner"),
            **same("classification_weight", "localization_weight"),
            "random_example_sampler": Refused(reason="random sampling of anchors is not supported"),
            "equalization_loss": Ignored(reason="the Object Detection API's SSD does not use it"),
            "expected_loss_weights": unless("NONE", "expected losses are not supported"),
            **each(_EXPECTED, "min_num_negative_samples", "desired_negative_sampling_ratio"),
        },
    ),
    "ClassificationLoss": Structure(
        choice="classification_loss",
        fields={
            "weighted_sigmoid": at(""),
            "weighted_softmax": at(""),
            "weighted_sigmoid_focal": at(""),
            **each(_NO_CLASSIFICATION, "bootstrapped_sigmoid", "weighted_logits_softmax"),
            "penalty_reduced_logistic_focal_loss": at("", "in model.center_net"),
            "weighted_dice_classification_loss": _NO_CLASSIFICATION,
        },
    ),
    "WeightedSigmoidClassificationLoss": Structure(
        makes=losses.WeightedSigmoid, fields={"anchorwise_output": _ANCHORWISE}
    ),
    "WeightedSoftmaxClassificationLoss": Structure(
        makes=losses.WeightedSoftmax, fields={"anchorwise_output": _ANCHORWISE, **same("logit_scale")}
    ),
    "SigmoidFocalClassificationLoss": Structure(
        makes=losses.SigmoidFocal,
        fields={
            "anchorwise_output": _ANCHORWISE,
            "gamma": at("gamma"),
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
            **each(at(""), "weighted_l2", "weighted_smooth_l1", "weighted_iou", "weighted_giou"),
            "l1_localization_loss": at("", "in model.center_net"),
        },
    ),
    "WeightedL2LocalizationLoss": Structure(makes=losses.WeightedL2, fields={"anchorwise_output": _ANCHORWISE}),
    "WeightedSmoothL1LocalizationLoss": Structure(
        makes=losses.WeightedSmoothL1, fields={"anchorwise_output": _ANCHORWISE, **same("delta")}
    ),
    "L1LocalizationLoss": Structure(makes=losses.WeightedL1, fields={}),
    "WeightedIOULocalizationLoss": Structure(makes=losses.WeightedIou, fields={}),
    "WeightedGIOULocalizationLoss": Structure(makes=losses.WeightedGiou, fields={}),
    "HardExampleMiner": Structure(
        makes=losses.HardExampleMiner,
        fields=same(
            "num_hard_examples", "iou_threshold", "loss_type", "max_negatives_per_positive", "min_negatives_per_image"
        ),
    ),
    # --- post-processing ----------------------------------------------------------------------------------------------
    "PostProcessing": Structure(
        makes=tree.PostProcessing,
        fields={
            **same("batch_non_max_suppression", "score_converter", "logit_scale"),
            "calibration_config": Refused(reason="calibrated scores are not supported"),
        },
    ),
    "BatchNonMaxSuppression": Structure(
        makes=tree.BatchNonMaxSuppression,
        fields={
            **same("score_threshold", "iou_threshold", "max_detections_per_class", "max_total_detections"),
            **same("use_class_agnostic_nms", "max_classes_per_detection", "soft_nms_sigma"),
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
