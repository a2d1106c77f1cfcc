"""Features and layers of backbones against values of the Object Detection API, and against keras.applications."""

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


def build(backbone, image_hw=(64, 96), levels=(2, 3, 4, 5), **settings) -> keras.Model:
    settings = {"neck": Fpn(), "conv_hyperparams": HYPERPARAMS, **settings}
    image = keras.Input((*image_hw, 3))
    features = BUILDERS[backbone](FeatureExtractor(backbone=backbone, **settings), image, freeze_batchnorm=False)
    return keras.Model(image, {level: features[level] for level in levels})


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
def test_features_and_penalty_equal_the_reference(corner_means, backbone, settings, in_inference, in_training, penalty):
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
