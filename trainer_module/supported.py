"""Which settings this version trains: the rest is refused by name. Imports no TensorFlow, so that it costs nothing."""

import itertools
from collections.abc import Iterator

from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.config import Model, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.model_config import (
    FasterRcnnBoxCoder,
    PostProcessing,
    Ssd,
)
from detloom.schemas.network_config import (
    BiFpn,
    ConvHyperparams,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    FixedShapeResizer,
    Fpn,
    KeepAspectRatioResizer,
)
from detloom.schemas.redact import redact
from detloom.trainer_module.anchors import num_anchors_per_location
from detloom.trainer_module.necks.pyramid_levels import (
    COARSEST_BACKBONE_LEVEL,
    MAX_EXTRA_LEVELS,
    padded_hw,
    pyramid_levels,
)

_MIN_BATCH_NORM_EPSILON = 1.001e-5  # what TensorFlow's fused kernel silently makes of anything smaller
_Finding = tuple[bool, str, object, str]  # is it trained, key path, what the configuration says, what is trained


def untrained_parts(config: TrainEvalConfig) -> tuple[str, ...]:
    """A sentence for each setting that is understood but not trained by this version; it begins with the key path."""
    findings = [*_in_model(config.model), *_in_reading_and_eval(config)]
    return tuple(f"{path}: got {_name(got)}, trained here: {trained}." for ok, path, got, trained in findings if not ok)


def check_trainable(config: TrainEvalConfig) -> None:
    """Raise InputError, on one line, if there are any."""
    parts = untrained_parts(config)
    if parts:
        raise InputError(f"This version cannot train the configuration. {' '.join(parts)}")


def _name(got: object) -> str:
    """As it is written in a run file; a group of settings by its class."""
    if got is None or isinstance(got, bool):
        return {None: "null", True: "true", False: "false"}[got]
    if isinstance(got, str):
        return f"'{redact(got)}'"
    return f"{got}" if isinstance(got, int | float) else type(got).__name__


def _in_model(model: Model) -> Iterator[_Finding]:
    match model:
        case Ssd():
            yield from _in_ssd(model)
        case CenterNet(image_resizer=KeepAspectRatioResizer() as resizer):
            yield _is_padded(resizer)


def _is_padded(resizer: KeepAspectRatioResizer) -> _Finding:
    path, is_padded = "model.image_resizer.pad_to_max_dimension", resizer.pad_to_max_dimension
    return is_padded, path, is_padded, "true: pictures of one size"


def _in_ssd(model: Ssd) -> Iterator[_Finding]:
    yield from _in_image_resizer(model)
    yield from _in_feature_extractor(model.feature_extractor)
    yield from _in_box_predictor(model)
    coder = model.box_coder  # the input pipeline carries no keypoints
    yield isinstance(coder, FasterRcnnBoxCoder), "model.box_coder", coder, "FasterRcnnBoxCoder"
    yield from _in_post_processing(model.post_processing)


def _in_image_resizer(model: Ssd) -> Iterator[_Finding]:
    """Whether there is one size of picture, and whether the neck can double its maps back to it."""
    path, resizer, extractor = "model.image_resizer", model.image_resizer, model.feature_extractor
    if isinstance(resizer, KeepAspectRatioResizer):
        yield _is_padded(resizer)
    top = _coarsest_doubled_level(extractor)
    if top is None:
        return
    fields = ("height", "width") if isinstance(resizer, FixedShapeResizer) else ("max_dimension",)
    for field in fields:
        side = getattr(resizer, field)
        (padded, _), finest = padded_hw((side, side), extractor.pad_to_multiple), pyramid_levels(extractor.neck)[0]
        sizes = [-(-padded // 2**level) for level in range(finest, top + 1)]
        halves = all(finer == 2 * coarser for finer, coarser in itertools.pairwise(sizes))
        nearest = max(round(side / 2**top), 1) * 2**top
        trained = (
            f"a side that the top-down path can double back to, as {nearest} and all multiples of {2**top}, or "
            f"model.feature_extractor.pad_to_multiple {2**top}"
        )
        yield halves, f"{path}.{field}", side, trained


def _coarsest_doubled_level(extractor: FeatureExtractor) -> int | None:
    """From which the top-down path doubles maps that have to fit the finer ones; None: it does not."""
    match extractor.neck:
        case Fpn(max_level=level):
            return None if extractor.use_explicit_padding else min(level, COARSEST_BACKBONE_LEVEL)
        case BiFpn(max_level=level):
            return level
        case ExtraFeatureLayers():
            return None
    raise AssertionError(f"no such neck: {extractor.neck}")


def _in_feature_extractor(extractor: FeatureExtractor) -> Iterator[_Finding]:
    path, overridden = "model.feature_extractor", extractor.override_base_feature_extractor_hyperparams
    if isinstance(extractor.neck, ExtraFeatureLayers):  # the reference makes 6 of any more
        num_layers = extractor.neck.num_layers
        yield num_layers <= MAX_EXTRA_LEVELS, f"{path}.neck.num_layers", num_layers, f"1 to {MAX_EXTRA_LEVELS}"
    if extractor.backbone.startswith("resnet"):  # the reference passes over them
        for field in ("use_depthwise", "use_explicit_padding"):
            set_here = getattr(extractor, field)
            yield not set_here, f"{path}.{field}", set_here, f"false with {extractor.backbone}"
    hyperparams = extractor.conv_hyperparams
    yield from _in_conv_hyperparams(hyperparams, f"{path}.conv_hyperparams")
    # The backbone's convolutions never have a bias, so that nothing would be left in place of batch norm.
    trained = "batch norm where override_base_feature_extractor_hyperparams is true"
    ok = hyperparams.batch_norm is not None or not overridden
    yield ok, f"{path}.conv_hyperparams.batch_norm", hyperparams.batch_norm, trained


def _in_box_predictor(model: Ssd) -> Iterator[_Finding]:
    path, head = "model.box_predictor", model.box_predictor
    ok = head.kernel_size > 1 or not head.use_depthwise  # the reference refuses it too
    yield ok, f"{path}.kernel_size", head.kernel_size, "2 or more with use_depthwise"
    yield from _in_conv_hyperparams(head.conv_hyperparams, f"{path}.conv_hyperparams")
    if isinstance(head, ConvolutionalBoxPredictor):
        ok = head.min_depth <= head.max_depth  # the reference refuses it too
        yield ok, f"{path}.min_depth", head.min_depth, f"at most max_depth ({head.max_depth})"
        return
    ok = head.depth > 0 or head.num_layers_before_predictor == 0
    yield ok, f"{path}.depth", head.depth, "1 or more with num_layers_before_predictor"
    yield head.score_converter == "IDENTITY", f"{path}.score_converter", head.score_converter, "'IDENTITY'"
    counts = num_anchors_per_location(model.anchor_generator)
    trained = f"as many anchors at each place of every level with {type(head).__name__}; here {counts}"
    yield len(set(counts)) == 1, "model.anchor_generator", model.anchor_generator, trained


def _in_conv_hyperparams(hyperparams: ConvHyperparams, path: str) -> Iterator[_Finding]:
    if hyperparams.batch_norm is not None:
        epsilon = hyperparams.batch_norm.epsilon
        ok = epsilon >= _MIN_BATCH_NORM_EPSILON
        yield ok, f"{path}.batch_norm.epsilon", epsilon, f"{_MIN_BATCH_NORM_EPSILON} or more"


def _in_post_processing(post_processing: PostProcessing) -> Iterator[_Finding]:
    path, nms = "model.post_processing.batch_non_max_suppression", post_processing.batch_non_max_suppression
    ok = not nms.use_class_agnostic_nms or nms.max_classes_per_detection == 1  # the reference refuses it too
    trained = "1 with use_class_agnostic_nms"
    yield ok, f"{path}.max_classes_per_detection", nms.max_classes_per_detection, trained


def _in_reading_and_eval(config: TrainEvalConfig) -> Iterator[_Finding]:
    ok = config.train.moving_average is not None or not config.eval.use_moving_averages
    trained = "true only with train.moving_average (set that, or this to false)"
    yield ok, "eval.use_moving_averages", config.eval.use_moving_averages, trained
    epochs = config.train_input.num_epochs
    yield epochs == 0, "train_input.num_epochs", epochs, "0, without end (train.num_steps ends the training)"
    epochs = config.eval_input.num_epochs
    yield epochs in (0, 1), "eval_input.num_epochs", epochs, "0 or 1, once in each evaluation"
