"""Our detectors against the Object Detection API's; the references and the table of errors are in conftest.py.

Bounds: 2e-3 through a network (the reference differs from itself by up to 8e-4, with oneDNN on and off), 1e-5 for what
is computed from stored inputs, none for matches.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import (
    BOXES,
    CLASSES,
    KEYPOINT_SCORES,
    KEYPOINTS,
    MASKS,
    NUM_DETECTIONS,
    SCORES,
)
from detloom.trainer_module.boxes.targets import assign_targets
from detloom.trainer_module.detectors.faster_rcnn.losses import detection_targets
from detloom.trainer_module.detectors.faster_rcnn.proposals import select_proposals
from detloom.trainer_module.detectors.one_stage.losses import target_settings

NETWORK = 2e-3
STORED = 1e-5
SIDE = 128.0  # of the inputs of two stages, whose boxes are in pixels
# The values were made with the kernels that oneDNN takes on a CPU with AVX-512. With others training mode differs, as
# batch norm over few values enlarges rounding: measured 5e-2 in boxes, 0.54 where it normalizes a single pixel, 3e-3 in
# the gradients' norm, 0.38 in that of a variable. Inference differs by no more than elsewhere.
HAS_SAME_KERNELS = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
TRAINING = NETWORK if HAS_SAME_KERNELS else 0.1
ONE_PIXEL = 0.1 if HAS_SAME_KERNELS else 1.0  # in training mode, see `rows_of_one_pixel`
VARIABLE_NORM = 0.01 if HAS_SAME_KERNELS else 0.5
# In training mode, through a hundred layers: with oneDNN on and off, the reference differs from itself by 1.1e-2, and
# by 6e-3 of its gradient norm. With Hourglass-104 it differs from itself by 5e-3 of the norm, and ours in float32, with
# the kernels of a later TensorFlow, by up to 2.4e-2. Ours in float64 differs by 1.4e-3 in boxes, and 8e-5 of the norm.
UNSTEADY = {"ssd_resnet101_v1_fpn": 0.02, "centernet_hourglass_104": 0.05}


def worst(ours, theirs) -> float:
    assert np.shape(ours) == np.shape(theirs)
    return float(np.max(np.abs(np.asarray(ours, np.float64) - theirs), initial=0.0))


def relative(ours, theirs) -> float:
    return abs(float(ours) - theirs) / max(abs(theirs), 1e-6)


def column_of(output: str, mode: str) -> str:
    is_class = output.startswith(("class", "keypoint_logits", "objectness", "mask_logits"))
    return f"{'classes' if is_class else 'boxes'}, {mode}"


def without_padding(values: np.ndarray, num_B: np.ndarray) -> np.ndarray:
    """Set the rows after the last detection to 0; those of the reference may have any value."""
    is_row = np.arange(values.shape[1]) < num_B[:, np.newaxis]
    return np.where(np.expand_dims(is_row, tuple(range(2, values.ndim))), values, 0.0)


def assert_proposals_match(reference, outputs, mode: str) -> None:
    if reference.is_two_stage:
        proposals = reference.part(f"proposals_{mode}")
        np.testing.assert_array_equal(outputs["num_proposals_B"], proposals["num"])
        assert worst(outputs["proposals_yxyx_rel_BP4"], proposals["boxes"]) < NETWORK


@pytest.fixture(scope="module")
def prepared(reference) -> tuple[tf.Tensor, tf.Tensor]:
    """The network's input and its true rows and columns."""
    return reference.prepared()


@pytest.fixture
def anchors(reference) -> tf.Tensor:
    if reference.is_center_net:
        pytest.skip("CenterNet has no anchors")
    detector = reference.detector
    return detector.anchors_yxyx_px_A4 if reference.is_two_stage else detector.anchors_yxyx_rel_A4


def test_preprocessing_matches_reference(reference, record, prepared):
    images, true_hw = prepared
    stored, true_shapes, stride = reference.preprocessed()
    record("preprocessed", worst(images[:, ::stride, ::stride], stored))
    assert worst(images[:, ::stride, ::stride], stored) < NETWORK
    np.testing.assert_array_equal(true_hw, true_shapes[:, :2])


def test_anchors_match_reference(reference, record, anchors):
    stored, stride = reference.anchors()
    record("anchors", worst(anchors[::stride], stored))
    assert worst(anchors[::stride], stored) < STORED


def test_inference_mode_matches_reference(reference, record, prepared):
    stored = reference.predictions("eval")
    outputs = reference.detector.forward({"image": prepared[0], "true_hw": prepared[1]}, training=False)
    assert_proposals_match(reference, outputs, "eval")
    answers = reference.as_stored(outputs, "eval")
    errors = {name: worst(answers[name], stored[name]) for name in stored}
    for name, error in errors.items():
        record(column_of(name, "inference"), error)
    assert max(errors.values()) < NETWORK


@pytest.fixture(scope="module")
def training_step(reference) -> SimpleNamespace:
    if reference.has_random_training_mode:
        pytest.skip("the stochastic depth of these values is random")
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        pytest.skip("the values were made with oneDNN, and batch norm over few values enlarges the difference")
    return reference.training_step()


def test_training_mode_matches_reference(reference, record, training_step):
    assert_proposals_match(reference, training_step.outputs, "train")
    stored = reference.predictions("train")
    mark = " §" if reference.name in UNSTEADY else ""
    for name, answers in reference.as_stored(training_step.outputs, "train").items():
        is_one_pixel = reference.rows_of_one_pixel(answers.shape[1])
        error = worst(answers[:, ~is_one_pixel], stored[name][:, ~is_one_pixel])
        error_there = worst(answers[:, is_one_pixel], stored[name][:, is_one_pixel])
        record(column_of(name, "training"), error, f" († {error_there:.0e})" if is_one_pixel.any() else mark)
        assert error < max(UNSTEADY.get(reference.name, 0.0), NETWORK if reference.is_two_stage else TRAINING)
        assert error_there < ONE_PIXEL
    for name, logits in reference.mask_logits("train").items():
        error = worst(training_step.outputs[name], logits)
        record("classes, training", error)
        assert error < TRAINING


def test_gradients_and_statistics_match_reference(reference, record, training_step):
    expected = reference.summary["losses_train_mode"]
    loss_errors = [relative(training_step.losses[name], expected[there]) for name, there in reference.losses.items()]
    penalty = training_step.penalty + reference.unused_penalty()
    penalty_error = relative(penalty, expected.get("Loss/regularization_loss", 0.0))
    gradient_error = relative(training_step.gradient_norm, expected["grad_global_norm"])
    norms, means = (without_unused(reference, part) for part in ("gradient_norms", "moved_means"))
    moved = training_step.moved_means
    record("gradients", gradient_error, " §" if reference.name in UNSTEADY else "")
    record("statistics", max(abs(moved[key] - mean) / max(1.0, abs(mean)) for key, mean in means.items()))
    assert max(loss_errors) < NETWORK
    assert penalty_error < STORED
    bounds = (NETWORK, 0.01) if reference.is_two_stage else (TRAINING, VARIABLE_NORM)
    of_all, of_variable = (max(UNSTEADY.get(reference.name, 0.0), bound) for bound in bounds)
    assert gradient_error < of_all
    assert {key: moved[key] for key in means} == pytest.approx(means, rel=NETWORK, abs=NETWORK)
    if norms:
        ours = {key: training_step.norms[key] for key in norms}
        assert ours == pytest.approx(norms, rel=of_variable, abs=1e-4 * max(norms.values()))


def without_unused(reference, part: str) -> dict[str, float]:
    """Return values by key, without layers that are not built, such as EfficientNet's classifier."""
    ours = set(reference.keys.values())
    values = reference.by_key(part)
    assert all(key in ours or reference.is_unused(key) for key in values)
    return {key: value for key, value in values.items() if key in ours}


# --- from stored inputs -----------------------------------------------------------------------------------------------


@pytest.fixture
def stored_outputs(reference) -> dict[str, tf.Tensor]:
    if reference.is_thin:
        pytest.skip("the small file does not hold the whole answers")
    return reference.stored_outputs()


def test_anchor_matching_matches_reference(reference, record, anchors):
    boxes, classes, weights = (tf.constant(each) for each in reference.padded_groundtruth())
    if reference.is_two_stage:
        outputs, batch = reference.stored_outputs(), reference.batch()
        proposals_px = outputs["proposals_yxyx_rel_BP4"] * SIDE
        found = {
            "rpn_": reference.detector.proposal_targets(outputs, batch),
            "": detection_targets(proposals_px, boxes * SIDE, classes, weights),
        }
    else:
        found = {"": assign_targets(target_settings(reference.config.model), anchors, boxes, classes, weights)}
    stored = reference.part("targets")
    for prefix, targets in found.items():
        record("matches", np.sum(targets.match_BA.numpy() != stored[f"{prefix}match"]))
        record("box targets", worst(targets.offsets_BA4, stored[f"{prefix}reg_targets"]))
        np.testing.assert_array_equal(targets.match_BA, stored[f"{prefix}match"])
        first_channel = 1 if prefix else 0  # the first stage of the reference stores no background
        num_channels = stored[f"{prefix}cls_targets"].shape[-1] + first_channel
        channels = tf.one_hot(targets.channel_BA, num_channels)[..., first_channel:]
        np.testing.assert_array_equal(channels, stored[f"{prefix}cls_targets"])
        np.testing.assert_array_equal(targets.box_weight_BA, stored[f"{prefix}reg_weights"])
        np.testing.assert_array_equal(targets.class_weight_BA, stored[f"{prefix}cls_weights"][..., 0])
        np.testing.assert_allclose(targets.offsets_BA4, stored[f"{prefix}reg_targets"], atol=STORED)
    assert (stored["match"] >= 0).any()
    assert (stored["match"] == -1).any()


def test_proposals_from_stored_outputs_match_reference(reference, prepared, stored_outputs):
    if not reference.is_two_stage:
        pytest.skip("a single stage has no proposals")
    detector, stored = reference.detector, reference.part("proposals_of_stored")
    outputs = [stored_outputs[name] for name in ("rpn_offsets_BA4", "objectness_logits_BA2")]
    found = select_proposals(detector.config, detector.anchors_yxyx_px_A4, *outputs, prepared[1])
    np.testing.assert_array_equal(found.num_B, stored["num"])
    assert worst(found.boxes_yxyx_px_BP4 / SIDE, stored["boxes"]) < STORED
    assert worst(found.scores_BP, stored["scores"]) < STORED


def test_losses_from_stored_outputs_match_reference(reference, record, stored_outputs):
    losses = reference.detector.losses(stored_outputs, reference.batch())
    expected = reference.summary["losses_eval_mode"]
    error = max(relative(losses[name], expected[there]) for name, there in reference.losses.items())
    record("losses", error)
    assert error < STORED


def test_detections_from_stored_outputs_match_reference(reference, record, stored_outputs):
    stored, true_hw = reference.detections()
    detections = reference.detector.detections(stored_outputs, true_hw)
    if reference.has_box_masks:
        detections = reference.detector.detections({**stored_outputs, **detections}, true_hw)
    num_B = stored["num_detections"]
    errors = [worst(detections[name], stored[name]) for name in (BOXES, SCORES)]
    for name in (KEYPOINTS, KEYPOINT_SCORES, MASKS):  # masks pass a network, which differs by less than the bound
        if name in stored:
            errors.append(worst(detections[name], without_padding(stored[name], num_B)))
    record("detections", max(errors))
    np.testing.assert_array_equal(detections[NUM_DETECTIONS], num_B)
    # The reference counts classes from 0.
    class_ids = without_padding(stored["detection_classes"] + 1, num_B)
    np.testing.assert_array_equal(detections[CLASSES], class_ids)
    assert max(errors) < STORED
