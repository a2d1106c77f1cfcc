"""Faster and Mask R-CNN against the Object Detection API's; bounds as in test_parity.py.

Sampling is random in both systems. The values were made with settings that sample every anchor and every proposal, so
that nothing is random.

oneDNN chooses its kernels by the processor, and batch norm over few values in training mode enlarges their rounding, on
some processors beyond the bounds. A process of its own, without oneDNN, computes the training step.
`python test_faster_rcnn_parity.py VALUES OUTPUT` is this process.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, MASKS, NUM_DETECTIONS, SCORES
from detloom.trainer_module.detectors.faster_rcnn.losses import detection_targets
from detloom.trainer_module.detectors.faster_rcnn.proposals import select_proposals

NETWORK, STORED = 2e-3, 1e-5
STEP = 2.0**-12  # of the stored predictions
OUTPUTS = {  # by our output, what the reference calls it
    "rpn_offsets_BA4": "rpn_box_encodings",
    "objectness_logits_BA2": "rpn_objectness_predictions_with_background",
    "offsets_BPQ4": "refined_box_encodings",
    "class_logits_BPC": "class_predictions_with_background",
}
MASK_OUTPUTS = {"mask_logits_BNhwL": "mask_predictions"}
LOSSES = {
    "rpn_objectness_loss": "Loss/RPNLoss/objectness_loss",
    "rpn_box_loss": "Loss/RPNLoss/localization_loss",
    "class_loss": "Loss/BoxClassifierLoss/classification_loss",
    "box_loss": "Loss/BoxClassifierLoss/localization_loss",
}


MASK_LOSSES = {"mask_loss": "Loss/BoxClassifierLoss/mask_loss"}


def worst(ours, theirs) -> float:
    assert np.shape(ours) == np.shape(theirs)
    return float(np.max(np.abs(np.asarray(ours, np.float64) - theirs), initial=0.0))


def relative(ours, theirs) -> float:
    return abs(float(ours) - theirs) / max(abs(theirs), 1e-6)


def column_of(output: str, mode: str) -> str:
    return f"{'boxes' if 'offsets' in output else 'classes'}, {mode}"


def has_masks(reference) -> bool:
    return reference.config.model.number_of_stages == 3


def losses_of(reference) -> dict[str, str]:
    return {**LOSSES, **(MASK_LOSSES if has_masks(reference) else {})}


@pytest.fixture(scope="module")
def reference(two_stage_reference):
    return two_stage_reference


@pytest.fixture
def record(reference, record_of) -> Callable[..., None]:
    return lambda column, error: record_of(reference.name, reference.source, column, error)


def batch_of(reference) -> dict[str, tf.Tensor]:
    return {"image": reference.prepared()[0], **reference.batch()}


@pytest.fixture(scope="module")
def batch(reference) -> dict[str, tf.Tensor]:
    """The prepared images and their ground truth."""
    return batch_of(reference)


def stored_predictions(reference, mode: str) -> dict[str, np.ndarray]:
    outputs = {**OUTPUTS, **(MASK_OUTPUTS if has_masks(reference) else {})}
    stored = {ours: np.float32(reference._small[f"predictions_{mode}/{name}"] * STEP) for ours, name in outputs.items()}
    if has_masks(reference):  # the reference has the classes first
        stored["mask_logits_BNhwL"] = stored["mask_logits_BNhwL"].transpose(0, 1, 3, 4, 2)
    return stored


def thinned(outputs, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows of our outputs that are stored."""
    arrays = {name: np.asarray(outputs[name]) for name in stored}
    strides = {name: -(-array.shape[1] // stored[name].shape[1]) for name, array in arrays.items()}
    return {name: array[:, :: strides[name]] for name, array in arrays.items()}


def assert_network_matches(reference, record, outputs, mode: str, name: str) -> None:
    stored, proposals = stored_predictions(reference, mode), reference.part(f"proposals_{mode}")
    np.testing.assert_array_equal(outputs["num_proposals_B"], proposals["num"])
    assert worst(outputs["proposals_yxyx_rel_BP4"], proposals["boxes"]) < NETWORK
    answers = thinned(outputs, stored)
    errors = {output: worst(answers[output], stored[output]) for output in stored}
    for output, error in errors.items():
        record(column_of(output, name), error)
    assert max(errors.values()) < NETWORK, errors


def test_preprocessing_matches_reference(reference, record, batch):
    stored, true_shapes, stride = reference.preprocessed()
    error = worst(batch["image"][:, ::stride, ::stride], stored)
    record("preprocessed", error)
    assert error < NETWORK
    np.testing.assert_array_equal(batch["true_hw"], true_shapes[:, :2])


def test_anchors_match_reference(reference, record):
    stored, stride = reference.anchors()
    error = worst(reference.detector.anchors_yxyx_px_A4[::stride], stored)
    record("anchors", error)
    assert error < STORED


def test_inference_mode_matches_reference(reference, record, batch):
    outputs = reference.detector.forward(batch, training=False)
    assert_network_matches(reference, record, outputs, "eval", "inference")


def take_training_step(reference) -> dict[str, Any]:
    """Return outputs, losses, gradients and moved statistics of one step, as arrays and numbers."""
    detector, batch = reference.detector, batch_of(reference)
    network = detector.network
    with tf.GradientTape() as tape:
        outputs = detector.forward(batch, training=True)
        losses = detector.losses(outputs, batch)
        penalty = tf.add_n(network.losses) if network.losses else tf.constant(0.0)
        total = tf.add_n([*losses.values(), penalty])
    values = [each.value for each in network.trainable_variables]
    gradients = tape.gradient(total, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
    keys = {id(each): reference.keys[name] for name, each in variables.items()}
    pairs = zip(network.trainable_variables, gradients, strict=True)
    return {
        "outputs": {name: np.asarray(each) for name, each in outputs.items()},
        "losses": {name: float(each) for name, each in losses.items()},
        "penalty": float(penalty),
        "gradient_norm": float(tf.linalg.global_norm(gradients)),
        "norms": {keys[id(variable)]: float(tf.norm(gradient)) for variable, gradient in pairs},
        "moved_means": {keys[id(each)]: float(np.mean(each)) for each in variables.values()},
    }


@pytest.fixture(scope="module")
def training_step(reference, tmp_path_factory) -> SimpleNamespace:
    output = tmp_path_factory.mktemp("training_step") / "step.pickle"
    without: Mapping[str, str] = {"TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(reference.path), str(output)]
    done = subprocess.run(command, env={**os.environ, **without}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(**pickle.loads(output.read_bytes()))


def test_training_mode_matches_reference(reference, record, training_step):
    assert_network_matches(reference, record, training_step.outputs, "train", "training")


def test_losses_gradients_and_statistics_of_a_step_match_reference(reference, record, training_step):
    expected = reference.summary["losses_train_mode"]
    errors = {
        name: relative(training_step.losses[name], expected[there]) for name, there in losses_of(reference).items()
    }
    assert max(errors.values()) < NETWORK, errors
    assert relative(training_step.penalty, expected["Loss/regularization_loss"]) < STORED
    gradient_error = relative(training_step.gradient_norm, expected["grad_global_norm"])
    record("gradients", gradient_error)
    assert gradient_error < NETWORK
    means, norms = reference.by_key("moved_means"), reference.by_key("gradient_norms")
    moved = training_step.moved_means
    record("statistics", max(abs(moved[key] - mean) / max(1.0, abs(mean)) for key, mean in means.items()))
    assert {key: moved[key] for key in means} == pytest.approx(means, rel=NETWORK, abs=NETWORK)
    ours = {key: training_step.norms[key] for key in norms}
    assert ours == pytest.approx(norms, rel=0.01, abs=1e-4 * max(norms.values()))


# --- from stored inputs -----------------------------------------------------------------------------------------------


@pytest.fixture
def stored_outputs(reference) -> dict[str, tf.Tensor]:
    """The reference's outputs in inference mode, under our names; masks are those of its detections."""
    proposals = reference.part("proposals_eval")
    outputs = {
        **{name: tf.constant(value) for name, value in stored_predictions(reference, "eval").items()},
        "proposals_yxyx_rel_BP4": tf.constant(proposals["boxes"]),
        "num_proposals_B": tf.constant(proposals["num"]),
    }
    if has_masks(reference):
        boxes, num = (reference.part("detections")[name] for name in ("detection_boxes", "num_detections"))
        outputs |= {"mask_boxes_yxyx_rel_BN4": tf.constant(boxes), "num_masks_B": tf.cast(num, tf.int32)}
    return outputs


def test_proposals_from_stored_outputs_match_reference(reference, batch, stored_outputs):
    detector, stored = reference.detector, reference.part("proposals_of_stored")
    found = select_proposals(
        detector.config,
        detector.anchors_yxyx_px_A4,
        stored_outputs["rpn_offsets_BA4"],
        stored_outputs["objectness_logits_BA2"],
        batch["true_hw"],
    )
    np.testing.assert_array_equal(found.num_B, stored["num"])
    assert worst(found.boxes_yxyx_px_BP4 / 128, stored["boxes"]) < STORED
    assert worst(found.scores_BP, stored["scores"]) < STORED


def assert_targets_match(targets, stored, prefix: str, record) -> None:
    num_channels = max(stored[f"{prefix}cls_targets"].shape[-1], 2)
    channels = np.asarray(tf.one_hot(targets.channel_BA, num_channels))
    record("matches", np.sum(targets.match_BA.numpy() != stored[f"{prefix}match"]))
    record("box targets", worst(targets.offsets_BA4, stored[f"{prefix}reg_targets"]))
    np.testing.assert_array_equal(targets.match_BA, stored[f"{prefix}match"])
    shown = channels[..., 1:] if prefix else channels
    np.testing.assert_array_equal(shown, stored[f"{prefix}cls_targets"])
    np.testing.assert_array_equal(targets.box_weight_BA, stored[f"{prefix}reg_weights"])
    np.testing.assert_array_equal(targets.class_weight_BA, stored[f"{prefix}cls_weights"][..., 0])
    np.testing.assert_allclose(targets.offsets_BA4, stored[f"{prefix}reg_targets"], atol=STORED)


def test_targets_match_reference(reference, record, batch, stored_outputs):
    detector, stored = reference.detector, reference.part("targets")
    assert_targets_match(detector.proposal_targets(stored_outputs, batch), stored, "rpn_", record)
    proposals_px = stored_outputs["proposals_yxyx_rel_BP4"] * 128.0
    boxes, classes, weights = batch["boxes_yxyx_rel"] * 128.0, batch["class_indices"], batch["box_weights"]
    assert_targets_match(detection_targets(proposals_px, boxes, classes, weights), stored, "", record)
    assert (stored["match"] >= 0).any()
    assert (stored["match"] == -1).any()


def test_losses_from_stored_outputs_match_reference(reference, record, batch, stored_outputs):
    losses = reference.detector.losses(stored_outputs, batch)
    expected = reference.summary["losses_eval_mode"]
    error = max(relative(losses[name], expected[there]) for name, there in losses_of(reference).items())
    record("losses", error)
    assert error < STORED


def test_detections_from_stored_outputs_match_reference(reference, record, batch, stored_outputs):
    stored = reference.part("detections")
    detections = reference.detector.detections(stored_outputs, batch["true_hw"])
    if has_masks(reference):
        detections = reference.detector.detections({**stored_outputs, **detections}, batch["true_hw"])
        record("detections", worst(detections[MASKS], stored["detection_masks"]))
        assert worst(detections[MASKS], stored["detection_masks"]) < STORED
    error = max(
        worst(detections[BOXES], stored["detection_boxes"]), worst(detections[SCORES], stored["detection_scores"])
    )
    record("detections", error)
    is_detection = np.arange(detections[CLASSES].shape[1]) < stored["num_detections"][:, None]
    np.testing.assert_array_equal(detections[NUM_DETECTIONS], stored["num_detections"])
    # The reference counts classes from 0.
    np.testing.assert_array_equal(detections[CLASSES] - np.float32(is_detection), stored["detection_classes"])
    assert error < STORED


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from conftest import SMALL, Reference

    values, output = map(Path, sys.argv[1:])
    output.write_bytes(pickle.dumps(take_training_step(Reference(values, SMALL, output.parent))))


if __name__ == "__main__":
    main()
