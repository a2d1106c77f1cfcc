from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, MASKS, NUM_DETECTIONS, OUTPUT_NAMES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import FieldError, InputError
from detloom.trainer_module.boxes.crops import crop_masks
from detloom.trainer_module.boxes.targets import Targets
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.detectors.faster_rcnn.losses import mask_loss
from detloom.trainer_module.detectors.faster_rcnn.network import mask_depth

pytestmark = pytest.mark.usefixtures("eager")
LABEL_MAP = LabelMap(((2, "red"), (5, "green")))


@pytest.fixture(scope="module")
def with_masks(masks_config):
    """Return a function that changes the settings of the mask head."""

    def change(**settings):
        predictor = replace(masks_config.second_stage_box_predictor, **settings)
        return replace(masks_config, second_stage_box_predictor=predictor)

    return change


def test_masks_are_sampled_like_features():
    """TensorFlow's operation samples one image per box; whole boxes are inside, where its rounding is no issue."""
    random = np.random.default_rng(0)
    masks = random.integers(0, 2, (2, 3, 9, 12)).astype(np.uint8)
    low, sides = random.uniform(0.0, 0.4, (2, 4, 2)), random.uniform(0.1, 0.5, (2, 4, 2))
    boxes = np.concatenate([low, low + sides], axis=-1).astype(np.float32)
    indices = random.integers(0, 3, (2, 4))
    expected = tf.image.crop_and_resize(
        np.concatenate([masks[image][indices[image]] for image in range(2)])[..., np.newaxis],
        boxes.reshape(-1, 4),
        tf.range(8),
        (5, 7),
    )
    found = crop_masks(tf.constant(masks), tf.constant(indices, tf.int32), tf.constant(boxes), (5, 7))
    np.testing.assert_allclose(tf.reshape(found, [8, 5, 7]), expected[..., 0], atol=1e-5)


def test_a_mask_outside_of_the_image_is_empty():
    boxes = tf.constant([[[0.0, 1.5, 1.0, 2.0]]])
    assert not crop_masks(tf.ones([1, 1, 4, 4], tf.uint8), tf.constant([[0]]), boxes, (3, 3)).numpy().any()


@pytest.mark.parametrize("num_masks", [1, 2])
def test_the_loss_is_the_mean_over_cells_of_matched_boxes(masks_config, num_masks):
    """Three regions: an object of class 1, background, and padding with the same object."""
    masks = tf.constant(np.tile([1, 0], (1, 1, 8, 4)), tf.uint8)  # the columns take turns
    boxes = tf.constant([[[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]], tf.float32)
    targets = Targets(
        channel_BA=tf.constant([[2, 0, 2]]),
        offsets_BA4=tf.zeros([1, 3, 4]),
        class_weight_BA=tf.ones([1, 3]),
        box_weight_BA=tf.constant([[0.5, 0.0, 0.5]]),
        match_BA=tf.constant([[0, -1, 0]]),
    )
    logits = np.random.default_rng(0).normal(size=(1, 3, 8, 8, num_masks)).astype(np.float32)
    loss = mask_loss(masks_config, masks, boxes, tf.constant([[1.0, 1.0, 0.0]]), targets, tf.constant(logits))
    right = logits[0, 0, :, :, num_masks - 1]
    expected = np.mean(np.where(np.arange(8) % 2 == 0, np.log1p(np.exp(-right)), np.log1p(np.exp(right))))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("depth", "num_features", "num_classes", "expected"),
    [(64, 1536, 90, 64), (0, 1536, 90, 256), (0, 1536, 2, 32), (0, 2048, 90, 256)],
)
def test_the_depth_of_the_head_is_that_of_the_reference(plain_config, depth, num_features, num_classes, expected):
    """256 is in the reference's checkpoint; log2: (2 * 10.585 + 3 * 1) / 5 = 4.8; (2 * 11 + 3 * 6.492) / 5 = 8.3."""
    predictor = replace(plain_config.second_stage_box_predictor, mask_prediction_conv_depth=depth)
    assert mask_depth(predictor, num_features, num_classes) == expected


def test_stages_and_masks_agree(plain_config, fpn_config, masks_config):
    assert "masks_GHW" in family_of(masks_config).ground_truth_columns
    assert "masks_GHW" not in family_of(plain_config).ground_truth_columns
    with pytest.raises(FieldError, match=r"predict_instance_masks.*false.*true with 3 stages"):
        replace(plain_config, number_of_stages=3)
    with pytest.raises(FieldError, match=r"predict_instance_masks.*true.*else false"):
        replace(masks_config, number_of_stages=2)
    with pytest.raises(FieldError, match="one cell of features"):
        replace(
            masks_config,
            feature_extractor=fpn_config.feature_extractor,
            first_stage_anchor_generator=fpn_config.first_stage_anchor_generator,
        )
    with pytest.raises(FieldError, match=r"conv_hyperparams.*null"):
        replace(masks_config.second_stage_box_predictor, conv_hyperparams=None)


@pytest.fixture(scope="module")
def outputs(masks_detector, batch):
    """Outputs in inference mode."""
    return masks_detector.forward(batch, training=False)


def test_training_predicts_masks_of_proposals_and_inference_of_detections(masks_detector, batch, outputs):
    assert masks_detector.forward(batch, training=True)["mask_logits_BNhwL"].shape == (2, 8, 6, 8, 2)
    assert outputs["mask_logits_BNhwL"].shape == (2, 10, 6, 8, 2)


def test_detections_have_the_mask_of_their_class(masks_detector, batch, outputs):
    found = masks_detector.detections(outputs, batch["true_hw"])
    assert set(found) == {*OUTPUT_NAMES, MASKS}
    masks, classes = found[MASKS].numpy(), found[CLASSES].numpy()
    assert masks.shape == (2, 10, 6, 8)
    probabilities = tf.sigmoid(outputs["mask_logits_BNhwL"]).numpy()
    for image in range(2):
        for row in range(10):
            channels = {0: np.zeros((6, 8)), 2: probabilities[image, row, ..., 0], 5: probabilities[image, row, ..., 1]}
            np.testing.assert_allclose(masks[image, row], channels[int(classes[image, row])], atol=1e-6)
    without = masks_detector._detections_without_masks(outputs, batch["true_hw"])
    np.testing.assert_array_equal(found[BOXES], without[BOXES])
    assert found[NUM_DETECTIONS].numpy().min() > 0


def test_regions_of_masks_are_relative_to_the_padded_input(outputs):
    """The lower third of the second image is padding; boxes of detections are relative to the image without it."""
    share = np.array([[1, 1, 1, 1], [64 / 96, 1, 64 / 96, 1]])[:, np.newaxis]
    np.testing.assert_allclose(outputs["mask_boxes_yxyx_rel_BN4"], outputs[BOXES].numpy() * share, atol=1e-6)


def test_a_class_agnostic_head_predicts_one_mask(with_masks, batch):
    detector = build_detector(with_masks(masks_are_class_agnostic=True), LABEL_MAP)
    found = detector.detect(batch["image"], batch["true_hw"])
    assert found[MASKS].shape == (2, 10, 6, 8)
    is_row = found[CLASSES].numpy() > 0
    assert found[MASKS].numpy()[is_row].min() > 0
    assert not found[MASKS].numpy()[~is_row].any()


def test_the_maps_can_be_enlarged_after_the_convolutions(with_masks, batch):
    """A region has 4 x 4 cells after the pool."""
    config = with_masks(convolve_then_upsample_masks=True, mask_height=8, mask_width=12)
    detector = build_detector(config, LABEL_MAP)
    assert detector.forward(batch, training=True)["mask_logits_BNhwL"].shape == (2, 8, 8, 12, 2)
    with pytest.raises(InputError, match=r"mask_height, mask_width: got 7, 12.*multiples of \d"):
        build_detector(with_masks(convolve_then_upsample_masks=True, mask_height=7, mask_width=12), LABEL_MAP)


def test_only_the_masks_of_positive_proposals_train_the_mask_head(masks_detector, batch):
    variables = [each for each in masks_detector.network.trainable_variables if "mask" in each.path]
    gradients = []
    for classes in (batch["class_indices"], tf.fill([2, 3], -1)):
        batch = {**batch, "class_indices": classes, "box_weights": tf.cast(classes >= 0, tf.float32)}
        proposals = batch["boxes_yxyx_rel"]
        with tf.GradientTape() as tape:
            outputs = masks_detector.forward(batch, training=True)
            outputs["mask_boxes_yxyx_rel_BN4"] = tf.concat(
                [proposals, outputs["mask_boxes_yxyx_rel_BN4"][:, 3:]], axis=1
            )
            loss = masks_detector.losses(outputs, batch)["mask_loss"]
        gradients.append([float(tf.norm(each)) for each in tape.gradient(loss, [each.value for each in variables])])
    assert min(gradients[0]) > 0
    assert max(gradients[1]) == 0


def test_the_batch_norms_of_all_stages_are_folded(masks_detector, assert_folds):
    assert_folds(masks_detector)
