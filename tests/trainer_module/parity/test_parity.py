"""Our detectors against the Object Detection API's; the references and the table of errors are in conftest.py.

Bounds: 2e-3 through a network (the reference differs from itself by up to 8e-4, with oneDNN on and off), 1e-5 for what
is computed from stored inputs, none for matches.
"""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.trainer_module.losses import detection_losses
from detloom.trainer_module.postprocess import build_detections
from detloom.trainer_module.preprocess import prepare_image
from detloom.trainer_module.targets import Targets, assign_targets

NETWORK = 2e-3
STORED = 1e-5
LOSSES = {"class_loss": "Loss/classification_loss", "box_loss": "Loss/localization_loss"}


def worst(ours, theirs) -> float:
    assert np.shape(ours) == np.shape(theirs)
    return float(np.max(np.abs(np.asarray(ours, np.float64) - theirs), initial=0.0))


def relative(ours, theirs) -> float:
    return abs(float(ours) - theirs) / max(abs(theirs), 1e-6)


def prepared(reference) -> tuple[tf.Tensor, tf.Tensor]:
    """The network's input and its true rows and columns."""
    pictures, true_hw = prepare_image(tf.constant(reference.pictures_BHW3), reference.config.model)
    return pictures, tf.broadcast_to(true_hw, [len(pictures), 2])


def our_targets(reference) -> Targets:
    boxes, classes, weights = (tf.constant(each) for each in reference.padded_groundtruth())
    anchors = reference.detector.anchors_yxyx_rel_A4
    return assign_targets(reference.config.model, anchors, boxes, classes, weights)


def losses_of(reference, offsets, logits) -> dict[str, tf.Tensor]:
    anchors = reference.detector.anchors_yxyx_rel_A4
    return detection_losses(reference.config.model, anchors, our_targets(reference), offsets, logits)


def test_pictures_are_prepared_as_there(reference, record):
    pictures, true_hw = prepared(reference)
    stored, true_shapes, stride = reference.preprocessed()
    record("preprocessed", worst(pictures[:, ::stride, ::stride], stored))
    assert worst(pictures[:, ::stride, ::stride], stored) < NETWORK
    np.testing.assert_array_equal(true_hw, true_shapes[:, :2])


def test_anchors_are_those_of_there(reference, record):
    stored, stride = reference.anchors()
    error = worst(reference.detector.anchors_yxyx_rel_A4[::stride], stored)
    record("anchors", error)
    assert error < STORED


def test_inference_mode_answers_as_there(reference, record):
    offsets, logits, stride = reference.predictions("eval")
    outputs = reference.detector.network(prepared(reference)[0], training=False)
    box_error = worst(outputs["offsets_BA4"][:, ::stride], offsets)
    class_error = worst(outputs["class_logits_BAC"][:, ::stride], logits)
    record("boxes, inference", box_error)
    record("classes, inference", class_error)
    assert max(box_error, class_error) < NETWORK


def test_training_mode_answers_and_learns_as_there(reference, record):
    network = reference.detector.network
    if reference.has_random_training_mode:
        pytest.skip("the stochastic depth of these values is random")
    offsets, logits, stride = reference.predictions("train")
    before = [(each, each.numpy()) for each in network.non_trainable_variables]
    with tf.GradientTape() as tape:
        outputs = network(prepared(reference)[0], training=True)
        losses = losses_of(reference, outputs["offsets_BA4"], outputs["class_logits_BAC"])
        penalty = tf.add_n(network.losses) if network.losses else tf.constant(0.0)
        total = tf.add_n([*losses.values(), penalty])
    gradients = tape.gradient(total, [each.value for each in network.trainable_variables])
    variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
    moved = {reference.keys[name]: float(np.mean(each)) for name, each in variables.items()}
    for variable, value in before:
        variable.assign(value)

    rows = reference.rows_of_several_pixels[::stride]
    box_error = worst(outputs["offsets_BA4"].numpy()[:, ::stride][:, rows], offsets[:, rows])
    class_error = worst(outputs["class_logits_BAC"].numpy()[:, ::stride][:, rows], logits[:, rows])
    record("boxes, training", box_error)
    record("classes, training", class_error)
    expected = reference.summary["losses_train_mode"]
    loss_errors = [relative(losses[name], expected[there]) for name, there in LOSSES.items()]
    penalty_error = relative(penalty, expected["Loss/regularization_loss"])
    gradient_error = relative(tf.linalg.global_norm(gradients), expected["grad_global_norm"])
    record("gradients", gradient_error)
    names = {id(each): name for name, each in variables.items()}
    by_key = reference.by_key("gradient_norms")
    norms = {
        reference.keys[names[id(variable)]]: float(tf.norm(gradient))
        for variable, gradient in zip(network.trainable_variables, gradients, strict=True)
    }
    means = reference.by_key("moved_means")
    has_more_there = reference.config.model.feature_extractor.backbone.startswith("efficientnet")  # its ImageNet head
    if has_more_there:
        ours = set(reference.keys.values())
        means, by_key = (
            {key: value for key, value in values.items() if key in ours or "classification_backbone" not in key}
            for values in (means, by_key)
        )
    if means:
        record("statistics", max(abs(moved[key] - mean) / max(1.0, abs(mean)) for key, mean in means.items()))
    assert max(box_error, class_error) < NETWORK
    assert max(loss_errors) < NETWORK
    assert penalty_error < STORED or (has_more_there and penalty < expected["Loss/regularization_loss"])
    assert gradient_error < NETWORK
    if by_key:
        largest = max(by_key.values())
        assert {key: norms[key] for key in by_key} == pytest.approx(by_key, rel=0.01, abs=1e-4 * largest)
        assert {key: moved[key] for key in means} == pytest.approx(means, rel=NETWORK, abs=NETWORK)


def test_anchors_are_matched_as_there(reference, record):
    targets, stored = our_targets(reference), reference.part("targets")
    num_channels = stored["cls_targets"].shape[-1]
    record("matches", float(np.sum(targets.match_BA.numpy() != stored["match"])))
    record("box targets", worst(targets.offsets_BA4, stored["reg_targets"]))
    np.testing.assert_array_equal(targets.match_BA, stored["match"])
    np.testing.assert_array_equal(tf.one_hot(targets.channel_BA, num_channels), stored["cls_targets"])
    np.testing.assert_array_equal(targets.box_weight_BA, stored["reg_weights"])
    np.testing.assert_array_equal(targets.class_weight_BA, stored["cls_weights"][..., 0])
    np.testing.assert_allclose(targets.offsets_BA4, stored["reg_targets"], atol=STORED)


def test_losses_of_stored_answers_are_those_of_there(reference, record):
    if reference.is_thin:
        pytest.skip("the small file does not hold the whole answers")
    offsets, logits, _ = reference.predictions("eval")
    losses = losses_of(reference, tf.constant(offsets), tf.constant(logits))
    expected = reference.summary["losses_eval_mode"]
    error = max(relative(losses[name], expected[there]) for name, there in LOSSES.items())
    record("losses", error)
    assert error < STORED


def test_detections_of_stored_answers_are_those_of_there(reference, record):
    if reference.is_thin:
        pytest.skip("the small file does not hold the whole answers")
    offsets, logits, _ = reference.predictions("eval")
    stored, model = reference.part("detections"), reference.config.model
    detections = build_detections(
        model,
        reference.detector.anchors_yxyx_rel_A4,
        tf.range(model.num_classes),  # the reference counts from 0
        tf.constant(offsets),
        tf.constant(logits),
        prepared(reference)[1],
    )
    error = max(
        worst(detections[BOXES], stored["detection_boxes"]), worst(detections[SCORES], stored["detection_scores"])
    )
    record("detections", error)
    np.testing.assert_array_equal(detections[CLASSES], stored["detection_classes"])
    np.testing.assert_array_equal(detections[NUM_DETECTIONS], stored["num_detections"])
    assert error < STORED
