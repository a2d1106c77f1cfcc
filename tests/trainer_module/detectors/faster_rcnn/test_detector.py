from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, MASKS, NUM_DETECTIONS, OUTPUT_NAMES, SCORES
from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.losses import HardExampleMiner
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export.onnx_export import load_session
from detloom.trainer_module.export.onnx_graph import convert_to_onnx
from detloom.trainer_module.export.onnx_operations import HANDLERS

pytestmark = pytest.mark.usefixtures("eager")
LABEL_MAP = LabelMap(((2, "red"), (5, "green")))
ONE_CLASS = LabelMap(((7, "thing"),))
EVERY_ANCHOR = {  # is sampled, and every proposal up to the size of the batch
    "first_stage_minibatch_size": 1000,
    "first_stage_positive_balance_fraction": 1.0,
    "second_stage_balance_fraction": 1.0,
}


def test_a_detector_describes_itself(plain_detector):
    assert plain_detector.describe() == "72 anchors, 20 proposals"  # 6 x 6 positions, 2 anchors each
    assert plain_detector.family.summary() == {
        "architecture": "FasterRcnn",
        "backbone": "resnet50_v1",
        "neck": None,
        "max_detections": 10,
        "depth_multiplier": 1.0,
    }


def test_training_mode_samples_proposals_and_inference_keeps_all(detector, trained, found):
    assert trained["proposals_yxyx_rel_BP4"].shape == (2, 8, 4)
    assert found["proposals_yxyx_rel_BP4"].shape == (2, 20, 4)
    assert found["class_logits_BPC"].shape == (2, 20, 3)
    num_boxes = 1 if detector.config.second_stage_box_predictor.share_box_across_classes else 2
    assert found["offsets_BPQ4"].shape == (2, 20, num_boxes, 4)
    proposals = found["proposals_yxyx_rel_BP4"].numpy()  # in the image without its padding
    assert proposals.min() >= 0
    assert proposals[1, :, 2].max() <= 64 / 96 + 1e-6


def test_only_inner_anchors_are_trained_without_clipping(detector, trained, found):
    if detector.config.clip_anchors_to_image:  # 6 x 6 positions, 2 anchors each
        assert trained["rpn_offsets_BA4"].shape == found["rpn_offsets_BA4"].shape == (2, 72, 4)
    else:
        # Level 3: 12 x 12 positions, anchors of 32 pixels with centres 4, 12, ..., 92: those from 20 to 76 (8) are
        # inside. Level 4: 6 x 6 positions, 64 pixels, centres 8, 24, ..., 88: 40 and 56 are inside.
        assert trained["rpn_offsets_BA4"].shape == (2, 8 * 8 + 2 * 2, 4)
        assert found["rpn_offsets_BA4"].shape == (2, 144 + 36, 4)


def test_losses_of_parts_add_up_and_those_of_inference_repeat(
    detector, batch, trained, found, assert_losses_of_halves_add_up
):
    assert_losses_of_halves_add_up(detector, trained, batch)
    first, again = (detector.losses(found, batch) for _ in range(2))
    assert tuple(first) == detector.loss_names
    assert all(np.isfinite(loss.numpy()) for loss in first.values())
    assert {name: float(loss) for name, loss in first.items()} == {name: float(loss) for name, loss in again.items()}


def test_sampling_follows_a_seed_of_the_network(plain_detector, batch):
    """The seed is stored with the network, so that a resumed run draws the same samples."""
    weights = {id(each) for each in plain_detector.network.weights}
    (seed,) = [each for each in plain_detector.network.variables if id(each) not in weights]
    before, draws = seed.numpy(), []
    for _ in range(2):
        seed.assign(before)
        draws.append(plain_detector.forward(batch, training=True)["random_BA"].numpy())
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (plain_detector.forward(batch, training=True)["random_BA"].numpy() != draws[0]).any()


def test_images_without_boxes_have_finite_losses(detector, batch):
    empty = {**batch, "class_indices": tf.fill([2, 3], -1), "box_weights": tf.zeros([2, 3])}
    losses = detector.losses(detector.forward(empty, training=True), empty)
    assert losses["rpn_box_loss"] == 0
    assert losses["box_loss"] == 0
    assert losses["rpn_objectness_loss"] > 0


def test_detections_have_the_shapes_of_the_interface(detector, batch):
    found = detector.detect(batch["image"], batch["true_hw"])
    assert set(found) == {*OUTPUT_NAMES, *([MASKS] if "mask_loss" in detector.loss_names else [])}
    assert found[BOXES].shape == (2, 10, 4)
    is_row = np.arange(10) < found[NUM_DETECTIONS].numpy()[:, np.newaxis]
    assert set(found[CLASSES].numpy()[is_row]) <= {2, 5}
    assert (found[SCORES].numpy()[~is_row] == 0).all()


def test_padding_proposals_are_no_detections(detector, batch, found):
    outputs = {name: value for name, value in found.items() if not name.startswith("detection_")}
    outputs["num_proposals_B"] = tf.constant([0, 1])
    detections = detector.detections(outputs, batch["true_hw"])
    assert detections[NUM_DETECTIONS].numpy().tolist() == [0, 2]  # both classes of the only proposal


def test_with_a_miner_all_proposals_are_trained(plain_detector, batch):
    config = replace(plain_detector.config, hard_example_miner=HardExampleMiner(num_hard_examples=3, iou_threshold=1.0))
    mined = replace(plain_detector, family=replace(plain_detector.family, config=config))
    outputs = mined.forward(batch, training=True)
    assert outputs["class_logits_BPC"].shape == (2, 20, 3)
    assert mined.losses(outputs, batch)["class_loss"] < plain_detector.losses(outputs, batch)["class_loss"]


def test_one_stage_returns_proposals_of_the_only_class(plain_config, batch):
    detector = build_detector(replace(plain_config, number_of_stages=1), ONE_CLASS)
    outputs = detector.forward(batch, training=True)
    assert tuple(detector.losses(outputs, batch)) == ("rpn_objectness_loss", "rpn_box_loss")
    found = detector.detect(batch["image"], batch["true_hw"])
    assert found[BOXES].shape == (2, 20, 4)
    assert found[CLASSES].numpy().max() == 7
    with pytest.raises(InputError, match=r"number_of_stages: got 1.*2 classes"):
        build_detector(replace(plain_config, number_of_stages=1), LABEL_MAP)


def test_the_second_stage_counts_for_each_proposal_in_the_memory_estimate(plain_detector):
    sampled = plain_detector.activation_bytes_per_image()
    config = replace(plain_detector.config, second_stage_batch_size=16)
    doubled = replace(plain_detector, family=replace(plain_detector.family, config=config)).activation_bytes_per_image()
    # float32 outputs of a crop of 8 x 8 cells with 128 channels, twice (input and `random`), are a part of it.
    assert doubled - sampled > 8 * 2 * 8 * 8 * 128 * 4


@pytest.mark.nightly
def test_a_training_step_and_the_exported_graph_compile_under_xla(
    detector, batch, assert_step_compiles, assert_export_compiles
):
    """All anchors and proposals are sampled: rounding changes the order of the proposals of random weights."""
    assert_export_compiles(detector)
    every = {**EVERY_ANCHOR, "second_stage_batch_size": 20}
    detector = replace(detector, family=replace(detector.family, config=replace(detector.config, **every)))
    assert_step_compiles(detector, batch, unconnected_gradients="zero")


@pytest.mark.nightly
def test_training_finds_the_boxes_of_its_images(plain_config, batch):
    keras.utils.set_random_seed(0)
    detector = build_detector(plain_config, LABEL_MAP)
    tf.config.run_functions_eagerly(False)
    optimizer = keras.optimizers.Adam(1e-3)
    variables = detector.network.trainable_variables

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.add_n(list(detector.losses(detector.forward(batch, training=True), batch).values()))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    losses = [float(step()) for _ in range(150)]
    assert np.mean(losses[-5:]) < losses[0] / 5
    # Training mode, because batch norm has seen few steps. It samples few proposals, so many samples are needed: on
    # some processors, none of five had an object that the network finds.
    samples = [detector.detections(detector.forward(batch, training=True), batch["true_hw"]) for _ in range(25)]
    boxes, scores, class_ids = (np.concatenate([each[key] for each in samples], 1) for key in (BOXES, SCORES, CLASSES))
    for i in range(2):
        true_sides = np.tile(batch["true_hw"][i].numpy(), 2) / 96
        for k, class_id in enumerate((2, 5)):
            best = np.argmax(np.where(class_ids[i] == class_id, scores[i], -1))
            assert np.abs(boxes[i, best] * true_sides - batch["boxes_yxyx_rel"][i, k].numpy()).max() < 0.08


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fpn", "masks"])
def test_a_step_in_low_precision_is_close_to_float32(name, request, assert_low_precision_is_close):
    """All anchors and proposals are trained: rounding changes the order of the proposals of random weights."""
    every = {
        **EVERY_ANCHOR,
        "first_stage_nms_iou_threshold": 1.0,
        "first_stage_max_proposals": 72,
        "second_stage_batch_size": 72,
    }
    model = replace(request.getfixturevalue(f"{name}_config"), **every)
    built_in = f"{Path(__file__).with_name('conftest.py')}:_thin_resnet"
    assert_low_precision_is_close(model, bfloat16=(0.01, 0.06), float16=(0.001, 0.01), built_in=built_in)


@pytest.mark.slow
def test_the_network_is_equal_in_onnx(detector):
    """Up to the second stage: with random weights, boxes are so large that rounding moves detections."""
    tf.config.run_functions_eagerly(False)
    network = tf.function(lambda images: detector.forward({IMAGE: images}, training=False), autograph=False)
    shape = [2, *detector.preprocessing.network_hw, 3]
    function = network.get_concrete_function(tf.TensorSpec([None, *shape[1:]]))
    session = load_session(convert_to_onnx(function, "images", HANDLERS).SerializeToString())
    images = np.random.default_rng(0).normal(0, 50, shape).astype(np.float32)
    expected = function(tf.constant(images))
    for name in ("num_proposals_B", "proposals_yxyx_rel_BP4", "class_logits_BPC", "offsets_BPQ4"):
        (found,) = session.run([name], {"images": images})
        np.testing.assert_allclose(found, expected[name], rtol=1e-3, atol=1e-3)
