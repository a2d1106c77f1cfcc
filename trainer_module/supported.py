"""Which settings this version trains: the rest is refused by name. Imports no TensorFlow, so that it costs nothing."""

import itertools
from collections.abc import Iterator

from detloom.schemas.augmentation_config import RandomScaleCropAndPadToSquare, SsdRandomCrop
from detloom.schemas.config import Train, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.model_config import (
    MultiscaleAnchorGenerator,
    PostProcessing,
    SigmoidFocal,
    Ssd,
    WeightedL2,
    WeightedSigmoid,
    WeightedSmoothL1,
)
from detloom.schemas.network_config import (
    ConvHyperparams,
    FeatureExtractor,
    FixedShapeResizer,
    Fpn,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.schemas.redact import redact
from detloom.trainer_module.anchors import feature_hw

_COARSEST_BACKBONE_LEVEL = 5
_MIN_BATCH_NORM_EPSILON = 1.001e-5  # what TensorFlow's fused kernel silently makes of anything smaller
_Finding = tuple[bool, str, object, str]  # is it trained, key path, what the configuration says, what is trained


def untrained_parts(config: TrainEvalConfig) -> tuple[str, ...]:
    """A sentence for each setting that is understood but not trained by this version; it begins with the key path."""
    findings = [*_in_model(config.model), *_in_train(config.train), *_in_reading_and_eval(config)]
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


def _in_model(model: Ssd) -> Iterator[_Finding]:
    loss, anchors = model.loss, model.anchor_generator
    yield from _in_image_resizer(model)
    yield from _in_feature_extractor(model.feature_extractor)
    yield from _in_box_predictor(model)
    trained = "MultiscaleAnchorGenerator"
    yield isinstance(anchors, MultiscaleAnchorGenerator), "model.anchor_generator", anchors, trained
    ok = isinstance(loss.classification_loss, SigmoidFocal | WeightedSigmoid)
    yield ok, "model.loss.classification_loss", loss.classification_loss, "SigmoidFocal, WeightedSigmoid"
    ok = isinstance(loss.localization_loss, WeightedSmoothL1 | WeightedL2)
    yield ok, "model.loss.localization_loss", loss.localization_loss, "WeightedSmoothL1, WeightedL2"
    ok = loss.hard_example_miner is None
    yield ok, "model.loss.hard_example_miner", loss.hard_example_miner, "null"
    yield from _in_post_processing(model.post_processing)


def _in_image_resizer(model: Ssd) -> Iterator[_Finding]:
    path, resizer, neck = "model.image_resizer", model.image_resizer, model.feature_extractor.neck
    yield isinstance(resizer, FixedShapeResizer), path, resizer, "FixedShapeResizer"
    if not isinstance(resizer, FixedShapeResizer) or not isinstance(neck, Fpn):
        return
    top = min(neck.max_level, _COARSEST_BACKBONE_LEVEL)
    for field in ("height", "width"):
        side = getattr(resizer, field)
        sizes = [feature_hw((side, side), level)[0] for level in range(neck.min_level, top + 1)]
        halves = all(finer == 2 * coarser for finer, coarser in itertools.pairwise(sizes))
        nearest = max(round(side / 2**top), 1) * 2**top
        trained = f"a side that the top-down path can double back to, as {nearest} and all multiples of {2**top}"
        yield halves, f"{path}.{field}", side, trained
    multiple = model.feature_extractor.pad_to_multiple
    ok = resizer.height % multiple == 0 and resizer.width % multiple == 0  # nothing to pad
    yield ok, "model.feature_extractor.pad_to_multiple", multiple, "1, or what divides the picture's sides"


def _in_feature_extractor(extractor: FeatureExtractor) -> Iterator[_Finding]:
    path, overridden = "model.feature_extractor", extractor.override_base_feature_extractor_hyperparams
    yield extractor.backbone == "mobilenet_v2", f"{path}.backbone", extractor.backbone, "'mobilenet_v2'"
    yield isinstance(extractor.neck, Fpn), f"{path}.neck", extractor.neck, "Fpn"
    yield extractor.use_depthwise, f"{path}.use_depthwise", extractor.use_depthwise, "true"
    ok = not extractor.use_explicit_padding
    yield ok, f"{path}.use_explicit_padding", extractor.use_explicit_padding, "false"
    hyperparams = extractor.conv_hyperparams
    yield from _in_conv_hyperparams(hyperparams, f"{path}.conv_hyperparams")
    # The backbone's convolutions never have a bias, so that nothing would be left in place of batch norm.
    trained = "batch norm where override_base_feature_extractor_hyperparams is true"
    ok = hyperparams.batch_norm is not None or not overridden
    yield ok, f"{path}.conv_hyperparams.batch_norm", hyperparams.batch_norm, trained


def _in_box_predictor(model: Ssd) -> Iterator[_Finding]:
    path, head = "model.box_predictor", model.box_predictor
    ok = isinstance(head, WeightSharedConvolutionalBoxPredictor)
    yield ok, path, head, "WeightSharedConvolutionalBoxPredictor"
    if not isinstance(head, WeightSharedConvolutionalBoxPredictor):
        return
    yield head.use_depthwise, f"{path}.use_depthwise", head.use_depthwise, "true"
    yield head.share_prediction_tower, f"{path}.share_prediction_tower", head.share_prediction_tower, "true"
    ok = head.kernel_size > 1  # the reference refuses it too
    yield ok, f"{path}.kernel_size", head.kernel_size, "2 or more with use_depthwise"
    ok = head.depth > 0 or head.num_layers_before_predictor == 0
    yield ok, f"{path}.depth", head.depth, "1 or more with num_layers_before_predictor"
    yield head.score_converter == "IDENTITY", f"{path}.score_converter", head.score_converter, "'IDENTITY'"
    yield from _in_conv_hyperparams(head.conv_hyperparams, f"{path}.conv_hyperparams")


def _in_conv_hyperparams(hyperparams: ConvHyperparams, path: str) -> Iterator[_Finding]:
    if hyperparams.batch_norm is not None:
        epsilon = hyperparams.batch_norm.epsilon
        ok = epsilon >= _MIN_BATCH_NORM_EPSILON
        yield ok, f"{path}.batch_norm.epsilon", epsilon, f"{_MIN_BATCH_NORM_EPSILON} or more"


def _in_post_processing(post_processing: PostProcessing) -> Iterator[_Finding]:
    path, nms = "model.post_processing", post_processing.batch_non_max_suppression
    converter = post_processing.score_converter
    yield converter == "SIGMOID", f"{path}.score_converter", converter, "'SIGMOID'"
    path += ".batch_non_max_suppression"
    yield not nms.use_class_agnostic_nms, f"{path}.use_class_agnostic_nms", nms.use_class_agnostic_nms, "false"
    yield nms.soft_nms_sigma == 0, f"{path}.soft_nms_sigma", nms.soft_nms_sigma, "0"


def _in_train(train: Train) -> Iterator[_Finding]:
    for i, augmentation in enumerate(train.augmentations):
        ok = not isinstance(augmentation, SsdRandomCrop | RandomScaleCropAndPadToSquare)
        trained = "flips, RandomRotation90, RandomAdjust..., RandomCropImage"
        yield ok, f"train.augmentations[{i}]", augmentation, trained
    # Its type needs no word: without a checkpoint it says nothing.
    trained = "'', which starts from random weights (starting from a checkpoint comes next)"
    yield train.fine_tune_checkpoint == "", "train.fine_tune_checkpoint", train.fine_tune_checkpoint, trained


def _in_reading_and_eval(config: TrainEvalConfig) -> Iterator[_Finding]:
    ok = config.train.moving_average is not None or not config.eval.use_moving_averages
    trained = "true only with train.moving_average (set that, or this to false)"
    yield ok, "eval.use_moving_averages", config.eval.use_moving_averages, trained
    epochs = config.train_input.num_epochs
    yield epochs == 0, "train_input.num_epochs", epochs, "0, without end (train.num_steps ends the training)"
    epochs = config.eval_input.num_epochs
    yield epochs in (0, 1), "eval_input.num_epochs", epochs, "0 or 1, once in each evaluation"
