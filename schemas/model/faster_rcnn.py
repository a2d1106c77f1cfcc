"""Faster R-CNN (arXiv:1506.01497): a first stage proposes regions, a second stage classifies and refines them.

Names and defaults are those of the Object Detection API's `pipeline.config`, as in `detector.py`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import NotNegative, PositiveInt, Ranged, Share, check
from detloom.schemas.model.detector import GridAnchorGenerator, MultiscaleAnchorGenerator
from detloom.schemas.model.export_and_quantization import Export, check_onnx_resizer, refuse_export
from detloom.schemas.model.losses import (
    ClassificationLoss,
    HardExampleMiner,
    PenaltyReducedFocal,
    WeightedSoftmax,
)
from detloom.schemas.model.network import ConvHyperparams, Fpn, ImageResizer, MaskRcnnBoxPredictor, Neck, check_channels
from detloom.schemas.model.non_max_suppression import PostProcessing

_MAX_PROPOSALS = 10_000  # per image; published detectors have at most 2000


@dataclass(frozen=True, kw_only=True)
class FasterRcnnFeatureExtractor:
    """A ResNet, with or without a feature pyramid, or an Inception-ResNet V2 without one.

    Without a pyramid, the first stage sees the features of stride 16, and the last part of the backbone is applied to
    each cropped region. With a pyramid, two fully connected layers are applied to each cropped region.
    """

    backbone: Literal["resnet50_v1", "resnet101_v1", "resnet152_v1", "inception_resnet_v2"]
    """Classification network without its classifier."""
    neck: Neck | None = None
    """Feature pyramid (`Fpn`); null has none."""
    conv_hyperparams: ConvHyperparams | None = None
    """Settings of the pyramid's convolutions, and of the backbone's with
    `override_base_feature_extractor_hyperparams`; required with a pyramid, null without."""
    batch_norm_trainable: bool = False
    """Normalize with the statistics of the batch in training and update the moving ones; false uses the restored
    statistics."""
    override_base_feature_extractor_hyperparams: bool = False
    """Use `conv_hyperparams` for the backbone too."""

    @property
    def depth_multiplier(self) -> float:
        """Factor of the backbone's channels."""
        return 1.0

    def __post_init__(self) -> None:
        neck, has_hyperparams = self.neck, self.conv_hyperparams is not None
        check(neck is None or isinstance(neck, Fpn), "neck", type(neck).__name__, "null or Fpn")
        has_levels = self.backbone != "inception_resnet_v2"
        check(neck is None or has_levels, "neck", type(neck).__name__, "null with inception_resnet_v2", "backbone")
        shown, allowed = ("set", "null without a neck") if has_hyperparams else ("null", "a value with a neck")
        check(has_hyperparams == (neck is not None), "conv_hyperparams", shown, allowed, "neck")
        overridden = self.override_base_feature_extractor_hyperparams
        allowed = "false without a neck"
        check(
            neck is not None or not overridden, "override_base_feature_extractor_hyperparams", "true", allowed, "neck"
        )


@dataclass(frozen=True, kw_only=True)
class FasterRcnn(Ranged):
    """Detectors with two stages."""

    image_resizer: ImageResizer
    """Resizing of images to the network's input."""
    feature_extractor: FasterRcnnFeatureExtractor
    """Backbone, with or without a feature pyramid."""
    first_stage_anchor_generator: GridAnchorGenerator | MultiscaleAnchorGenerator
    """Reference boxes of the first stage: a grid without a pyramid, `MultiscaleAnchorGenerator` with one, whose grids
    start at half a stride."""
    first_stage_box_predictor_conv_hyperparams: ConvHyperparams
    """Settings of the first stage's convolutions; its activation is always ReLU6."""
    second_stage_box_predictor: MaskRcnnBoxPredictor
    """Heads of the second stage."""
    initial_crop_size: PositiveInt
    """Side, in cells, to which the features of each proposal are resampled."""
    maxpool_kernel_size: PositiveInt
    """Kernel size of the max pooling after resampling."""
    maxpool_stride: PositiveInt
    """Stride of the max pooling after resampling."""
    num_classes: PositiveInt | None = None
    """Number of classes; null uses the number in the label map. A number that differs from the label map is
    rejected."""
    number_of_stages: int = 2
    """1 has no second stage: the proposals are the detections, which needs a label map with one class. 3 predicts a
    mask of each detection (Mask R-CNN)."""
    first_stage_atrous_rate: PositiveInt = 1
    """Dilation of the first stage's convolution."""
    first_stage_box_predictor_kernel_size: PositiveInt = 3
    """Kernel size of the first stage's convolution."""
    first_stage_box_predictor_depth: int = 512
    """Number of channels of the first stage's convolution."""
    first_stage_minibatch_size: PositiveInt = 256
    """Number of anchors per image that count in the losses of the first stage; they are drawn at random."""
    first_stage_positive_balance_fraction: Share = 0.5
    """Largest share of foreground anchors among them."""
    first_stage_nms_score_threshold: Annotated[float, "0 up to 1"] = 0.0
    """Proposals with a lower score are dropped before suppression."""
    first_stage_nms_iou_threshold: Share = 0.7
    """IoU at which the proposal with the lower score is suppressed."""
    first_stage_max_proposals: int = 300
    """Largest number of proposals per image."""
    first_stage_localization_loss_weight: NotNegative = 1.0
    """Factor of the first stage's localization loss."""
    first_stage_objectness_loss_weight: NotNegative = 1.0
    """Factor of the first stage's classification loss."""
    second_stage_batch_size: PositiveInt = 64
    """Number of proposals per image that train the second stage; they are drawn at random."""
    second_stage_balance_fraction: Share = 0.25
    """Largest share of foreground proposals among them."""
    second_stage_post_processing: PostProcessing = PostProcessing()
    """Conversion of the second stage's outputs to detections."""
    second_stage_localization_loss_weight: NotNegative = 1.0
    """Factor of the second stage's localization loss."""
    second_stage_classification_loss_weight: NotNegative = 1.0
    """Factor of the second stage's classification loss."""
    second_stage_mask_prediction_loss_weight: NotNegative = 1.0
    """Factor of the loss of the masks."""
    second_stage_classification_loss: ClassificationLoss = WeightedSoftmax()
    """Loss of the class outputs, which have a channel for background."""
    hard_example_miner: HardExampleMiner | None = None
    """Selection of proposals with a high loss; all proposals then pass the second stage in training. null draws
    `second_stage_batch_size` proposals."""
    clip_anchors_to_image: bool = False
    """Clip anchors to the image in training; false leaves out anchors that are partly outside. Inference always
    clips."""

    @property
    def max_detections(self) -> int:
        """Maximum number of detections per image."""
        if self.number_of_stages == 1:
            return self.first_stage_max_proposals
        return self.second_stage_post_processing.batch_non_max_suppression.max_total_detections

    @property
    def add_background_class(self) -> bool:
        """True: the class outputs have a channel for background."""
        return True

    def check_export(self, export: Export) -> None:
        """Raise FieldError for formats to which the detector cannot be converted."""
        check_onnx_resizer(export, self.image_resizer.resize_method)
        if export.tflite:
            refuse_export("tflite", list(export.tflite), "Faster R-CNN has no TensorFlow Lite form; use the SavedModel")
        if export.onnx and export.onnx_outputs == "raw":
            refuse_export("onnx_outputs", "raw", "Faster R-CNN has no raw outputs; use detections")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_stages()
        check_channels(self, "first_stage_box_predictor_depth", at_least=1)
        most = self.first_stage_max_proposals
        check(1 <= most <= _MAX_PROPOSALS, "first_stage_max_proposals", most, f"1 to {_MAX_PROPOSALS}")
        if self.hard_example_miner is None:  # as in the reference
            got, allowed = self.second_stage_batch_size, f"at most first_stage_max_proposals ({most})"
            check(got <= most, "second_stage_batch_size", got, allowed, "first_stage_max_proposals")
        kernel, crop = self.maxpool_kernel_size, self.initial_crop_size
        check(kernel <= crop, "maxpool_kernel_size", kernel, f"at most initial_crop_size ({crop})", "initial_crop_size")
        loss = self.second_stage_classification_loss
        of_center_net = isinstance(loss, PenaltyReducedFocal)
        allowed = "another loss; this one is CenterNet's"
        check(not of_center_net, "second_stage_classification_loss", type(loss).__name__, allowed)
        self._check_anchors()

    def _check_stages(self) -> None:
        stages, field = self.number_of_stages, "second_stage_box_predictor.predict_instance_masks"
        check(stages in (1, 2, 3), "number_of_stages", stages, "1, 2 or 3")
        has_masks = self.second_stage_box_predictor.predict_instance_masks
        allowed = "true with 3 stages, else false"
        check(has_masks == (stages == 3), field, str(has_masks).lower(), allowed, "number_of_stages")
        neck = self.feature_extractor.neck
        allowed = "null with 3 stages: a mask needs more than one cell of features"
        check(neck is None or stages < 3, "feature_extractor.neck", type(neck).__name__, allowed, "number_of_stages")

    def _check_anchors(self) -> None:
        neck, anchors, field = (
            self.feature_extractor.neck,
            self.first_stage_anchor_generator,
            "first_stage_anchor_generator",
        )
        got, wanted = type(anchors), GridAnchorGenerator if neck is None else MultiscaleAnchorGenerator
        suffix = "without a neck" if neck is None else "with a neck"
        check(got is wanted, field, got.__name__, f"{wanted.__name__} {suffix}", "feature_extractor.neck")
        if isinstance(anchors, MultiscaleAnchorGenerator):
            assert isinstance(neck, Fpn)
            for level in ("min_level", "max_level"):
                side, of_neck = getattr(anchors, level), getattr(neck, level)
                check(side == of_neck, f"{field}.{level}", side, f"{of_neck}, as the neck", "feature_extractor.neck")
            allowed = "false: grids start at half a stride, as in the Object Detection API"
            check(not anchors.strides_from_feature_maps, f"{field}.strides_from_feature_maps", "true", allowed)
