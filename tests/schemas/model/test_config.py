from dataclasses import replace
from operator import attrgetter

import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.model.augmentations import RandAugment
from detloom.schemas.presets.presets import find_preset


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
