from dataclasses import replace

import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.model.detector import GridAnchorGenerator, MultiscaleAnchorGenerator
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.losses import PenaltyReducedFocal
from detloom.schemas.model.network import BiFpn, Fpn
from detloom.schemas.presets.presets import find_preset

PLAIN = find_preset("faster_rcnn_resnet50_v1_640x640").config.model
PYRAMID = find_preset("faster_rcnn_resnet50_v1_fpn_640x640").config.model


def extractor(model: FasterRcnn, **changes: object) -> FasterRcnn:
    return replace(model, feature_extractor=replace(model.feature_extractor, **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: replace(PLAIN, number_of_stages=4), "number_of_stages: got 4, allowed: 1, 2 or 3"),
        (lambda: replace(PLAIN, second_stage_batch_size=301), r"second_stage_batch_size: got 301.*\(300\)"),
        (lambda: replace(PLAIN, maxpool_kernel_size=15), r"maxpool_kernel_size: got 15.*initial_crop_size \(14\)"),
        (lambda: replace(PLAIN, first_stage_max_proposals=0), "first_stage_max_proposals: got 0"),
        (
            lambda: replace(PLAIN, second_stage_classification_loss=PenaltyReducedFocal()),
            "second_stage_classification_loss: got PenaltyReducedFocal",
        ),
        (
            lambda: replace(PLAIN, first_stage_anchor_generator=PYRAMID.first_stage_anchor_generator),
            "first_stage_anchor_generator: got MultiscaleAnchorGenerator, allowed: GridAnchorGenerator without a neck",
        ),
        (
            lambda: replace(PYRAMID, first_stage_anchor_generator=PLAIN.first_stage_anchor_generator),
            "first_stage_anchor_generator: got GridAnchorGenerator, allowed: MultiscaleAnchorGenerator with a neck",
        ),
        (
            lambda: replace(PYRAMID, first_stage_anchor_generator=MultiscaleAnchorGenerator(aspect_ratios=(1.0,))),
            "first_stage_anchor_generator.min_level: got 3, allowed: 2, as the neck",
        ),
        (lambda: extractor(PLAIN, neck=Fpn()), "conv_hyperparams: got null, allowed: a value with a neck"),
        (lambda: extractor(PYRAMID, conv_hyperparams=None), "conv_hyperparams: got null"),
        (lambda: extractor(PYRAMID, neck=None), "conv_hyperparams: got set, allowed: null without a neck"),
        (lambda: extractor(PYRAMID, neck=BiFpn(num_iterations=1, num_filters=8)), "neck: got BiFpn, allowed: null"),
        (
            lambda: extractor(PYRAMID, backbone="inception_resnet_v2"),
            "neck: got Fpn, allowed: null with inception_resnet_v2",
        ),
        (
            lambda: extractor(PLAIN, override_base_feature_extractor_hyperparams=True),
            "override_base_feature_extractor_hyperparams: got true, allowed: false without a neck",
        ),
    ],
)
def test_a_wrong_value_is_named(change, message):
    with pytest.raises(FieldError, match=message):
        change()


def test_proposals_are_the_detections_of_one_stage():
    assert PLAIN.max_detections == 300
    assert replace(PLAIN, number_of_stages=1, first_stage_max_proposals=70).max_detections == 70


@pytest.mark.parametrize(
    ("export", "field"),
    [(Export(tflite=("float16",)), "tflite"), (Export(onnx=True, onnx_outputs="raw"), "onnx_outputs")],
)
def test_tflite_and_raw_outputs_are_refused_by_name(export, field):
    with pytest.raises(FieldError, match=f"export.{field}: .*Faster R-CNN"):
        PLAIN.check_export(export)
    PLAIN.check_export(Export(onnx=True))


def test_resizing_that_onnx_does_otherwise_is_refused_by_name():
    with pytest.raises(FieldError, match=r"export\.onnx: .*resize_method: AREA"):
        replace(PLAIN, image_resizer=replace(PLAIN.image_resizer, resize_method="AREA")).check_export(Export(onnx=True))


def test_the_grid_has_the_anchors_of_the_paper_and_smaller_ones():
    assert PLAIN.first_stage_anchor_generator == GridAnchorGenerator(
        scales=(0.25, 0.5, 1.0, 2.0), aspect_ratios=(0.5, 1.0, 2.0)
    )
