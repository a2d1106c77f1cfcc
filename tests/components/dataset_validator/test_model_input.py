"""What resizing makes of an image."""

import numpy as np
import pytest

from detloom.components.dataset_validator.model_input import ModelInput, boxes_in_input, resize_geometry
from detloom.schemas.model_config import MultiscaleAnchorGenerator
from detloom.schemas.network_config import FixedShapeResizer, KeepAspectRatioResizer
from detloom.schemas.presets import find_preset
from detloom.schemas.typed_dict import from_json, to_canonical_json


def test_a_fixed_shape_is_the_same_for_all_images():
    assert resize_geometry(FixedShapeResizer(height=300, width=200), (10, 1000)) == ((300, 200), (300, 200))


@pytest.mark.parametrize(
    ("image_hw", "resized_hw"),
    [
        ((300, 400), (600, 800)),  # times 2: the shorter side becomes 600
        ((1200, 900), (800, 600)),
        ((100, 1000), (102, 1024)),  # times 6 would be 6000 wide: times 1.024 instead
        ((1, 5000), (1, 1024)),  # 0.2 px high, but never 0
    ],
)
def test_the_shorter_side_is_resized_unless_the_longer_becomes_too_long(image_hw, resized_hw):
    resizer = KeepAspectRatioResizer(min_dimension=600, max_dimension=1024)
    assert resize_geometry(resizer, image_hw) == (resized_hw, resized_hw)


def test_padding_makes_the_input_a_square():
    resizer = KeepAspectRatioResizer(min_dimension=600, max_dimension=1024, pad_to_max_dimension=True)
    assert resize_geometry(resizer, (300, 400)) == ((600, 800), (1024, 1024))


def test_boxes_are_scaled_to_the_resized_image():
    boxes = boxes_in_input(np.array([[0.5, 0.25, 1, 1]]), (600, 800))
    assert boxes.tolist() == [[300, 200, 600, 800]]


def test_the_resizer_is_described_in_a_few_words():
    def describe(resizer):
        anchors = MultiscaleAnchorGenerator(aspect_ratios=(1.0,))
        return ModelInput(image_resizer=resizer, anchor_generator=anchors).describe()

    assert describe(FixedShapeResizer(height=320, width=640)) == "FixedShapeResizer, 320 x 640 px (height x width)"
    padded = KeepAspectRatioResizer(min_dimension=512, max_dimension=512, pad_to_max_dimension=True)
    assert describe(padded) == "KeepAspectRatioResizer, 512 to 512 px, padded to a square"


def test_a_detector_without_anchors_has_none():
    config = find_preset("centernet_resnet101_v1_fpn_512x512").config
    found = ModelInput.of_model(config.model, max_boxes=7)
    assert found.anchor_generator is None
    assert from_json(ModelInput, to_canonical_json(found)) == found
