"""Settings of single-shot detectors that this version can train. Imports no TensorFlow."""

import itertools
from collections.abc import Iterator

from detloom.schemas.model.detector import FasterRcnnBoxCoder, MultiscaleAnchorGenerator, Ssd
from detloom.schemas.model.faster_rcnn import FasterRcnnFeatureExtractor
from detloom.schemas.model.network import (
    BiFpn,
    ConvHyperparams,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    FixedShapeResizer,
    Fpn,
    KeepAspectRatioResizer,
)
from detloom.schemas.model.non_max_suppression import PostProcessing
from detloom.trainer_module.boxes.anchors import num_anchors_per_location
from detloom.trainer_module.detectors.detector import Finding, check_padding
from detloom.trainer_module.layers.necks.pyramid_levels import (
    COARSEST_BACKBONE_LEVEL,
    MAX_EXTRA_LEVELS,
    padded_hw,
    pyramid_levels,
)

_MIN_BATCH_NORM_EPSILON = 1.001e-5  # the fused kernel of TensorFlow silently replaces smaller values


def check_settings(config: Ssd) -> Iterator[Finding]:
    """Yield a finding for each setting that may not be supported."""
    yield from _check_image_resizer(config)
    yield from _check_feature_extractor(config.feature_extractor)
    yield from _check_box_predictor(config)
    coder = config.box_coder  # keypoints do not reach the losses
    yield Finding(isinstance(coder, FasterRcnnBoxCoder), "model.box_coder", coder, "FasterRcnnBoxCoder")
    yield check_suppression(config.post_processing, "model.post_processing")


def _check_image_resizer(config: Ssd) -> Iterator[Finding]:
    """Check that all inputs have one size, and that the neck can upsample its maps to it."""
    path, resizer, extractor = "model.image_resizer", config.image_resizer, config.feature_extractor
    if isinstance(resizer, KeepAspectRatioResizer):
        yield check_padding(resizer)
    top = _coarsest_upsampled_level(config)
    if top is None:
        return
    fields = ("height", "width") if isinstance(resizer, FixedShapeResizer) else ("max_dimension",)
    for field in fields:
        side = getattr(resizer, field)
        (padded, _), finest = padded_hw((side, side), extractor.pad_to_multiple), pyramid_levels(extractor.neck)[0]
        sizes = [-(-padded // 2**level) for level in range(finest, top + 1)]
        halves = all(finer == 2 * coarser for finer, coarser in itertools.pairwise(sizes))
        nearest = max(round(side / 2**top), 1) * 2**top
        supported = (
            f"a side that the top-down path can double back to, such as {nearest} and all multiples of {2**top}, or "
            f"model.feature_extractor.pad_to_multiple {2**top}"
        )
        if isinstance(extractor.neck, BiFpn) and isinstance(config.anchor_generator, MultiscaleAnchorGenerator):
            supported += ", or model.anchor_generator.strides_from_feature_maps true"
        yield Finding(halves, f"{path}.{field}", side, supported)


def _coarsest_upsampled_level(config: Ssd) -> int | None:
    """Return the coarsest level whose upsampled map must match the finer one; None if maps are cropped or not used.

    A BiFPN crops its maps, but the anchors of the Object Detection API do not fit to cropped maps.
    """
    extractor, anchors = config.feature_extractor, config.anchor_generator
    match extractor.neck:
        case Fpn(max_level=level):
            return None if extractor.use_explicit_padding else min(level, COARSEST_BACKBONE_LEVEL)
        case BiFpn(max_level=level):
            fits = isinstance(anchors, MultiscaleAnchorGenerator) and anchors.strides_from_feature_maps
            return None if fits else level
        case ExtraFeatureLayers():
            return None
    raise AssertionError(f"no such neck: {extractor.neck}")


def _check_feature_extractor(extractor: FeatureExtractor) -> Iterator[Finding]:
    path = "model.feature_extractor"
    if isinstance(extractor.neck, ExtraFeatureLayers):  # the reference builds 6 levels if there are more
        num_layers = extractor.neck.num_layers
        yield Finding(num_layers <= MAX_EXTRA_LEVELS, f"{path}.neck.num_layers", num_layers, f"1 to {MAX_EXTRA_LEVELS}")
    if extractor.backbone.startswith("resnet"):  # the reference ignores these settings
        for field in ("use_depthwise", "use_explicit_padding"):
            is_set = getattr(extractor, field)
            yield Finding(not is_set, f"{path}.{field}", is_set, f"false with {extractor.backbone}")
    yield from check_backbone_hyperparams(extractor)


def _check_box_predictor(config: Ssd) -> Iterator[Finding]:
    path, head = "model.box_predictor", config.box_predictor
    is_supported = head.kernel_size > 1 or not head.use_depthwise  # the reference refuses it too
    yield Finding(is_supported, f"{path}.kernel_size", head.kernel_size, "2 or more with use_depthwise")
    yield from check_conv_hyperparams(head.conv_hyperparams, f"{path}.conv_hyperparams")
    if isinstance(head, ConvolutionalBoxPredictor):
        is_supported = head.min_depth <= head.max_depth  # the reference refuses it too
        yield Finding(is_supported, f"{path}.min_depth", head.min_depth, f"at most max_depth ({head.max_depth})")
        return
    is_supported = head.depth > 0 or head.num_layers_before_predictor == 0
    yield Finding(is_supported, f"{path}.depth", head.depth, "1 or more with num_layers_before_predictor")
    converter = head.score_converter
    yield Finding(converter == "IDENTITY", f"{path}.score_converter", converter, "'IDENTITY'")
    counts = num_anchors_per_location(config.anchor_generator)
    supported = f"equally many anchors per location on all levels with {type(head).__name__}; here {counts}"
    yield Finding(len(set(counts)) == 1, "model.anchor_generator", config.anchor_generator, supported)


def check_backbone_hyperparams(extractor: FeatureExtractor | FasterRcnnFeatureExtractor) -> Iterator[Finding]:
    path, hyperparams = "model.feature_extractor.conv_hyperparams", extractor.conv_hyperparams
    if hyperparams is None:
        return
    yield from check_conv_hyperparams(hyperparams, path)
    # The convolutions of the backbone have no bias, so that nothing would replace the batch norm.
    is_supported = hyperparams.batch_norm is not None or not extractor.override_base_feature_extractor_hyperparams
    supported = "batch norm if override_base_feature_extractor_hyperparams is true"
    yield Finding(is_supported, f"{path}.batch_norm", hyperparams.batch_norm, supported)


def check_conv_hyperparams(hyperparams: ConvHyperparams, path: str) -> Iterator[Finding]:
    if hyperparams.batch_norm is not None:
        epsilon = hyperparams.batch_norm.epsilon
        is_supported = epsilon >= _MIN_BATCH_NORM_EPSILON
        yield Finding(is_supported, f"{path}.batch_norm.epsilon", epsilon, f"{_MIN_BATCH_NORM_EPSILON} or more")


def check_suppression(post_processing: PostProcessing, path: str) -> Finding:
    """Check what the reference refuses too: several classes of a detection with class agnostic suppression."""
    nms, path = post_processing.batch_non_max_suppression, f"{path}.batch_non_max_suppression"
    is_supported = not nms.use_class_agnostic_nms or nms.max_classes_per_detection == 1
    supported = "1 with use_class_agnostic_nms"
    return Finding(is_supported, f"{path}.max_classes_per_detection", nms.max_classes_per_detection, supported)
