"""Round trip of configurations of every kind: read(write(c)) == c."""

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.crop_augmentations import SsdRandomCrop, SsdRandomCropOperation
from detloom.schemas.model.detector import GridAnchorGenerator, MultiscaleAnchorGenerator
from detloom.schemas.model.losses import (
    PenaltyReducedFocal,
    SigmoidFocal,
    WeightedL1,
    WeightedSigmoid,
    WeightedSmoothL1,
)
from detloom.schemas.model.network import BiFpn, ExtraFeatureLayers, Fpn
from detloom.schemas.model.optimizers import (
    AdamWOptimizer,
    ClipEachThenGlobalNorm,
    ManualStepLearningRate,
    MovingAverage,
    PolynomialLearningRate,
)
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, parse_pipeline_config, read_pipeline_config
from detloom.schemas.odapi.rules import item_type
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import dataclass_members, from_dict, type_hints

CONFIGS = Path(__file__).parents[1] / "configs"
SMALL_FILES = [CONFIGS / "fpnlite.config", CONFIGS / "efficientdet.config"]

# --- random configurations --------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
INTS = {  # by field name; others are 1 to 1000
    "seed": st.integers(0, 2**32 - 1),
    "decay_steps": st.integers(1, 2**34),  # beyond the range of the format's numbers
    "num_epochs": st.integers(0, 2**34),
    **dict.fromkeys(("height", "width", "min_dimension", "max_dimension"), st.integers(32, 8192)),
    **dict.fromkeys(("height_stride", "width_stride", "height_offset", "width_offset"), st.integers(0, 99)),
    "scales_per_octave": st.integers(1, 8),
    **dict.fromkeys(("mask_height", "mask_width"), st.integers(1, 512)),
    **dict.fromkeys(("num_layers_before_predictor", "num_iterations", "num_layers"), st.integers(1, 32)),
}
FLOATS = {  # others are shares between 0 and 1
    **dict.fromkeys(("mean", "class_prediction_bias_init"), st.floats(-1e6, 1e6)),
    **dict.fromkeys(("weight", "norm", "factor", "y_scale", "anchor_scale", "delta"), st.floats(1e-30, 1e38)),
    "depth_multiplier": st.floats(0.1, 2),
    "dropout_keep_probability": st.floats(0.001, 1),
    "max_delta": st.floats(0, 0.5),
    "per_channel_pad_value": st.floats(0, 255),
}
SHARES = st.floats(1e-6, 0.999)
PATTERNS = TEXT.filter(bool).map(re.escape)
TEXTS = {  # others are any text
    **dict.fromkeys(("fine_tune_include", "fine_tune_exclude"), PATTERNS),
    **dict.fromkeys(("update_trainable_variables", "freeze_variables"), PATTERNS),
    "name": TEXT.filter(bool),
    **dict.fromkeys(("metric", "best_metric"), st.sampled_from((*METRIC_NAMES, "loss", "AP/cat"))),
}
PAIRS = (  # the first is at most the second
    ("min_dimension", "max_dimension"),
    ("min_scale", "max_scale"),
    ("min_scale_ratio", "max_scale_ratio"),
    ("scale_min", "scale_max"),
    ("min_delta", "max_delta"),
    ("min_area", "max_area"),
    ("min_aspect_ratio", "max_aspect_ratio"),
    ("unmatched_threshold", "matched_threshold"),
    ("warmup_learning_rate", "learning_rate_base"),
    ("warmup_steps", "total_steps"),
    ("min_period", "max_period"),
    ("min_center", "max_center"),
    ("minval", "maxval"),
    ("min_gaussian_stddev", "max_gaussian_stddev"),
    ("max_detections_per_class", "max_total_detections"),
)


@functools.cache
def made(cls: type) -> st.SearchStrategy[Any]:
    """Draw a dataclass with values in all its fields."""
    strategies = {field.name: value_of(field.name, type_hints(cls)[field.name]) for field in dataclasses.fields(cls)}
    return st.fixed_dictionaries(strategies).map(lambda values: build(cls, dict(values)))


def build(cls: type, values: dict[str, Any]) -> Any:
    for low, high in PAIRS:
        if low in values and high in values:
            values[low], values[high] = sorted((values[low], values[high]))
    if cls.__name__ in FIXES:
        values.update(FIXES[cls.__name__](values))
    return cls(**values)


def value_of(name: str, annotation: Any) -> st.SearchStrategy[Any]:
    members = dataclass_members(annotation)
    if members:
        found = st.one_of([made(member) for member in members])
        return st.one_of(st.none(), found) if type(None) in typing.get_args(annotation) else found
    if typing.get_origin(annotation) is tuple:
        return st.lists(value_of(name, item_type(annotation)), min_size=1, max_size=3).map(tuple)
    if typing.get_origin(annotation) is typing.Literal:
        return st.sampled_from(typing.get_args(annotation))
    if type(None) in typing.get_args(annotation):
        return st.one_of(st.none(), value_of(name, typing.get_args(annotation)[0]))
    if annotation is float:
        return FLOATS.get(name, SHARES)
    return {bool: st.booleans(), int: INTS.get(name, st.integers(1, 1000)), str: TEXTS.get(name, TEXT)}[annotation]


def fix_anchors(values: dict[str, Any]) -> dict[str, Any]:
    """Give lists one number per layer, and set both or none of a pair."""
    layers = values["num_layers"] = values["num_layers"] % 10 + 1
    lists = {name: (values[name] * layers)[:layers] for name in ("scales", "height_stride", "width_stride")}
    return {**values, **lists, "height_offset": (), "width_offset": ()}


def fix_eval(values: dict[str, Any]) -> dict[str, Any]:
    return {"keypoint_sigmas": tuple({each.name: each for each in values["keypoint_sigmas"]}.values())}


def fix_keypoints(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "task_name": "pose",
        "keypoint_class_name": "cat",
        "keypoint_label_to_std": tuple({each.name: each for each in values["keypoint_label_to_std"]}.values()),
        "offset_peak_radius": values["offset_peak_radius"] % 17,
    }


def fix_schedule(values: dict[str, Any]) -> dict[str, Any]:
    steps = sorted({jump.step: jump for jump in values["schedule"]}.items())
    return {"schedule": tuple(jump for _, jump in steps)}


def fix_extractor(values: dict[str, Any]) -> dict[str, Any]:
    """Choose a backbone for the neck."""
    neck, plain = values["neck"], values["backbone"]
    if isinstance(neck, BiFpn):
        only = {"depth_multiplier": 1.0, "use_explicit_padding": False, "use_depthwise": False}
        backbone = plain if plain.startswith("efficientnet") else "efficientnet-b3"
        return {**only, "backbone": backbone, "override_base_feature_extractor_hyperparams": False}
    kinds = ("mobilenet",) if isinstance(neck, ExtraFeatureLayers) else ("mobilenet", "resnet")
    return {"backbone": plain if plain.startswith(kinds) else "mobilenet_v1"}


def fix_model(values: dict[str, Any]) -> dict[str, Any]:
    """Choose anchors for the neck's levels."""
    extractor, anchors = values["feature_extractor"], values["anchor_generator"]
    neck = extractor.neck
    if isinstance(neck, Fpn) and isinstance(anchors, GridAnchorGenerator):
        one_level = dataclasses.replace(neck, max_level=neck.min_level)
        return {"feature_extractor": dataclasses.replace(extractor, neck=one_level)}
    if isinstance(neck, Fpn | BiFpn) and hasattr(anchors, "min_level"):
        return {"anchor_generator": dataclasses.replace(anchors, min_level=neck.min_level, max_level=neck.max_level)}
    layers = neck.num_layers if isinstance(neck, ExtraFeatureLayers) else neck.max_level - neck.min_level + 1
    ssd = next(each for each in dataclass_members(type_hints(TrainEvalConfig)["model"]))
    kind = next(each for each in dataclass_members(type_hints(ssd)["anchor_generator"]) if "Ssd" in each.__name__)
    return {"anchor_generator": kind(aspect_ratios=anchors.aspect_ratios, num_layers=layers)}


PADDED_SIZE = {"min_padded_size_ratio": 2, "max_padded_size_ratio": 2}


def fix_lists(values: dict[str, Any], **lengths: int) -> dict[str, Any]:
    """Give lists the required lengths."""
    return {name: (values[name] * length)[:length] for name, length in lengths.items()}


def fix_loss(values: dict[str, Any]) -> dict[str, Any]:
    """Replace CenterNet's losses, and remove the miner if there is a focal loss."""
    if isinstance(values["localization_loss"], WeightedL1):
        values["localization_loss"] = WeightedSmoothL1()
    if isinstance(values["classification_loss"], PenaltyReducedFocal):
        values["classification_loss"] = SigmoidFocal()
    return {"hard_example_miner": None} if isinstance(values["classification_loss"], SigmoidFocal) else {}


def fix_center_net(values: dict[str, Any]) -> dict[str, Any]:
    """Round sides up to multiples of 128; keypoints exclude masks."""
    resizer = values["image_resizer"]
    names = [name for name in ("height", "width", "max_dimension") if hasattr(resizer, name)]
    sides = {name: -(-getattr(resizer, name) // 128) * 128 for name in names}
    masks = None if values["keypoint_estimation_task"] is not None else values["deepmac_mask_estimation"]
    return {"image_resizer": dataclasses.replace(resizer, **sides), "deepmac_mask_estimation": masks}


def fix_center_net_extractor(values: dict[str, Any]) -> dict[str, Any]:
    only = {"depth_multiplier": 1.0, "use_separable_conv": False, "upsampling_interpolation": "nearest"}
    lists = {name: (values[name] * 3)[:3] for name in ("channel_means", "channel_stds")}
    return lists | ({} if values["backbone"] == "mobilenet_v2" else only)


def fix_faster_rcnn_extractor(values: dict[str, Any]) -> dict[str, Any]:
    """Keep a feature pyramid, and remove what only it has without one."""
    neck, hyperparams = values["neck"], values["conv_hyperparams"]
    if isinstance(neck, Fpn) and hyperparams is not None and values["backbone"] != "inception_resnet_v2":
        return {}
    return {"neck": None, "conv_hyperparams": None, "override_base_feature_extractor_hyperparams": False}


def fix_box_predictor(values: dict[str, Any]) -> dict[str, Any]:
    return {"predict_instance_masks": values["predict_instance_masks"] and values["conv_hyperparams"] is not None}


def fix_faster_rcnn(values: dict[str, Any]) -> dict[str, Any]:
    """Choose anchors for the neck, and limits that fit together; a pyramid has no masks."""
    extractor, predictor = values["feature_extractor"], values["second_stage_box_predictor"]
    if predictor.predict_instance_masks:
        plain = fix_faster_rcnn_extractor({"neck": None, "conv_hyperparams": None})
        values["feature_extractor"] = extractor = dataclasses.replace(extractor, **plain)
    neck, ratios = extractor.neck, (0.5, 2.0)
    anchors: Any = GridAnchorGenerator(scales=ratios, aspect_ratios=ratios)
    if neck is not None:
        anchors = MultiscaleAnchorGenerator(aspect_ratios=ratios, min_level=neck.min_level, max_level=neck.max_level)
    loss = values["second_stage_classification_loss"]
    return {
        "first_stage_anchor_generator": anchors,
        "number_of_stages": 3 if predictor.predict_instance_masks else values["number_of_stages"] % 2 + 1,
        "second_stage_batch_size": min(values["second_stage_batch_size"], values["first_stage_max_proposals"]),
        "maxpool_kernel_size": min(values["maxpool_kernel_size"], values["initial_crop_size"]),
        "second_stage_classification_loss": SigmoidFocal() if isinstance(loss, PenaltyReducedFocal) else loss,
    }


def fix_deepmac(values: dict[str, Any]) -> dict[str, Any]:
    return {"mask_size": 32 * (values["mask_size"] % 8 + 1), "classification_loss": WeightedSigmoid()}


FIXES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Train": lambda values: {
        "gradient_accumulation_steps": math.gcd(values["gradient_accumulation_steps"], values["batch_size"])
    },
    "Eval": fix_eval,
    "SsdAnchorGenerator": fix_anchors,
    "GridAnchorGenerator": lambda values: {name: values[name] + 1 for name in ("height_stride", "width_stride")},
    "MultiscaleAnchorGenerator": lambda values: {"min_level": 3, "max_level": 7},
    "ExtraFeatureLayers": lambda values: {"num_layers": values["num_layers"] % 10 + 1},
    "Fpn": lambda values: {"min_level": 2 + values["min_level"] % 4, "max_level": 5 + values["max_level"] % 5},
    "BiFpn": lambda values: {"min_level": 2 + values["min_level"] % 4, "max_level": 6 + values["max_level"] % 4},
    "KeepAspectRatioResizer": lambda values: {"per_channel_pad_value": (values["per_channel_pad_value"] * 3)[:3]},
    "ArgMaxMatcher": lambda values: {"negatives_lower_than_unmatched": True},
    "Loss": fix_loss,
    "CenterNet": fix_center_net,
    "DeepMac": fix_deepmac,
    "FasterRcnn": fix_faster_rcnn,
    "MaskRcnnBoxPredictor": fix_box_predictor,
    "FasterRcnnFeatureExtractor": fix_faster_rcnn_extractor,
    "CenterNetFeatureExtractor": fix_center_net_extractor,
    "ObjectDetection": lambda values: {"localization_loss": WeightedL1()},
    "KeypointLoss": lambda values: {
        "classification_loss": PenaltyReducedFocal(beta=3.0),
        "localization_loss": WeightedL1(),
    },
    "KeypointEstimation": fix_keypoints,
    "ObjectCenterParams": lambda values: {
        "classification_loss": PenaltyReducedFocal(alpha=values["min_box_overlap_iou"])
    },
    "PredictionHeadParams": lambda values: {"kernel_sizes": (values["kernel_sizes"] * 3)[: len(values["num_filters"])]},
    **dict.fromkeys(
        ("RandomHorizontalFlip", "RandomVerticalFlip"),
        lambda values: {"keypoint_flip_permutation": tuple(range(len(values["keypoint_flip_permutation"])))[::-1]},
    ),
    "RandomRotation90": lambda values: {
        "keypoint_rot_permutation": tuple(range(len(values["keypoint_rot_permutation"])))[::-1]
    },
    **dict.fromkeys(("RandomAbsolutePadImage", "RandomPadImage"), lambda values: fix_lists(values, pad_color=3)),
    "RandomCropPadImage": lambda values: fix_lists(values, **PADDED_SIZE, pad_color=3),
    **dict.fromkeys(
        ("SsdRandomCropPadOperation", "SsdRandomCropPadFixedAspectRatio"),
        lambda values: fix_lists(values, **PADDED_SIZE),
    ),
    "RandomJpegQuality": lambda values: {
        "min_jpeg_quality": values["min_jpeg_quality"] % 50,
        "max_jpeg_quality": 50 + values["max_jpeg_quality"] % 50,
    },
    "RandomPatchGaussian": lambda values: {"max_patch_size": values["min_patch_size"] + values["max_patch_size"]},
    "RandAugment": lambda values: {"magnitude": values["magnitude"] % 31},
    "RandomDownscaleToTargetPixels": lambda values: {
        "max_target_pixels": values["min_target_pixels"] + values["max_target_pixels"]
    },
    "ManualStepLearningRate": fix_schedule,
    "CosineDecayLearningRate": lambda values: {
        "total_steps": values["total_steps"] + values["warmup_steps"] + values["hold_base_rate_steps"]
    },
    **dict.fromkeys(
        ("EfficientDetCosineLearningRate", "PolynomialLearningRate"),
        lambda values: {"total_steps": values["total_steps"] + 1},
    ),
    "EfficientDetStepwiseLearningRate": lambda values: {
        "first_drop_step": values["warmup_steps"] + values["first_drop_step"],
        "second_drop_step": values["warmup_steps"] + values["first_drop_step"] + values["second_drop_step"],
    },
    "FeatureExtractor": fix_extractor,
    "Ssd": fix_model,
}


def read_back(config: TrainEvalConfig) -> TrainEvalConfig:
    report = parse_pipeline_config(format_pipeline_config(config), "F")
    assert report.refused == ()
    return from_dict(TrainEvalConfig, report.located.data, locate=report.located.locate)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(made(TrainEvalConfig))
def test_random_configurations_round_trip(config: TrainEvalConfig):
    assert read_back(config) == config


@pytest.mark.nightly
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(made(TrainEvalConfig))
def test_many_random_configurations_round_trip(config: TrainEvalConfig):
    assert read_back(config) == config


# --- single cases -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=SMALL_FILES, ids=lambda path: path.stem)
def config(request: pytest.FixtureRequest) -> TrainEvalConfig:
    return read_pipeline_config(request.param)


def train(config: TrainEvalConfig, **changes: Any) -> TrainEvalConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def test_configuration_of_the_format_needs_no_extension(config):
    text = format_pipeline_config(config)
    assert "detloom" not in text
    assert read_back(config) == config


def test_writing_is_stable(config):
    text = format_pipeline_config(config)
    assert format_pipeline_config(read_back(config)) == text


def test_settings_without_a_field_are_written_to_the_extension(config):
    changed = train(config, seed=7, moving_average=MovingAverage(decay=0.5, dynamic=False))
    text = format_pipeline_config(changed)
    *_, extension = text.partition("[detloom.overrides] ")
    assert extension == '{\n  set: "train.moving_average.dynamic=false"\n  set: "train.seed=7"\n}\n'
    assert "moving_average_decay: 0.5" in text
    assert read_back(changed) == changed


def test_a_backbone_without_a_type_is_written_to_the_extension():
    config = find_preset("efficientdet_lite3").config
    text = format_pipeline_config(config)
    assert 'set: "model.feature_extractor.backbone=\\"efficientnet-lite3\\""' in text
    assert read_back(config) == config


def test_optimizer_without_a_field_is_written_to_the_extension(config):
    rate = PolynomialLearningRate(total_steps=10)
    clipping = ClipEachThenGlobalNorm(norm=1.0)
    changed = train(config, optimizer=AdamWOptimizer(learning_rate=rate), gradient_clipping=clipping)
    assert 'set: "train.optimizer={\\"type\\": \\"AdamWOptimizer\\"' in format_pipeline_config(changed)
    assert read_back(changed) == changed


def test_numbers_out_of_range_are_written_to_the_extension(config):
    reader = dataclasses.replace(config.train_input, num_epochs=2**32, sample_1_of_n_examples=2**31)
    changed = dataclasses.replace(config, train_input=reader)
    assert 'set: "train_input.num_epochs=4294967296"' in format_pipeline_config(changed)
    assert read_back(changed) == changed


@pytest.mark.parametrize("text", ['"', "'", "\\", "a\nb", "\t\r\x7f", "é漢😀", "\u2028\x85", "\\n", "#", "\x01" + "1"])
def test_texts_round_trip(config, text):
    changed = train(config, fine_tune_checkpoint=text)
    assert read_back(changed) == changed
    assert "\n" not in format_pipeline_config(changed).partition("fine_tune_checkpoint: ")[2].partition('"\n')[0]


@pytest.mark.parametrize("number", [0.1, 1e-8, 1 / 3, 5e-324, 123456789.125, 3.4028234663852886e38, 1e38])
def test_floats_round_trip_exactly(config, number):
    changed = train(config, keep_checkpoint_every_n_hours=number)
    assert read_back(changed).train.keep_checkpoint_every_n_hours == number


def test_lists_round_trip(config):
    crop = SsdRandomCropOperation(min_aspect_ratio=0.5, max_aspect_ratio=2.0, max_area=1.0)
    for steps in ((), (SsdRandomCrop(),), (SsdRandomCrop(operations=(crop, crop)), RandomHorizontalFlip())):
        changed = train(config, augmentations=steps)
        assert read_back(changed) == changed
        assert "detloom" not in format_pipeline_config(changed)


def test_written_file_has_the_order_and_indentation_of_the_format(config):
    lines = format_pipeline_config(config).splitlines()
    assert [line for line in lines if not line.startswith((" ", "}"))] == [
        "model {",
        "train_config {",
        "train_input_reader {",
        "eval_config {",
        "eval_input_reader {",
    ]
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in lines)


def test_small_files_cover_both_schedules():
    rates = [read_pipeline_config(path).train.optimizer.learning_rate for path in SMALL_FILES]
    assert [isinstance(rate, ManualStepLearningRate) for rate in rates] == [False, True]
