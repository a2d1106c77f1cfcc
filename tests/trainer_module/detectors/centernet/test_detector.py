import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, NUM_DETECTIONS, OUTPUT_NAMES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNet, PredictionHeadParams
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of

TWO = LabelMap.from_names(["red", "green"])


@pytest.fixture(scope="module")
def config(center_net_configs) -> CenterNet:
    """Small and quick to train."""
    base = center_net_configs["mobilenet_v2"]
    head = PredictionHeadParams(num_filters=(16,), kernel_sizes=(3,))
    extractor = dataclasses.replace(
        base.feature_extractor, depth_multiplier=0.1, channel_means=(), channel_stds=(), bgr_ordering=False
    )
    centers = dataclasses.replace(base.object_center_params, center_head_params=head, min_box_overlap_iou=0.7)
    return dataclasses.replace(base, feature_extractor=extractor, object_center_params=centers)


@pytest.fixture(scope="module")
def detector(config) -> Detector:
    keras.utils.set_random_seed(0)
    return build_detector(config, TWO)


@pytest.fixture(scope="module")
def batch(config) -> dict[str, tf.Tensor]:
    """Four images with a red and a green square on grey."""
    random = np.random.default_rng(0)
    images = np.full((4, 96, 96, 3), 128, np.uint8)
    boxes = np.zeros((4, 3, 4), np.float32)
    for i in range(4):
        for k in range(2):
            top, left = random.integers(0, 28), 48 * k + random.integers(0, 28)
            images[i, top : top + 20, left : left + 20] = [255 * (1 - k), 255 * k, 0]
            boxes[i, k] = np.array([top, left, top + 20, left + 20]) / 96
    prepared, true_hw = family_of(config).preprocessing.prepare(images)
    return {
        "image": prepared,
        "true_hw": tf.tile(true_hw[tf.newaxis], [4, 1]),
        "boxes_yxyx_rel": tf.constant(boxes),
        "class_indices": tf.constant([[0, 1, -1]] * 4),
    }


def test_a_detector_describes_itself(detector):
    assert detector.describe() == "a heat map of 24 x 24 cells"
    assert detector.loss_names == ("class_loss", "size_loss", "offset_loss")


def test_losses_have_the_declared_names(detector, batch):
    assert tuple(detector.losses(detector.forward(batch, training=False), batch)) == detector.loss_names


def test_detections_have_the_shapes_of_the_interface(detector, batch):
    found = detector.detect(batch["image"], batch["true_hw"])
    assert set(found) == set(OUTPUT_NAMES)
    assert found[BOXES].shape == (4, 20, 4)
    assert found[NUM_DETECTIONS].shape == (4,)


@pytest.mark.slow  # XLA takes its time with MobileNet; the losses alone compile in test_centernet_losses.py
def test_a_training_step_compiles_under_xla_and_gives_the_eager_loss(detector, batch):
    def step() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = tf.add_n(list(detector.losses(detector.forward(batch, training=True), batch).values()))
        return loss, tape.gradient(loss, detector.network.trainable_variables)

    eager, _ = step()
    compiled, gradients = tf.function(step, jit_compile=True)()
    assert compiled.numpy() == pytest.approx(eager.numpy(), rel=1e-3)
    assert all(np.isfinite(gradient.numpy()).all() for gradient in gradients)


@pytest.mark.slow
def test_training_lowers_the_loss(detector, batch):
    """Only neck and heads are trained, which takes a tenth of the time."""
    optimizer = keras.optimizers.Adam(1e-2)
    variables = [each for each in detector.network.trainable_variables if each.path.startswith(("neck_", "head_"))]

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.add_n(list(detector.losses(detector.forward(batch, training=True), batch).values()))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    losses = [float(step()) for _ in range(30)]
    assert np.mean(losses[-3:]) < losses[0] / 3
