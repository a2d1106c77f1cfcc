import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.detector import FasterRcnnBoxCoder
from detloom.schemas.model.losses import (
    HardExampleMiner,
    SigmoidFocal,
    WeightedCiou,
    WeightedGiou,
    WeightedIou,
    WeightedL2,
    WeightedSigmoid,
    WeightedSmoothL1,
    WeightedSoftmax,
)
from detloom.trainer_module.boxes.losses import box_losses, class_losses
from detloom.trainer_module.boxes.targets import Targets
from detloom.trainer_module.detectors.one_stage.losses import detection_losses

pytestmark = pytest.mark.usefixtures("eager")
LN2 = np.log(2)
NAN = np.nan
CODER = FasterRcnnBoxCoder()
ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.2, 0.1, 0.6, 0.4]])

# What the reference was run on: two images, three anchors, three class channels.
LOGITS = [
    [[-1.6, -2.6, -0.5], [0.8, 2.3, 0.2], [-1.1, -1.6, 1.5]],
    [[3.3, 0.5, -2.5], [-1.9, 3.2, 0.4], [-3.5, -0.2, -2.3]],
]
CHANNELS = [[1, 0, -1], [2, -1, 0]]
WEIGHTS = [[1.0, 0.5, 1.0], [1.0, 0.0, 1.0]]
OFFSETS = [
    [[-0.9, -0.7, -1.1, 0.8], [-0.1, -0.9, 0.6, 1.2], [-2.5, -0.4, -1.5, -0.3]],
    [[-1.9, 0.0, -0.1, -0.5], [-1.6, -0.6, -1.6, -2.0], [0.3, -1.7, 1.8, 1.1]],
]
WANTED_OFFSETS = [
    [[-2.0, 0.3, NAN, 0.0], [0.0, -2.0, -0.2, -0.3], [1.0, -1.2, 0.7, -1.1]],
    [[-0.3, -0.8, 1.4, 0.6], [2.4, 0.6, 0.8, 0.8], [-0.6, -0.1, 1.4, -0.4]],
]
# Losses, and sums of the absolute values of their gradients, of each anchor.
REFERENCE_CLASS_LOSSES = [
    (
        WeightedSigmoid(),
        [[3.329622, 1.782392, 2.17265], [6.889186, 0, 4.223434]],
        [[1.476385, 0.884368, 1.235296], [2.51103, 0, 1.511977]],
    ),
    (
        SigmoidFocal(gamma=2.0, alpha=0.25),
        [[0.633319, 0.837015, 0.870287], [3.160996, 0, 0.922968]],
        [[0.39516, 0.570461, 0.76295], [1.513814, 0, 0.447437]],
    ),
    (
        SigmoidFocal(gamma=1.5, alpha=None),
        [[2.522057, 1.232577, 1.306291], [5.92925, 0, 3.558983]],
        [[1.302481, 0.817477, 1.047458], [2.74032, 0, 1.367802]],
    ),
    (
        SigmoidFocal(gamma=0.0, alpha=0.6),
        [[1.866178, 0.750067, 0.86906], [3.271452, 0, 2.395324]],
        [[0.776726, 0.38475, 0.494119], [1.189241, 0, 0.798928]],
    ),
    (  # without a channel to be 1 there is no loss, but a gradient
        WeightedSoftmax(),
        [[2.475231, 0.898415, 0], [5.861883, 0, 3.44785]],
        [[1.831713, 0.834176, 1], [1.994308, 0, 1.936372]],
    ),
    (
        WeightedSoftmax(logit_scale=2.0),
        [[1.705906, 0.675051, 0], [3.16361, 0, 2.083072]],
        [[0.818392, 0.370394, 0.5], [0.957728, 0, 0.875453]],
    ),
]
REFERENCE_BOX_LOSSES = [
    (WeightedL2(), [[1.425, 0.51375, 9.185], [3.33, 0, 2.89]], [[2.9, 0.875, 7.3], [5, 0, 4.4]]),
    (WeightedSmoothL1(), [[1.42, 0.9625, 5.34], [3.02, 0, 2.585]], [[2.8, 1.45, 3.6], [3.8, 0, 3.3]]),
    (WeightedSmoothL1(delta=0.3), [[0.735, 0.445, 2.01], [1.32, 0, 1.14]], [[0.9, 0.5, 1.2], [1.2, 0, 1.2]]),
]


def make_targets(**settings) -> Targets:
    weights = tf.constant(WEIGHTS)
    targets = Targets(tf.zeros([2, 3], tf.int32), tf.constant(WANTED_OFFSETS), tf.constant(CHANNELS), weights, weights)
    return targets._replace(**settings)


def value_and_gradient(function, outputs):
    outputs = tf.constant(outputs)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        value = function(outputs)
    return value, tape.gradient(value, outputs)


@pytest.mark.parametrize(("loss", "values", "gradients"), REFERENCE_CLASS_LOSSES)
def test_class_losses_and_their_gradients_equal_the_reference(loss, values, gradients):
    found, gradient = value_and_gradient(lambda logits: class_losses(loss, logits, make_targets()), LOGITS)
    np.testing.assert_allclose(found, values, atol=5e-6)
    np.testing.assert_allclose(tf.reduce_sum(tf.abs(gradient), axis=-1), gradients, atol=5e-6)


@pytest.mark.parametrize(("loss", "values", "gradients"), REFERENCE_BOX_LOSSES)
def test_box_losses_and_their_gradients_equal_the_reference(loss, values, gradients):
    found, gradient = value_and_gradient(lambda o: box_losses(loss, CODER, ANCHORS, o, make_targets()), OFFSETS)
    np.testing.assert_allclose(found, values, atol=5e-6)
    np.testing.assert_allclose(tf.reduce_sum(tf.abs(gradient), axis=-1), gradients, atol=5e-6)


@pytest.mark.parametrize("logit", [-90.0, -20.0, 20.0, 90.0])
def test_logits_of_any_size_have_a_finite_focal_loss(logit):
    logits = [[[logit, logit, logit]] * 3] * 2
    config = SigmoidFocal(alpha=0.25)
    loss, gradient = value_and_gradient(lambda logits: class_losses(config, logits, make_targets()), logits)
    assert np.isfinite(loss).all()
    assert np.isfinite(gradient).all()
    assert float(loss[0, 0]) == pytest.approx(0.25 * max(-logit, 0) + 2 * 0.75 * max(logit, 0), abs=1e-6)


@pytest.mark.parametrize("loss", [WeightedIou(), WeightedGiou(), WeightedCiou()])
def test_overlap_losses_compare_the_decoded_boxes(loss):
    # The right edge of a box 5 / 10 * 0.5 further right: offset x 2.5 and ln 1.5 * 5 of the width
    wanted = tf.constant([[[0.0, 2.5, 0.0, 5 * np.log(1.5)], [0.0] * 4, [0.0] * 4]], tf.float32)
    weights = tf.constant([[1.0, 0.5, 0.0]])
    targets = Targets(tf.zeros([1, 3], tf.int32), wanted, tf.zeros([1, 3], tf.int32), weights, weights)
    found = box_losses(loss, CODER, ANCHORS, tf.zeros([1, 3, 4]), targets)
    if isinstance(loss, WeightedIou | WeightedGiou):
        np.testing.assert_allclose(found, [[1 / 3, 0, 0]], atol=1e-6)  # 2 of 3 thirds; the hull adds nothing
    else:  # centres 0.125 apart, hull 0.5 x 0.75
        v = 4 / np.pi**2 * (np.arctan(1.5) - np.arctan(1)) ** 2
        penalty = 0.125**2 / (0.5**2 + 0.75**2) + v * v / (1 / 3 + v)
        np.testing.assert_allclose(found, [[1 / 3 + penalty, 0, 0]], atol=1e-6)


def test_an_offset_that_overflows_without_a_target_box_does_not_cause_nan():
    weights = tf.zeros([1, 3])
    targets = Targets(tf.zeros([1, 3], tf.int32), tf.zeros([1, 3, 4]), tf.zeros([1, 3], tf.int32), weights, weights)
    loss, gradient = value_and_gradient(
        lambda o: box_losses(WeightedGiou(), CODER, ANCHORS, o, targets), [[[1e4] * 4] * 3]
    )
    np.testing.assert_array_equal(loss, np.zeros([1, 3]))
    np.testing.assert_array_equal(gradient, np.zeros([1, 3, 4]))


def make_simple_targets() -> Targets:
    """Two anchors of one image: the first foreground of class 0 of one, the second background."""
    foreground = tf.constant([[1.0, 0.0]])
    return Targets(
        tf.constant([[0, -1]]), tf.zeros([1, 2, 4]), tf.constant([[0, -1]]), foreground, class_weight_BA=tf.ones([1, 2])
    )


@pytest.mark.parametrize(
    ("settings", "class_loss", "box_loss"),
    [
        ({}, 2 * LN2, 4 * 0.5),  # both anchors; four offsets, each wrong by 1, of the foreground anchor
        ({"normalize_loc_loss_by_codesize": True}, 2 * LN2, 0.5),
        ({"loss.classification_weight": 3.0, "loss.localization_weight": 5.0}, 6 * LN2, 10.0),
    ],
)
def test_losses_are_sums_with_weights(zoo_config, changed, settings, class_loss, box_loss):
    plain = {"normalize_loc_loss_by_codesize": False, "loss.classification_loss": WeightedSigmoid()}
    config = changed(zoo_config.model, {**plain, **settings})
    losses = detection_losses(config, ANCHORS[:2], make_simple_targets(), tf.ones([1, 2, 4]), tf.zeros([1, 2, 1]))
    np.testing.assert_allclose([losses["class_loss"], losses["box_loss"]], [class_loss, box_loss], rtol=1e-6)


def test_two_matches_halve_both_losses_if_they_are_normalized_by_them(zoo_config, changed):
    targets = make_simple_targets()._replace(box_weight_BA=tf.ones([1, 2]))
    outputs = (tf.ones([1, 2, 4]), tf.zeros([1, 2, 1]))
    normalized, plain = (
        detection_losses(
            changed(zoo_config.model, {"normalize_loss_by_num_matches": flag}), ANCHORS[:2], targets, *outputs
        )
        for flag in (True, False)
    )
    for name in ("class_loss", "box_loss"):
        np.testing.assert_allclose(normalized[name], plain[name] / 2, rtol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"loss.classification_loss": WeightedSoftmax(), "loss.localization_loss": WeightedCiou()},
            marks=pytest.mark.slow,
        ),
        {"loss.classification_loss": WeightedSigmoid(), "loss.hard_example_miner": HardExampleMiner()},
    ],
)
def test_the_fused_gradient_is_the_derivative(zoo_config, changed, settings):
    config, outputs = changed(zoo_config.model, settings), [tf.constant(OFFSETS), tf.constant(LOGITS)]
    targets = make_targets(offsets_BA4=tf.zeros([2, 3, 4]))

    def total(outputs):
        losses = detection_losses(config, ANCHORS, targets, *outputs)
        return 3 * losses["class_loss"] + 5 * losses["box_loss"]  # each is chained with its own factor

    with tf.GradientTape() as tape:
        tape.watch(outputs)
        loss = total(outputs)
    gradients = tape.gradient(loss, outputs)
    for i, gradient in enumerate(gradients):
        step = np.zeros(outputs[i].shape, np.float32)
        step[0, 1, 2] = 1e-2
        ends = [total([*outputs[:i], outputs[i] + sign * step, *outputs[i + 1 :]]) for sign in (1, -1)]
        assert float(gradient[0, 1, 2]) == pytest.approx(float(ends[0] - ends[1]) / 2e-2, rel=1e-2, abs=1e-3)
