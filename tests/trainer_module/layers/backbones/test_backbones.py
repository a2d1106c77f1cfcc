"""Backbones: features against values of the Object Detection API and keras.applications, channels, and settings."""

from dataclasses import replace
from zlib import crc32

import keras
import numpy as np
import pytest

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.layers.backbones.efficientnet import build_efficientnet
from detloom.trainer_module.layers.backbones.mobilenet_v1 import build_mobilenet_v1
from detloom.trainer_module.layers.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.layers.backbones.resnet_v1 import build_resnet_v1
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=3e-4),
    initializer=TruncatedNormalInitializer(stddev=0.05),
    activation="RELU",
    batch_norm=BatchNorm(decay=0.9, scale=True, epsilon=0.01),
)
FPNLITE = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config.model.feature_extractor
MOBILENET_V2 = {"min_depth": FPNLITE.min_depth, "use_depthwise": True, "conv_hyperparams": FPNLITE.conv_hyperparams}
EFFICIENTNET = find_preset("efficientdet_d0").config.model.feature_extractor
BUILDERS = {
    "mobilenet_v1": build_mobilenet_v1,
    "mobilenet_v2": build_mobilenet_v2,
    "resnet50_v1": build_resnet_v1,
    "efficientnet-b0": build_efficientnet,
}
OVERRIDE = {"override_base_feature_extractor_hyperparams": True}
PLAIN_SSD = {"neck": ExtraFeatureLayers(), "depth_multiplier": 0.5, "use_explicit_padding": True}


def build(backbone, image_hw=(64, 96), levels=(2, 3, 4, 5), *, freeze_batchnorm=False, **settings) -> keras.Model:
    settings = {"neck": Fpn(), "conv_hyperparams": HYPERPARAMS, **settings}
    image = keras.Input((*image_hw, 3))
    config = FeatureExtractor(backbone=backbone, **settings)
    features = BUILDERS[backbone](config, image, freeze_batchnorm=freeze_batchnorm)
    return keras.Model(image, {level: features[level] for level in levels})


# --- weights and an image that any program can make again: few numbers then say what a reference's network gave -------


def noise(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values between 0 and 1 that depend only on the name."""
    steps = np.arange(np.prod(shape)) + crc32(name.encode()) % 1000
    return (np.sin(steps * 12.9898) * 43758.5453 % 1).reshape(shape)


def made_value(layer: str, variable: str, shape: tuple[int, ...]) -> np.ndarray:
    values = noise(f"{layer}/{variable}", shape)
    match variable:
        case "gamma" | "moving_variance":
            return 0.5 + values
        case "beta" | "moving_mean":
            return 0.2 * values - 0.1
    fan_in = shape[0] * shape[1] * (1 if variable == "depthwise_kernel" else shape[2])
    return (2 * values - 1) * np.sqrt(6 / fan_in)  # He's variance


def corner_means(network: keras.Model, *, training: bool) -> dict[int, list[float]]:
    """Return, by level, the mean over the channels in the first and the last cell."""
    for layer in network.layers:
        for variable in layer.weights:
            depthwise = isinstance(layer, keras.layers.DepthwiseConv2D) and variable.name == "kernel"
            name = "depthwise_kernel" if depthwise else variable.name
            variable.assign(made_value(layer.name, name, tuple(variable.shape)))
    image = 2 * noise("image", (2, *network.input_shape[1:])) - 1
    features = network(image.astype(np.float32), training=training)
    return {
        level: [float(feature[0, 0, 0].numpy().mean()), float(feature[1, -1, -1].numpy().mean())]
        for level, feature in features.items()
    }


@pytest.mark.parametrize(
    ("backbone", "settings", "in_inference", "in_training", "penalty"),
    [
        (
            "mobilenet_v1",
            {"depth_multiplier": 0.75, "use_depthwise": True},
            {2: [0.316243, 0.151544], 3: [0.488984, 0.308195], 4: [0.327455, 0.250046], 5: [0.483315, 0.281371]},
            {2: [0.329253, 0.335898], 3: [0.303256, 0.288557], 4: [0.279557, 0.406215], 5: [0.429105, 0.468755]},
            None,
        ),
        (
            "mobilenet_v1",
            {"image_hw": (64, 100), "levels": (4, 5), **PLAIN_SSD, **OVERRIDE},
            {4: [0.715759, 0.364612], 5: [0.577571, 0.437319]},
            {4: [0.375545, 0.449784], 5: [0.398905, 0.346378]},
            0.8110846,
        ),
        (
            "mobilenet_v2",
            MOBILENET_V2,
            {2: [-0.520829, -0.239135], 3: [0.103911, 0.262565], 4: [-0.669579, -0.439181], 5: [1.46248, 1.48717]},
            {2: [-0.382907, -0.139398], 3: [0.235132, 0.0978363], 4: [-0.108862, -0.0101099], 5: [0.43195, 0.398132]},
            None,
        ),
        (
            "mobilenet_v2",
            {"image_hw": (64, 100), "levels": (4, 5), **MOBILENET_V2, **PLAIN_SSD},
            {4: [1.85753, 1.60721], 5: [1.66182, 1.49853]},
            {4: [0.395032, 0.294553], 5: [0.329933, 0.371325]},
            0.3438951,
        ),
        pytest.param(
            "resnet50_v1",
            {"depth_multiplier": 0.5},
            {2: [2.18332, 1.96776], 3: [8.98797, 13.7954], 4: [160.687, 221.17], 5: [664.259, 774.044]},
            {2: [1.0884, 1.00455], 3: [1.15102, 1.05969], 4: [1.48174, 1.42399], 5: [0.988274, 1.00312]},
            None,
            marks=pytest.mark.nightly,
        ),
        (
            "resnet50_v1",
            {"depth_multiplier": 0.25, **OVERRIDE},
            None,
            {2: [0.61071, 1.44408], 3: [0.690941, 1.50718], 4: [1.1843, 1.84668], 5: [0.978098, 1.16113]},
            1.9736934,
        ),
    ],
)
def test_features_and_penalty_equal_the_reference(backbone, settings, in_inference, in_training, penalty):
    network = build(backbone, **settings)
    for training, expected in ((False, in_inference), (True, in_training)):
        if expected is not None:
            means = corner_means(network, training=training)
            assert means == {level: pytest.approx(values, rel=1e-3) for level, values in expected.items()}
    if penalty is not None:
        assert float(sum(network.losses)) == pytest.approx(penalty, rel=1e-5)


@pytest.mark.nightly  # two whole networks; the features also equal the reference
@pytest.mark.parametrize(
    ("backbone", "settings", "application", "last", "channels"),
    [
        ("mobilenet_v1", {}, "MobileNet", None, (128, 256, 512, 1024)),
        ("mobilenet_v2", MOBILENET_V2, "MobileNetV2", None, (24, 32, 96, 1280)),
        # 65 x 97 leaves the first convolution as 33 x 49: 'SAME' pads odd sizes by one at each side, as theirs does.
        ("resnet50_v1", {"image_hw": (65, 97)}, "ResNet50", None, (256, 512, 1024, 2048)),
        (
            "efficientnet-b0",
            {"neck": EFFICIENTNET.neck, "conv_hyperparams": EFFICIENTNET.conv_hyperparams},
            "EfficientNetB0",
            "block7a_project_bn",
            (24, 40, 112, 320),
        ),
    ],
)
def test_layers_and_features_equal_keras_applications(backbone, settings, application, last, channels):
    ours = build(backbone, **settings)
    theirs = getattr(keras.applications, application)(include_top=False, weights=None, input_shape=ours.input_shape[1:])
    assert tuple(feature.shape[-1] for feature in ours.output.values()) == channels
    generator, layers = np.random.default_rng(0), {layer.name: layer for layer in ours.layers if layer.weights}
    for name, layer in layers.items():
        values = [generator.uniform(0.5, 1.5, value.shape) / 2 for value in theirs.get_layer(name).get_weights()]
        if len(values) > len(layer.weights):  # the biases of their ResNets, which ours lack
            values[1:] = [np.zeros_like(values[1])]
        theirs.get_layer(name).set_weights(values)
        layer.set_weights(values[: len(layer.weights)])
    if last is not None:
        theirs = keras.Model(theirs.inputs, theirs.get_layer(last).output)
    pixels = generator.uniform(0, 1, (1, *ours.input_shape[1:])).astype(np.float32)
    factor = 255.0 if last is not None else 1.0  # theirs divides by it
    np.testing.assert_allclose(ours(pixels)[5], theirs(pixels * factor), rtol=1e-3)


# --- channels and settings --------------------------------------------------------------------------------------------


def channels(network: keras.Model) -> dict[int, int]:
    return {level: feature.shape[-1] for level, feature in network.output.items()}


def layers_of(network: keras.Model, kind: type) -> list[keras.Layer]:
    return [layer for layer in network.layers if isinstance(layer, kind)]


def test_the_depth_multiplier_of_mobilenet_v1_counts_twice_as_in_the_reference():
    # 128 * 0.5 * 0.5 = 32, and so on; the first layer's 32 * 0.25 = 8 and block 1's 64 * 0.25 = 16 are at the minimum.
    network = build("mobilenet_v1", depth_multiplier=0.5, min_depth=16)
    assert channels(network) == {2: 32, 3: 64, 4: 128, 5: 256}
    assert network.get_layer("conv1").filters == 16


def test_a_separable_pyramid_makes_the_last_blocks_of_mobilenet_v1_narrower():
    network = build("mobilenet_v1", depth_multiplier=0.5, use_depthwise=True)
    assert network.get_layer("conv_pw_12").filters == 256  # 512 * 0.5, once
    assert channels(network)[5] == 128


def test_channels_of_mobilenet_v2_are_multiples_of_8_that_lose_at_most_a_tenth():
    # 24 * 0.7 = 16.8 -> 16; 32 * 0.7 = 22.4 -> 24; 96 * 0.7 = 67.2 -> 64; 1280 * 0.7 = 896
    network = build("mobilenet_v2", depth_multiplier=0.7, min_depth=1)
    assert channels(network) == {2: 16, 3: 24, 4: 64, 5: 896}


def test_no_layer_of_mobilenet_v2_is_below_the_minimum_and_one_that_it_widened_has_no_shortcut():
    network = build("mobilenet_v2", depth_multiplier=0.35, min_depth=16)
    names = {layer.name for layer in network.layers}
    assert min(layer.filters for layer in network.layers if type(layer) is keras.layers.Conv2D) == 16
    # as in the reference: 24 * 0.35 rounds to 8 channels, widened to 16; 32 * 0.35 = 11.2 to 16, as the paper says
    assert "block_2_add" not in names
    assert "block_4_add" in names


def test_levels_of_a_resnet_have_their_strides_and_channels():
    network = build("resnet50_v1", (65, 97), depth_multiplier=0.25, min_depth=24)
    shapes = {level: feature.shape[1:] for level, feature in network.output.items()}
    assert shapes == {2: (17, 25, 64), 3: (9, 13, 128), 4: (5, 7, 256), 5: (3, 4, 512)}
    assert network.get_layer("conv2_block1_1_conv").filters == 24  # the minimum; 64 * 0.25 = 16


SWISH = replace(HYPERPARAMS, activation="SWISH", batch_norm=BatchNorm(decay=0.9, scale=False, epsilon=0.01))
MOBILENET_INITIALIZER = {"mean": 0.0, "stddev": 0.09}
RESNET_INITIALIZER = {"scale": 1.0, "mode": "fan_in", "distribution": "truncated_normal"}


@pytest.mark.parametrize(
    ("backbone", "decay", "epsilon", "num_convolutions", "layer", "penalty", "initializer"),
    [
        ("mobilenet_v1", 0.9997, 1e-3, 27, "conv_pw_13", 2e-5, MOBILENET_INITIALIZER),
        ("mobilenet_v2", 0.9997, 1e-3, 52, "Conv1", 2e-5, MOBILENET_INITIALIZER),
        ("resnet50_v1", 0.997, 1e-5, 53, "conv5_block3_2_conv", 1e-4, RESNET_INITIALIZER),
    ],
)
def test_without_the_override_a_backbone_has_the_references_settings(
    backbone, decay, epsilon, num_convolutions, layer, penalty, initializer
):
    network = build(backbone, depth_multiplier=0.1, min_depth=8, freeze_batchnorm=True, conv_hyperparams=SWISH)
    norms = layers_of(network, FusedBatchNorm)
    assert {(norm.momentum, norm.epsilon, norm.scale, norm.center) for norm in norms} == {(decay, epsilon, True, True)}
    assert all(norm.use_moving_statistics for norm in norms)
    assert not layers_of(network, keras.layers.Activation)  # no swish
    assert len(network.losses) == num_convolutions
    conv = network.get_layer(layer)
    assert conv.kernel.regularizer.l2 == pytest.approx(penalty)
    assert conv.kernel_initializer.get_config().items() >= initializer.items()


def test_with_the_override_the_settings_hold_for_the_backbone():
    network = build("mobilenet_v2", depth_multiplier=0.1, conv_hyperparams=SWISH, **OVERRIDE)
    assert {(norm.momentum, norm.scale) for norm in layers_of(network, FusedBatchNorm)} == {(0.9, False)}
    assert len(layers_of(network, keras.layers.Activation)) == 35
    assert len(network.losses) == 52  # one penalty a convolution
    assert network.get_layer("Conv1").kernel.regularizer.l2 == pytest.approx(1.5e-4)
