import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from detloom.schemas import augmentation_config as augmentations
from detloom.schemas import config as top
from detloom.schemas import model_config as model
from detloom.schemas import network_config as network
from detloom.schemas import optimizer_config as optimizers
from detloom.schemas.errors import InputError
from detloom.schemas.field_docs import nested_dataclasses
from detloom.schemas.presets import list_presets
from detloom.trainer_module.supported import check_trainable, untrained_parts

TRAINER_MODULE = Path(__file__).parents[2] / "trainer_module"
RATIOS = {"aspect_ratios": (1.0,)}
HYPERPARAMS = network.ConvHyperparams(
    regularizer=network.L2Regularizer(weight=0.0), initializer=network.RandomNormalInitializer()
)
EXTRACTOR, HEAD = "model.feature_extractor", "model.box_predictor"
HARD_EXAMPLES = {
    "model.loss.classification_loss": model.WeightedSigmoid(),
    "model.loss.hard_example_miner": model.HardExampleMiner(),
}
NMS = "model.post_processing.batch_non_max_suppression"

# Settings that are refused: "class.field", or a class whole; what is set, and what the sentence begins with.
REFUSED = {
    "KeepAspectRatioResizer": (
        {"model.image_resizer": network.KeepAspectRatioResizer()},
        "model.image_resizer: got Keep",
    ),
    "FixedShapeResizer.height": ({"model.image_resizer.height": 300}, "model.image_resizer.height: got 300"),
    "FixedShapeResizer.width": ({"model.image_resizer.width": 300}, "model.image_resizer.width: got 300"),
    "FeatureExtractor.backbone": (
        {f"{EXTRACTOR}.backbone": "mobilenet_v1"},
        "model.feature_extractor.backbone: got 'mobilenet_v1', trained here: 'mobilenet_v2'.",
    ),
    "ExtraFeatureLayers": (
        {
            f"{EXTRACTOR}.neck": network.ExtraFeatureLayers(),
            "model.anchor_generator": model.SsdAnchorGenerator(**RATIOS),
        },
        f"{EXTRACTOR}.neck: got ExtraFeatureLayers",
    ),
    "BiFpn": (
        {
            f"{EXTRACTOR}.backbone": "efficientnet-b0",
            f"{EXTRACTOR}.neck": network.BiFpn(max_level=5, num_iterations=3, num_filters=64),
            f"{EXTRACTOR}.use_depthwise": False,
            f"{EXTRACTOR}.depth_multiplier": 1.0,
            f"{EXTRACTOR}.override_base_feature_extractor_hyperparams": False,
        },
        f"{EXTRACTOR}.neck: got BiFpn",
    ),
    "FeatureExtractor.use_depthwise": ({f"{EXTRACTOR}.use_depthwise": False}, f"{EXTRACTOR}.use_depthwise: got false"),
    "FeatureExtractor.use_explicit_padding": (
        {f"{EXTRACTOR}.use_explicit_padding": True},
        f"{EXTRACTOR}.use_explicit_padding: got true",
    ),
    "FeatureExtractor.pad_to_multiple": (
        {f"{EXTRACTOR}.pad_to_multiple": 128},
        f"{EXTRACTOR}.pad_to_multiple: got 128",
    ),
    "SsdAnchorGenerator": (
        {"model.anchor_generator": model.SsdAnchorGenerator(**RATIOS, num_layers=3)},
        "model.anchor_generator: got SsdAnchorGenerator",
    ),
    "ConvolutionalBoxPredictor": (
        {HEAD: network.ConvolutionalBoxPredictor(conv_hyperparams=HYPERPARAMS)},
        f"{HEAD}: got ConvolutionalBoxPredictor",
    ),
    "WeightSharedConvolutionalBoxPredictor.use_depthwise": (
        {f"{HEAD}.use_depthwise": False},
        f"{HEAD}.use_depthwise: got false",
    ),
    "WeightSharedConvolutionalBoxPredictor.share_prediction_tower": (
        {f"{HEAD}.share_prediction_tower": False},
        f"{HEAD}.share_prediction_tower: got false",
    ),
    "WeightSharedConvolutionalBoxPredictor.score_converter": (
        {f"{HEAD}.score_converter": "SIGMOID"},
        f"{HEAD}.score_converter: got 'SIGMOID'",
    ),
    "WeightedSoftmax": (
        {"model.loss.classification_loss": model.WeightedSoftmax()},
        "model.loss.classification_loss: got WeightedSoftmax",
    ),
    "WeightedIou": (
        {"model.loss.localization_loss": model.WeightedIou()},
        "model.loss.localization_loss: got WeightedIou",
    ),
    "WeightedGiou": (
        {"model.loss.localization_loss": model.WeightedGiou()},
        "model.loss.localization_loss: got WeightedGiou",
    ),
    "HardExampleMiner": (HARD_EXAMPLES, "model.loss.hard_example_miner: got HardExampleMiner"),
    "Loss.hard_example_miner": (HARD_EXAMPLES, "model.loss.hard_example_miner: got HardExampleMiner"),
    "PostProcessing.score_converter": (
        {"model.post_processing.score_converter": "SOFTMAX"},
        "model.post_processing.score_converter: got 'SOFTMAX'",
    ),
    "BatchNonMaxSuppression.use_class_agnostic_nms": (
        {f"{NMS}.use_class_agnostic_nms": True},
        f"{NMS}.use_class_agnostic_nms: got true",
    ),
    "BatchNonMaxSuppression.soft_nms_sigma": ({f"{NMS}.soft_nms_sigma": 0.5}, f"{NMS}.soft_nms_sigma: got 0.5"),
    "SsdRandomCrop": (
        {"train.augmentations": (augmentations.RandomVerticalFlip(), augmentations.SsdRandomCrop())},
        "train.augmentations[1]: got SsdRandomCrop",
    ),
    "SsdRandomCropOperation": (
        {"train.augmentations": (augmentations.SsdRandomCrop(),)},
        "train.augmentations[0]: got SsdRandomCrop",
    ),
    "RandomScaleCropAndPadToSquare": (
        {"train.augmentations": (augmentations.RandomScaleCropAndPadToSquare(),)},
        "train.augmentations[0]: got RandomScaleCropAndPadToSquare",
    ),
    "Train.fine_tune_checkpoint": (
        {"train.fine_tune_checkpoint": "ckpt-0"},
        "train.fine_tune_checkpoint: got 'ckpt-0', trained here: '', which starts from random weights",
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
    ({f"{HEAD}.kernel_size": 1}, f"{HEAD}.kernel_size: got 1"),
    ({f"{HEAD}.depth": 0}, f"{HEAD}.depth: got 0"),
    ({"train.moving_average": None}, "eval.use_moving_averages: got true, trained here: true only with train.moving"),
    ({"eval_input.num_epochs": 2}, "eval_input.num_epochs: got 2"),
]
# Settings that change nothing here, and why that is no loss.
WITHOUT_EFFECT = {
    "BatchNonMaxSuppression.max_classes_per_detection": "only with class-agnostic suppression, which is refused",
    "Train.fine_tune_checkpoint_type": "only with a checkpoint, which is refused",
    "Train.learning_rate_batch_size": "for a warning before training, not for training",
    "Train.use_bfloat16": "float32 everywhere but on TPU, where this version does not train",
    "Eval.metrics_set": "there is only one",
    "InputReader.label_map_path": "the data's artifact brings it",
    "InputReader.input_path": "the data's artifact brings it",
}
# Who reads the fields of a class, all but those above. Fields that hold other classes are read on the way to these.
READ_IN = {
    top.TrainEvalConfig: ("train_loop", "input_pipeline"),
    top.Train: ("train_loop", "input_pipeline"),
    top.Eval: ("train_loop",),
    top.InputReader: ("train_loop", "input_pipeline"),
    model.Ssd: ("ssd", "losses", "detector", "postprocess"),
    model.MultiscaleAnchorGenerator: ("anchors",),
    model.FasterRcnnBoxCoder: ("box_coder",),
    model.ArgMaxMatcher: ("matcher",),
    model.Loss: ("losses",),
    model.SigmoidFocal: ("losses",),
    model.WeightedSigmoid: ("losses",),
    model.WeightedSmoothL1: ("losses",),
    model.WeightedL2: ("losses",),
    model.PostProcessing: ("postprocess",),
    model.BatchNonMaxSuppression: ("postprocess",),
    network.FixedShapeResizer: ("preprocess",),
    network.FeatureExtractor: ("ssd", "mobilenet_v2"),
    network.Fpn: ("ssd",),
    network.WeightSharedConvolutionalBoxPredictor: ("ssd",),
    network.ConvHyperparams: ("conv_layers",),
    network.BatchNorm: ("conv_layers",),
    **dict.fromkeys(get_args(network.Regularizer), ("conv_layers",)),
    **dict.fromkeys(get_args(network.Initializer), ("conv_layers",)),
    **dict.fromkeys((*get_args(optimizers.LearningRate), optimizers.LearningRateStep), ("learning_rates",)),
    **dict.fromkeys(get_args(optimizers.Optimizer), ("optimizers",)),
    optimizers.ClipByGlobalNorm: ("gradients",),
    optimizers.ClipEachThenGlobalNorm: ("gradients",),
    optimizers.MovingAverage: ("moving_average",),
    **dict.fromkeys(get_args(augmentations.Augmentation), ("augment",)),
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
    both = changed(tiny_config, {"train.fine_tune_checkpoint": "ckpt-0", "train_input.num_epochs": 3})
    with pytest.raises(InputError, match=r"fine_tune_checkpoint: got 'ckpt-0'.*num_epochs: got 3") as caught:
        check_trainable(both)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", [320, 313, 96, 32])
def test_sides_whose_maps_double_back_exactly_are_trained(tiny_config, changed, side):
    assert untrained_parts(changed(tiny_config, {"model.image_resizer.height": side})) == ()


def test_another_side_is_refused_with_the_nearest_that_works(tiny_config, changed):
    (part,) = untrained_parts(changed(tiny_config, {"model.image_resizer.height": 300}))
    assert "as 288 and all multiples of 32" in part  # 300 / 8 = 37.5 -> 38, / 16 -> 19, / 32 -> 10: 19 is not 2 * 10


def test_of_the_presets_those_with_this_network_are_trained():
    trained = {preset.name for preset in list_presets() if not untrained_parts(preset.config)}
    assert trained == {"ssd_mobilenet_v2_fpnlite_320x320", "ssd_mobilenet_v2_fpnlite_640x640"}


def test_asking_takes_no_tensorflow():
    code = "import sys; import detloom.trainer_module.supported; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=TRAINER_MODULE.parent, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
