import dataclasses
import json
from typing import Any

import pytest

from detloom.schemas.contracts.keypoint_sigmas import COCO_SIGMAS
from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import (
    CenterNet,
    CenterNetFeatureExtractor,
    KeypointEstimation,
    KeypointLoss,
    KeypointStd,
    ObjectCenterParams,
    ObjectDetection,
    PredictionHeadParams,
)
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.losses import Loss, PenaltyReducedFocal, SigmoidFocal, WeightedL1, WeightedSmoothL1
from detloom.schemas.model.network import FixedShapeResizer
from detloom.schemas.odapi.mapping_center_net import CENTER_NET
from detloom.schemas.odapi.pipeline_config import parse_pipeline_config
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.overrides import Located, merge, parse_set
from detloom.schemas.reading.typed_dict import from_dict, from_json, to_canonical_json

ROOMY = FixedShapeResizer(height=64, width=64)


def make(**changes: object) -> CenterNet:
    values = {
        "image_resizer": ROOMY,
        "feature_extractor": CenterNetFeatureExtractor(backbone="mobilenet_v2"),
        "object_detection_task": ObjectDetection(localization_loss=WeightedL1()),
        "object_center_params": ObjectCenterParams(classification_loss=PenaltyReducedFocal()),
    }
    return CenterNet(**(values | changes))


def extractor_of(text: str) -> dict[str, object]:
    return dict(center_net_of(f"feature_extractor {{ {text} }}")["feature_extractor"])


def make_with(backbone: str, side: int) -> CenterNet:
    extractor = CenterNetFeatureExtractor(backbone=backbone)
    return make(feature_extractor=extractor, image_resizer=FixedShapeResizer(height=side, width=side))


@pytest.mark.parametrize(
    ("make_value", "message"),
    [
        (lambda: make_with("mobilenet_v2", 300), "height: got 300, allowed: a multiple of 32, such as 288"),
        (lambda: make_with("hourglass_104", 320), "height: got 320, allowed: a multiple of 128, such as 256"),
        (lambda: ObjectCenterParams(classification_loss=SigmoidFocal()), "got SigmoidFocal, .*: PenaltyReducedFocal"),
        (lambda: ObjectDetection(localization_loss=WeightedSmoothL1()), "got WeightedSmoothL1, allowed: WeightedL1"),
        (lambda: Loss(classification_loss=SigmoidFocal(), localization_loss=WeightedL1()), "got WeightedL1, .*another"),
        (
            lambda: CenterNetFeatureExtractor(backbone="resnet50_v1", use_separable_conv=True),
            "got true, allowed: false with resnet50_v1",
        ),
        (
            lambda: CenterNetFeatureExtractor(backbone="hourglass_10", depth_multiplier=0.5),
            r"got 0\.5, allowed: 1\.0 with hourglass_10",
        ),
        (
            lambda: PredictionHeadParams(num_filters=(8, 8), kernel_sizes=(3,)),
            "kernel_sizes: got 1 .*, allowed: 2, .*num_filters",
        ),
        (lambda: PredictionHeadParams(num_filters=(10**6,), kernel_sizes=(3,)), "num_filters: got .*1000000.*4096"),
        (lambda: PredictionHeadParams(num_filters=(8,) * 33, kernel_sizes=(3,) * 33), "num_filters: got 33 .*32"),
    ],
)
def test_a_wrong_value_is_named(make_value, message):
    with pytest.raises(InputError, match=message):
        make_value()
    make_with("hourglass_10", 40)  # a side must fit the coarsest map
    make_with("hourglass_104", 1024)


def test_json_of_ssd_has_no_type_and_json_of_center_net_has_one():
    ssd = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    center_net = dataclasses.replace(ssd, model=make())
    for config, tag in ((ssd, None), (center_net, "CenterNet")):
        text = to_canonical_json(config)
        assert json.loads(text)["model"].get("type") == tag
        assert from_json(TrainEvalConfig, text) == config


def test_override_of_a_center_net_needs_no_type():
    base = Located(json.loads(to_canonical_json(find_preset("centernet_resnet101_v1_fpn_512x512").config)), str)
    tree = merge(base, parse_set("model.object_center_params.max_box_predictions=7"))
    config = from_dict(TrainEvalConfig, tree.data, locate=tree.locate)
    assert isinstance(config.model, CenterNet)
    assert config.model.object_center_params.max_box_predictions == 7


def test_separable_convolutions_need_the_field_to_be_set():
    # The reference checks the name only if the field is set, to any value.
    assert "use_separable_conv" not in extractor_of("type: 'mobilenet_v2_fpn_sep_conv'")
    for value in ("true", "false"):
        text = f"type: 'mobilenet_v2_fpn_sep_conv' use_separable_conv: {value}"
        assert extractor_of(text)["use_separable_conv"] is True
    assert extractor_of("type: 'mobilenet_v2_fpn' use_separable_conv: false")["use_separable_conv"] is False


@pytest.mark.parametrize("backbone", ["hourglass_104", "resnet_v2_50"])
def test_fields_of_mobilenet_are_ignored_with_other_backbones(backbone):
    text = f"type: '{backbone}' depth_multiplier: 0.5 use_separable_conv: true upsampling_interpolation: 'bilinear'"
    assert extractor_of(text).keys() == {"backbone"}


def center_net_of(text: str) -> dict[str, Any]:
    report = parse_pipeline_config(f"model {{ center_net {{ {text} }} }}", "F")
    return dict(report.located.data["model"])


def test_omitted_powers_of_the_penalty_reduced_loss_are_0():
    text = "object_center_params { classification_loss { penalty_reduced_logistic_focal_loss {} } }"
    loss = center_net_of(text)["object_center_params"]["classification_loss"]
    assert loss == {"type": "PenaltyReducedFocal", "alpha": 0.0, "beta": 0.0}


def test_omitted_head_has_one_layer_and_empty_head_has_none():
    heads = "scale_head_params {} offset_head_params { num_filters: 8 kernel_sizes: 3 }"
    task = f"object_detection_task {{ localization_loss {{ l1_localization_loss {{}} }} {heads} }}"
    report = parse_pipeline_config(f"model {{ center_net {{ {task} }} }}", "F")
    plain = report.located.data["model"]["object_detection_task"]
    found = from_dict(ObjectDetection, plain, locate=report.located.locate)
    assert found.scale_head_params == PredictionHeadParams()
    assert found.offset_head_params == PredictionHeadParams(num_filters=(8,), kernel_sizes=(3,))
    assert ObjectDetection(localization_loss=WeightedL1()).scale_head_params.num_filters == (256,)


def test_other_center_net_tasks_are_refused():
    tasks = [name for name in CENTER_NET["CenterNet"].fields if name.endswith(("_task", "_estimation"))]
    for task in set(tasks) - {"object_detection_task", "keypoint_estimation_task", "deepmac_mask_estimation"}:
        report = parse_pipeline_config(f"model {{ center_net {{ {task} {{}} }} }}", "F")
        (note,) = (note for note in report.refused if task in note.path)
        assert note.reason.endswith("keypoint_estimation_task, deepmac_mask_estimation")


# --- keypoints --------------------------------------------------------------------------------------------------------


def make_keypoints(*names: str, **changes: object) -> KeypointEstimation:
    values = {
        "task_name": "pose",
        "loss": KeypointLoss(classification_loss=PenaltyReducedFocal(), localization_loss=WeightedL1()),
        "keypoint_class_name": "cat",
        "keypoint_label_to_std": tuple(KeypointStd(name=name, std=1.0) for name in names),
    }
    return KeypointEstimation(**(values | changes))


def test_keypoints_of_persons_are_in_the_order_of_coco_and_others_in_their_own():
    task = make_keypoints(*sorted(COCO_SIGMAS))
    assert [each.name for each in task.points] == list(COCO_SIGMAS)
    assert [each.name for each in make_keypoints("tail", "ear", "nose").points] == ["tail", "ear", "nose"]


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        ((), {}, "keypoint_label_to_std: got nothing, allowed: at least one keypoint"),
        (("ear", "ear"), {}, "keypoint_label_to_std: got .*ear.*, allowed: each keypoint once"),
        (("ear",), {"task_name": "a/b"}, "task_name: got a/b, allowed: letters, digits and underscores"),
        (("ear",), {"keypoint_class_name": ""}, "keypoint_class_name: got nothing"),
        (("ear",), {"offset_peak_radius": 17}, "offset_peak_radius: got 17, allowed: 0 to 16"),
    ],
)
def test_impossible_keypoints_are_rejected(names, changes, message):
    with pytest.raises(InputError, match=message):
        make_keypoints(*names, **changes)


def test_a_model_with_keypoints_has_an_onnx_file_but_no_tflite_files():
    model = make(keypoint_estimation_task=make_keypoints("ear"))
    with pytest.raises(InputError, match=r"tflite.*TensorFlow Lite files have no keypoints"):
        model.check_export(Export(tflite=("float16",)))
    with pytest.raises(InputError, match=r"onnx_outputs.*no NMS"):
        model.check_export(Export(onnx=True, onnx_outputs="raw"))
    model.check_export(Export(onnx=True))


def test_the_class_of_persons_has_its_displayed_name():
    text = "keypoint_estimation_task { task_name: 'pose' keypoint_class_name: '/m/01g317' }"
    assert center_net_of(text)["keypoint_estimation_task"]["keypoint_class_name"] == "person"
