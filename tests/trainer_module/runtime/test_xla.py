"""The training step of every family compiles with XLA, as required on TPU, and gives the loss of the eager step."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import SsdAnchorGenerator
from detloom.schemas.model.losses import HardExampleMiner, WeightedCiou, WeightedSigmoid, WeightedSoftmax
from detloom.schemas.model.network import ExtraFeatureLayers
from detloom.trainer_module.detectors.families import build_detector

LABEL_MAP = LabelMap(((1, "cat"), (2, "dog"), (3, "owl")))
EXTRACTOR, HEAD = "feature_extractor", "box_predictor"
PLAIN_SSD = {
    f"{EXTRACTOR}.neck": ExtraFeatureLayers(num_layers=3),
    "anchor_generator": SsdAnchorGenerator(num_layers=3, aspect_ratios=(1.0, 2.0)),
    "add_background_class": True,
    "loss.classification_loss": WeightedSoftmax(),
    "loss.hard_example_miner": HardExampleMiner(num_hard_examples=20, max_negatives_per_positive=3),
}
FAMILIES = {
    "mobilenet_v2_fpnlite": {},  # test_train_step.py also compiles this detector
    "mobilenet_v2_fpnlite_other_losses": {
        "loss.classification_loss": WeightedSigmoid(),
        "loss.localization_loss": WeightedCiou(),
        "matcher.force_match_for_each_row": True,
    },
    "mobilenet_v1_fpn": {
        f"{EXTRACTOR}.backbone": "mobilenet_v1",
        f"{EXTRACTOR}.use_depthwise": False,
        f"{HEAD}.use_depthwise": False,
        f"{HEAD}.share_prediction_tower": False,
    },
    "mobilenet_v2": PLAIN_SSD,
}


def make_batch(image_hw):
    rng = np.random.default_rng(1)
    low, size = rng.uniform(0, 0.5, (2, 2, 4, 2))
    return {
        "image": tf.constant(rng.uniform(-1, 1, (2, *image_hw, 3)), tf.float32),
        "boxes_yxyx_rel": tf.constant(np.concatenate([low, low + 0.1 + 0.8 * size], axis=-1), tf.float32),
        "class_indices": tf.constant([[0, 2, -1, -1], [1, -1, -1, -1]]),
        "true_hw": tf.constant([[*image_hw]] * 2),
    }


def losses_and_gradients(detector, batch):
    variables = detector.network.trainable_variables
    with tf.GradientTape() as tape:
        losses = detector.losses(detector.forward(batch, training=True), batch)
        loss = tf.add_n(list(losses.values()))
    return losses, tape.gradient(loss, variables)


def check_compiles(config):
    detector = build_detector(config, LABEL_MAP)
    batch = make_batch(detector.network.input_shape[1:3])
    before = [variable.numpy() for variable in detector.network.non_trainable_variables]
    eager, _ = losses_and_gradients(detector, batch)
    for variable, value in zip(detector.network.non_trainable_variables, before, strict=True):
        variable.assign(value)
    compiled = tf.function(lambda batch: losses_and_gradients(detector, batch), jit_compile=True)
    losses, gradients = compiled(batch)
    for name, value in eager.items():
        np.testing.assert_allclose(losses[name], value, rtol=2e-3, err_msg=name)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=family, marks=pytest.mark.slow if settings else pytest.mark.nightly)
        for family, settings in FAMILIES.items()
    ],
)  # a minute of compilation each
def test_training_step_compiles_and_gives_the_eager_loss(small_config, changed, settings):
    check_compiles(changed(small_config.model, settings))
