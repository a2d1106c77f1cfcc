import ast
import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model import center_net as center_net
from detloom.schemas.model import config as top
from detloom.schemas.model import detector as model
from detloom.schemas.model import network as network
from detloom.schemas.model import optimizers as optimizers
from detloom.schemas.model.augmentations import Mosaic, RandomHorizontalFlip
from detloom.schemas.presets.presets import find_preset, list_presets
from detloom.schemas.reading.typed_dict import nested_dataclasses
from detloom.trainer_module.detectors.supported import check_trainable, unsupported_settings

TRAINER_MODULE = Path(__file__).parents[3] / "trainer_module"
HYPERPARAMS = network.ConvHyperparams(
    regularizer=network.L2Regularizer(weight=0.0), initializer=network.RandomNormalInitializer()
)
EXTRACTOR, HEAD = "model.feature_extractor", "model.box_predictor"
NMS = "model.post_processing.batch_non_max_suppression"
PLAIN_SSD = {  # under heads that all levels share
    f"{EXTRACTOR}.neck": network.ExtraFeatureLayers(num_layers=6),
    "model.anchor_generator": model.SsdAnchorGenerator(aspect_ratios=(1.0,)),
}
EFFICIENTDET = {
    f"{EXTRACTOR}.backbone": "efficientnet-b0",
    f"{EXTRACTOR}.neck": network.BiFpn(max_level=6, num_iterations=3, num_filters=64),
    f"{EXTRACTOR}.use_depthwise": False,
    f"{EXTRACTOR}.depth_multiplier": 1.0,
    f"{EXTRACTOR}.override_base_feature_extractor_hyperparams": False,
    "model.anchor_generator.max_level": 6,
}

# Settings that are refused: "class.field", or a class whole; what is set, and what the sentence begins with.
REFUSED = {
    "KeepAspectRatioResizer.pad_to_max_dimension": (
        {"model.image_resizer": network.KeepAspectRatioResizer()},
        "model.image_resizer.pad_to_max_dimension: got false",
    ),
    "WeightSharedConvolutionalBoxPredictor.score_converter": (
        {f"{HEAD}.score_converter": "SIGMOID"},
        f"{HEAD}.score_converter: got 'SIGMOID'",
    ),
    "KeypointBoxCoder": (
        {"model.box_coder": model.KeypointBoxCoder(num_keypoints=1)},
        "model.box_coder: got KeypointBoxCoder",
    ),
    "BatchNonMaxSuppression.max_classes_per_detection": (
        {f"{NMS}.use_class_agnostic_nms": True, f"{NMS}.max_classes_per_detection": 2},
        f"{NMS}.max_classes_per_detection: got 2",
    ),
    "InputReader.num_epochs": ({"train_input.num_epochs": 3}, "train_input.num_epochs: got 3"),
}
# Single values that are refused of fields that are honoured otherwise.
REFUSED_VALUES = [
    ({f"{EXTRACTOR}.conv_hyperparams.batch_norm": None}, f"{EXTRACTOR}.conv_hyperparams.batch_norm: got null"),
    (
        {f"{HEAD}.conv_hyperparams.batch_norm.epsilon": 1e-6},
        f"{HEAD}.conv_hyperparams.batch_norm.epsilon: got 1e-06, supported: 1.001e-05 or more",
    ),
    ({"model.image_resizer.height": 300}, "model.image_resizer.height: got 300"),
    ({"model.image_resizer.width": 300}, "model.image_resizer.width: got 300"),
    (
        {"model.image_resizer": network.KeepAspectRatioResizer(max_dimension=608, pad_to_max_dimension=True)}
        | EFFICIENTDET,
        "model.image_resizer.max_dimension: got 608",  # 76, 38, 19, 10
    ),
    (
        {
            f"{EXTRACTOR}.neck": network.ExtraFeatureLayers(num_layers=7),
            "model.anchor_generator": model.SsdAnchorGenerator(aspect_ratios=(1.0,), num_layers=7),
        },
        f"{EXTRACTOR}.neck.num_layers: got 7, supported: 1 to 6",
    ),
    (
        {f"{EXTRACTOR}.backbone": "resnet50_v1"},
        f"{EXTRACTOR}.use_depthwise: got true, supported: false with resnet50_v1",
    ),
    (
        {f"{EXTRACTOR}.backbone": "resnet50_v1", f"{EXTRACTOR}.use_explicit_padding": True},
        f"{EXTRACTOR}.use_explicit_padding: got true",
    ),
    (
        {HEAD: network.ConvolutionalBoxPredictor(conv_hyperparams=HYPERPARAMS, min_depth=9, max_depth=8)},
        f"{HEAD}.min_depth: got 9, supported: at most max_depth (8)",
    ),
    (PLAIN_SSD, "model.anchor_generator: got SsdAnchorGenerator, supported: equally many anchors"),
    ({f"{HEAD}.kernel_size": 1}, f"{HEAD}.kernel_size: got 1"),
    ({f"{HEAD}.depth": 0}, f"{HEAD}.depth: got 0"),
    ({"eval.metrics_set": ("coco_mask_metrics",)}, "eval.metrics_set: got 'coco_mask_metrics'"),
    (
        {"eval.keypoint_sigmas": (top.KeypointSigma(name="nose", sigma=0.1),)},
        "eval.keypoint_sigmas: got 'nose', supported: none; the detector has no keypoints",
    ),
    ({"train.moving_average": None}, "eval.use_moving_averages: got true, supported: true only with train.moving"),
    ({"eval_input.num_epochs": 2}, "eval_input.num_epochs: got 2"),
]
# Settings that change nothing here, and why that is no loss.
WITHOUT_EFFECT = {
    "Train.learning_rate_batch_size": "for a warning before training, not for training",
    "Eval.metrics_set": "all metrics are computed that the detector allows",
    "InputReader.label_map_path": "the data's artifact brings it",
    "InputReader.input_path": "the data's artifact brings it",
}
READ_BY_PROPERTY = {  # of the same class, or of TrainEvalConfig
    "KeypointEstimation.keypoint_label_to_std": "points",
    "Eval.evaluate_every": "evaluation_interval",
}
# Where the settings of a module of `schemas/model` are read.
READ_IN = {
    "config": ("data", "evaluation", "runtime", "run_state", "training", "weights"),
    "detector": ("boxes", "detectors"),
    "losses": ("boxes", "detectors"),
    "center_net": ("detectors/centernet",),
    "deepmac": ("detectors/centernet",),
    "faster_rcnn": ("detectors/faster_rcnn",),
    "network": ("boxes", "detectors", "layers"),
    "non_max_suppression": ("boxes", "detectors"),
    "optimizers": ("training",),
    "augmentations": ("data/augmentations",),
    "color_augmentations": ("data/augmentations",),
    "crop_augmentations": ("data/augmentations",),
}


@functools.cache
def names_read_in(folder: str) -> frozenset[str]:
    """Attributes that the modules of a folder read, in expressions and in `case` patterns; not those that check."""
    names: set[str] = set()
    for path in (TRAINER_MODULE / folder).rglob("*.py"):
        if path.stem == "supported":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.MatchClass):
                names.update(node.kwd_attrs)
    return frozenset(names)


@pytest.mark.parametrize("cls", nested_dataclasses(top.TrainEvalConfig), ids=lambda cls: cls.__name__)
def test_every_setting_is_trained_or_refused(cls):
    """A new field fails here until the trainer reads it, or `supported.py` refuses it."""
    if cls.__name__ in REFUSED:
        return
    read = frozenset().union(*map(names_read_in, READ_IN[cls.__module__.rpartition(".")[2]]))
    for field in dataclasses.fields(cls):
        name = f"{cls.__name__}.{field.name}"
        is_read = READ_BY_PROPERTY.get(name, field.name) in read
        assert is_read or name in REFUSED or name in WITHOUT_EFFECT, f"{name} is read nowhere"


@pytest.mark.parametrize(("settings", "start"), [*REFUSED.values(), *REFUSED_VALUES])
def test_an_unsupported_setting_is_named_by_its_key_path(tiny_config, changed, settings, start):
    parts = unsupported_settings(changed(tiny_config, settings))
    assert any(part.startswith(start) for part in parts), parts


def test_a_supported_configuration_has_no_findings(tiny_config):
    assert unsupported_settings(tiny_config) == ()
    check_trainable(tiny_config)


def test_all_findings_are_in_one_line(tiny_config, changed):
    both = changed(tiny_config, {"train.moving_average": None, "train_input.num_epochs": 3})
    with pytest.raises(InputError, match=r"use_moving_averages: got true.*num_epochs: got 3") as caught:
        check_trainable(both)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("side", "settings"),
    [
        (320, {}),
        (313, {}),
        (96, {}),
        (32, {}),
        (300, {f"{EXTRACTOR}.use_explicit_padding": True}),  # maps of any size
        (300, {f"{EXTRACTOR}.pad_to_multiple": 32}),
    ],
)
def test_sides_that_double_back_exactly_are_supported(tiny_config, changed, side, settings):
    assert unsupported_settings(changed(tiny_config, {"model.image_resizer.height": side, **settings})) == ()


def test_another_side_is_refused_with_the_nearest_supported_one(tiny_config, changed):
    (part,) = unsupported_settings(changed(tiny_config, {"model.image_resizer.height": 300}))
    assert "288 and all multiples of 32" in part  # 300 / 8 = 37.5 -> 38, / 16 -> 19, / 32 -> 10: 19 is not 2 * 10


def test_a_bifpn_fits_maps_of_any_size_if_the_anchors_follow_them(tiny_config, changed):
    size = {**EFFICIENTDET, "model.image_resizer": network.FixedShapeResizer(height=96, width=128)}
    (part,) = unsupported_settings(changed(tiny_config, size))  # 96 / 32 = 3 rows of level 5, and 2 of level 6
    assert "or model.anchor_generator.strides_from_feature_maps true" in part
    even = {"model.anchor_generator.strides_from_feature_maps": True}
    assert unsupported_settings(changed(tiny_config, size | even)) == ()


def test_a_center_net_needs_images_of_one_size_too(changed):
    config = find_preset("centernet_resnet101_v1_fpn_512x512").config
    parts = unsupported_settings(changed(config, {"model.image_resizer.pad_to_max_dimension": False}))
    assert [part.partition(", ")[0] for part in parts] == ["model.image_resizer.pad_to_max_dimension: got false"]


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"image_resizer.pad_to_max_dimension": False}, "image_resizer.pad_to_max_dimension: got false"),
        (
            {
                "image_resizer": network.FixedShapeResizer(height=32, width=96),  # anchors have 64 x 64 pixels and more
                "clip_anchors_to_image": False,
            },
            "clip_anchors_to_image: got false, supported: true, or a larger image_resizer",
        ),
        (
            {
                "second_stage_box_predictor.share_box_across_classes": False,
                "second_stage_post_processing.batch_non_max_suppression.use_class_agnostic_nms": True,
            },
            "second_stage_post_processing.batch_non_max_suppression.use_class_agnostic_nms: got true",
        ),
        (
            {
                "second_stage_post_processing.batch_non_max_suppression.use_class_agnostic_nms": True,
                "second_stage_post_processing.batch_non_max_suppression.max_classes_per_detection": 2,
            },
            "second_stage_post_processing.batch_non_max_suppression.max_classes_per_detection: got 2",
        ),
    ],
)
def test_an_unsupported_setting_of_a_faster_rcnn_is_named(changed, settings, start):
    config = find_preset("faster_rcnn_resnet50_v1_640x640").config
    parts = unsupported_settings(changed(config, {f"model.{path}": value for path, value in settings.items()}))
    assert [part for part in parts if part.startswith(f"model.{start}")], parts


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"train.augmentations": (Mosaic(),)}, "train.augmentations[0]: got Mosaic, supported: all except Mosaic"),
        (
            {"train.augmentations": (RandomHorizontalFlip(keypoint_flip_permutation=(1, 0)),)},
            "train.augmentations[0].keypoint_flip_permutation: got '[1, 0]', supported: each of 0 to 16 once",
        ),
        (
            {"eval.keypoint_sigmas": (top.KeypointSigma(name="tail", sigma=0.1),)},
            "eval.keypoint_sigmas: got 'tail', supported: each of nose, left_eye",
        ),
    ],
)
def test_an_unsupported_setting_with_keypoints_is_named(changed, settings, start):
    config = find_preset("centernet_resnet50_v2_512x512_kpts").config
    assert not unsupported_settings(config)
    (part,) = unsupported_settings(changed(config, settings))
    assert part.startswith(start)


def test_the_detector_of_every_preset_is_supported():
    parts = {preset.name: unsupported_settings(preset.config) for preset in list_presets()}
    assert {name: [part for part in found if part.startswith("model.")] for name, found in parts.items()} == {
        name: [] for name in parts
    }


def test_settings_are_checked_without_importing_tensorflow():
    code = (
        "import sys; from detloom.schemas.presets.presets import list_presets; "
        "from detloom.trainer_module.detectors.supported import unsupported_settings; "
        "[unsupported_settings(preset.config) for preset in list_presets()]; print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TRAINER_MODULE.parent, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
