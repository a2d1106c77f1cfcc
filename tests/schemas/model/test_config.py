from dataclasses import replace
from operator import attrgetter

import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.model.augmentations import RandAugment
from detloom.schemas.presets.presets import find_preset

SSD, FPN = "ssd_mobilenet_v2_320x320", "ssd_mobilenet_v2_fpnlite_320x320"


@pytest.mark.parametrize(
    ("preset", "part", "field", "most"),
    [
        (FPN, "model.box_predictor", "num_layers_before_predictor", 32),
        ("efficientdet_d0", "model.feature_extractor.neck", "num_iterations", 32),
        (SSD, "model.box_predictor", "min_depth", 4096),
        (SSD, "model.box_predictor", "max_depth", 4096),
        (SSD, "model.feature_extractor", "min_depth", 4096),
        (FPN, "model.box_predictor", "depth", 4096),
        (FPN, "model.feature_extractor.neck", "additional_layer_depth", 4096),
        ("efficientdet_d0", "model.feature_extractor.neck", "num_filters", 4096),
        (SSD, "train_input", "max_number_of_boxes", 10_000),
        (SSD, "train_input", "shuffle_buffer_size", 1_000_000),
        (SSD, "model.post_processing.batch_non_max_suppression", "max_total_detections", 10_000),
    ],
)
def test_layers_channels_and_numbers_for_which_memory_is_reserved_are_limited(preset, part, field, most):
    owner = attrgetter(part)(find_preset(preset).config)
    assert getattr(replace(owner, **{field: most}), field) == most
    for value in (most + 1, 2**31):
        with pytest.raises(FieldError, match=f"{field}.*{value}.*{most}"):
            replace(owner, **{field: value})


def test_the_share_that_dropout_keeps_and_the_number_of_augmentation_layers_are_limited():
    predictor = find_preset(SSD).config.model.box_predictor
    with pytest.raises(FieldError, match=r"dropout_keep_probability.*0\.001 to 1"):
        replace(predictor, dropout_keep_probability=1e-17)
    assert RandAugment(num_layers=32).num_layers == 32
    with pytest.raises(FieldError, match=r"num_layers.*1000000.*32"):
        RandAugment(num_layers=10**6)
