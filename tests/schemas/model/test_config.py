from dataclasses import replace
from operator import attrgetter

import pytest

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.model.augmentations import RandAugment
from detloom.schemas.model.config import Train
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import from_dict

TRAIN = {
    "num_steps": 1,
    "optimizer": {"type": "AdamOptimizer", "learning_rate": {"type": "ConstantLearningRate"}},
}


def read(**settings: object) -> Train:
    return from_dict(Train, {**TRAIN, **settings}, locate=lambda _: "x:1")


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({"use_bfloat16": False, "precision": "float32"}, "float32"),
        ({"use_bfloat16": True, "precision": "float32"}, "bfloat16_on_tpu"),
        ({"use_bfloat16": True}, "bfloat16_on_tpu"),
        ({"use_bfloat16": True, "precision": "float16"}, "float16"),
        ({"use_bfloat16": False, "precision": "bfloat16_on_tpu"}, "float32"),  # a run file over a preset
        ({"use_bfloat16": False, "precision": "bfloat16"}, "bfloat16"),
    ],
)
def test_former_setting_use_bfloat16_becomes_a_precision(settings, precision):
    assert read(**settings).precision == precision


def test_former_setting_var_freeze_expr_becomes_an_anchored_pattern():
    assert read(var_freeze_expr="", freeze_variables=["a"]).freeze_variables == ("a",)
    assert read(var_freeze_expr="b|c", freeze_variables=["a"]).freeze_variables == ("a", "^(?:b|c)")
    assert read(var_freeze_expr="b").freeze_variables == ("^(?:b)",)


@pytest.mark.parametrize(("key", "value"), [("use_bfloat16", "yes"), ("var_freeze_expr", 3)])
def test_former_setting_with_a_wrong_type_is_rejected(key, value):
    with pytest.raises(InputError, match=f"x:1: {key}: "):
        read(**{key: value})


@pytest.mark.parametrize(
    ("preset", "part", "field"),
    [
        ("ssd_mobilenet_v2_fpnlite_320x320", "box_predictor", "num_layers_before_predictor"),
        ("efficientdet_d0", "feature_extractor.neck", "num_iterations"),
    ],
)
def test_number_of_repeated_layers_is_limited(preset, part, field):
    owner = attrgetter(part)(find_preset(preset).config.model)
    assert getattr(replace(owner, **{field: 32}), field) == 32
    with pytest.raises(FieldError, match=f"{field}.*100000.*32"):
        replace(owner, **{field: 100_000})


@pytest.mark.parametrize(
    ("preset", "part", "field"),
    [
        ("ssd_mobilenet_v2_320x320", "box_predictor", "min_depth"),
        ("ssd_mobilenet_v2_320x320", "box_predictor", "max_depth"),
        ("ssd_mobilenet_v2_320x320", "feature_extractor", "min_depth"),
        ("ssd_mobilenet_v2_fpnlite_320x320", "box_predictor", "depth"),
        ("ssd_mobilenet_v2_fpnlite_320x320", "feature_extractor.neck", "additional_layer_depth"),
        ("efficientdet_d0", "feature_extractor.neck", "num_filters"),
    ],
)
def test_number_of_channels_is_limited(preset, part, field):
    owner = attrgetter(part)(find_preset(preset).config.model)
    assert getattr(replace(owner, **{field: 4096}), field) == 4096
    with pytest.raises(FieldError, match=f"{field}.*1000000.*4096"):
        replace(owner, **{field: 10**6})


@pytest.mark.parametrize(
    ("part", "field", "most"),
    [
        ("train_input", "max_number_of_boxes", 10_000),
        ("train_input", "shuffle_buffer_size", 1_000_000),
        ("model.post_processing.batch_non_max_suppression", "max_total_detections", 10_000),
    ],
)
def test_numbers_for_which_memory_is_reserved_are_limited(part, field, most):
    owner = attrgetter(part)(find_preset("ssd_mobilenet_v2_320x320").config)
    assert getattr(replace(owner, **{field: most}), field) == most
    with pytest.raises(FieldError, match=f"{field}: got {2**31}, allowed: 1 to {most}"):
        replace(owner, **{field: 2**31})


def test_the_share_that_dropout_keeps_is_more_than_rounding():
    predictor = find_preset("ssd_mobilenet_v2_320x320").config.model.box_predictor
    with pytest.raises(FieldError, match=r"dropout_keep_probability.*0\.001 to 1"):
        replace(predictor, dropout_keep_probability=1e-17)


def test_number_of_augmentation_layers_is_limited():
    assert RandAugment(num_layers=32).num_layers == 32
    with pytest.raises(FieldError, match=r"num_layers.*1000000.*32"):
        RandAugment(num_layers=10**6)
