import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from detloom.schemas import augmentation_config as augmentations
from detloom.schemas import center_net_config as center_net
from detloom.schemas import config as top
from detloom.schemas import crop_augmentation_config as crops
from detloom.schemas import model_config as model
from detloom.schemas import network_config as network
from detloom.schemas import optimizer_config as optimizers
from detloom.schemas.errors import InputError
from detloom.schemas.field_docs import nested_dataclasses
from detloom.schemas.presets import find_preset, list_presets
from detloom.trainer_module.supported import check_trainable, untrained_parts

TRAINER_MODULE = Path(__file__).parents[2] / "trainer_module"
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
        f"{HEAD}.conv_hyperparams.batch_norm.epsilon: got 1e-06, trained here: 1.001e-05 or more",
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
        f"{EXTRACTOR}.neck.num_layers: got 7, trained here: 1 to 6",
    ),
    (
        {f"{EXTRACTOR}.backbone": "resnet50_v1"},
        f"{EXTRACTOR}.use_depthwise: got true, trained here: false with resnet50_v1",
    ),
    (
        {f"{EXTRACTOR}.backbone": "resnet50_v1", f"{EXTRACTOR}.use_explicit_padding": True},
        f"{EXTRACTOR}.use_explicit_padding: got true",
    ),
    (
        {HEAD: network.ConvolutionalBoxPredictor(conv_hyperparams=HYPERPARAMS, min_depth=9, max_depth=8)},
        f"{HEAD}.min_depth: got 9, trained here: at most max_depth (8)",
    ),
    (PLAIN_SSD, "model.anchor_generator: got SsdAnchorGenerator, trained here: as many anchors at each place"),
    ({f"{HEAD}.kernel_size": 1}, f"{HEAD}.kernel_size: got 1"),
    ({f"{HEAD}.depth": 0}, f"{HEAD}.depth: got 0"),
    ({"train.moving_average": None}, "eval.use_moving_averages: got true, trained here: true only with train.moving"),
    ({"eval_input.num_epochs": 2}, "eval_input.num_epochs: got 2"),
]
# Settings that change nothing here, and why that is no loss.
WITHOUT_EFFECT = {
    "Train.learning_rate_batch_size": "for a warning before training, not for training",
    "Eval.metrics_set": "there is only one",
    "InputReader.label_map_path": "the data's artifact brings it",
    "InputReader.input_path": "the data's artifact brings it",
}
AUGMENTATION_MODULES = tuple(f"augmentations/{path.stem}" for path in TRAINER_MODULE.glob("augmentations/*.py"))
CROP_OPERATIONS = (
    crops.SsdRandomCropOperation,
    crops.SsdRandomCropFixedAspectRatioOperation,
    crops.SsdRandomCropPadOperation,
)
# Who reads the fields of a class, all but those above. Fields that hold other classes are read on the way to these.
READ_IN = {
    top.TrainEvalConfig: ("train_loop", "input_pipeline"),
    top.Train: (
        "train_loop",
        "train_step",
        "input_pipeline",
        "record_stream",
        "run_checkpoints",
        "optimizers",
        "precision",
        "freezing",
        "checkpoints/restore",
    ),
    top.NonFinite: ("nonfinite",),
    top.EarlyStopping: ("evaluation_history", "train_loop"),
    top.Monitoring: ("train_loop", "train_step"),
    top.Eval: ("train_loop",),
    top.InputReader: ("train_loop", "input_pipeline", "record_stream"),
    model.Ssd: ("ssd", "losses", "targets", "detector", "postprocess"),
    **dict.fromkeys(get_args(model.AnchorGenerator), ("anchors",)),
    model.FasterRcnnBoxCoder: ("box_coder",),
    model.ArgMaxMatcher: ("matcher",),
    model.Loss: ("losses",),
    model.HardExampleMiner: ("hard_examples",),
    **dict.fromkeys((*get_args(model.ClassificationLoss), *get_args(model.LocalizationLoss)), ("losses",)),
    model.PenaltyReducedFocal: ("centernet_losses",),
    center_net.CenterNet: ("centernet", "centernet_network", "detector"),
    center_net.CenterNetFeatureExtractor: ("centernet_network", "preprocess"),
    center_net.PredictionHeadParams: ("centernet_network",),
    center_net.ObjectDetection: ("centernet_network", "centernet_losses"),
    center_net.ObjectCenterParams: ("centernet", "centernet_network", "centernet_losses", "centernet_decode"),
    model.PostProcessing: ("postprocess",),
    model.BatchNonMaxSuppression: ("postprocess", "nms"),
    network.FixedShapeResizer: ("preprocess",),
    network.KeepAspectRatioResizer: ("preprocess",),
    network.FeatureExtractor: ("ssd", "backbones/mobilenet_v2", "necks/fpn"),
    network.Fpn: ("necks/fpn",),
    network.BiFpn: ("necks/bifpn", "backbones/efficientnet"),
    network.ExtraFeatureLayers: ("necks/pyramid_levels",),
    network.ConvolutionalBoxPredictor: ("heads/level_heads",),
    network.WeightSharedConvolutionalBoxPredictor: ("heads/shared_heads",),
    network.ConvHyperparams: ("conv_layers",),
    network.BatchNorm: ("conv_layers",),
    **dict.fromkeys(get_args(network.Regularizer), ("conv_layers",)),
    **dict.fromkeys(get_args(network.Initializer), ("conv_layers",)),
    **dict.fromkeys((*get_args(optimizers.LearningRate), optimizers.LearningRateStep), ("learning_rates",)),
    **dict.fromkeys(get_args(optimizers.Optimizer), ("optimizers",)),
    optimizers.ClipByGlobalNorm: ("gradients",),
    optimizers.ClipEachThenGlobalNorm: ("gradients",),
    optimizers.MovingAverage: ("moving_average",),
    **dict.fromkeys((*get_args(augmentations.Augmentation), *CROP_OPERATIONS), AUGMENTATION_MODULES),
}


def names_read_in(module: str) -> set[str]:
    """Attributes that the module reads, in expressions and in `case` patterns."""
    tree = ast.parse((TRAINER_MODULE / f"{module}.py").read_text(encoding="utf-8"))
    patterns = [node.kwd_attrs for node in ast.walk(tree) if isinstance(node, ast.MatchClass)]
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}.union(*patterns)


@pytest.mark.parametrize("cls", nested_dataclasses(top.TrainEvalConfig), ids=lambda cls: cls.__name__)
def test_every_setting_is_trained_or_refused(cls):
    """A new field fails here until the trainer reads it, or `supported.py` refuses it."""
    if cls.__name__ in REFUSED:
        return
    read = set().union(*(names_read_in(module) for module in READ_IN[cls]))
    for field in dataclasses.fields(cls):
        name = f"{cls.__name__}.{field.name}"
        assert field.name in read or name in REFUSED or name in WITHOUT_EFFECT, f"{name} is read nowhere"


@pytest.mark.parametrize(("settings", "start"), [*REFUSED.values(), *REFUSED_VALUES])
def test_a_setting_that_is_not_trained_is_named_by_its_key_path(tiny_config, changed, settings, start):
    parts = untrained_parts(changed(tiny_config, settings))
    assert any(part.startswith(start) for part in parts), parts


def test_a_configuration_that_is_trained_has_no_such_part(tiny_config):
    assert untrained_parts(tiny_config) == ()
    check_trainable(tiny_config)


def test_all_that_is_refused_stands_in_one_line(tiny_config, changed):
    both = changed(tiny_config, {"train.moving_average": None, "train_input.num_epochs": 3})
    with pytest.raises(InputError, match=r"use_moving_averages: got true.*num_epochs: got 3") as caught:
        check_trainable(both)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", [320, 313, 96, 32])
def test_sides_whose_maps_double_back_exactly_are_trained(tiny_config, changed, side):
    assert untrained_parts(changed(tiny_config, {"model.image_resizer.height": side})) == ()


def test_another_side_is_refused_with_the_nearest_that_works(tiny_config, changed):
    (part,) = untrained_parts(changed(tiny_config, {"model.image_resizer.height": 300}))
    assert "as 288 and all multiples of 32" in part  # 300 / 8 = 37.5 -> 38, / 16 -> 19, / 32 -> 10: 19 is not 2 * 10


def test_explicit_padding_fits_maps_of_any_size(tiny_config, changed):
    size = {"model.image_resizer.height": 300, f"{EXTRACTOR}.use_explicit_padding": True}
    assert untrained_parts(changed(tiny_config, size)) == ()


def test_padding_to_a_multiple_makes_sides_that_double_back(tiny_config, changed):
    size = {"model.image_resizer.height": 300, f"{EXTRACTOR}.pad_to_multiple": 32}
    assert untrained_parts(changed(tiny_config, size)) == ()


def test_a_center_net_needs_pictures_of_one_size_too(changed):
    config = find_preset("centernet_resnet101_v1_fpn_512x512").config
    parts = untrained_parts(changed(config, {"model.image_resizer.pad_to_max_dimension": False}))
    assert [part.partition(", ")[0] for part in parts] == ["model.image_resizer.pad_to_max_dimension: got false"]


def test_the_detector_of_every_preset_is_trained():
    parts = {preset.name: untrained_parts(preset.config) for preset in list_presets()}
    assert {name: [part for part in found if part.startswith("model.")] for name, found in parts.items()} == {
        name: [] for name in parts
    }


def test_asking_takes_no_tensorflow():
    code = "import sys; import detloom.trainer_module.supported; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=TRAINER_MODULE.parent, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
