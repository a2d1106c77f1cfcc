import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, KEYPOINT_SCORES, KEYPOINTS, NUM_DETECTIONS, OUTPUT_NAMES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
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
def test_a_training_step_compiles_under_xla_and_gives_the_same_loss(detector, batch, assert_step_compiles):
    assert_step_compiles(detector, batch)


@pytest.mark.slow
def test_a_step_in_low_precision_is_close_to_float32(config, assert_low_precision_is_close):
    small = dataclasses.replace(config.image_resizer, min_dimension=64, max_dimension=64)
    model = dataclasses.replace(config, image_resizer=small)
    assert_low_precision_is_close(model, bfloat16=(0.01, 0.4), float16=(0.003, 0.05))


@pytest.mark.slow
def test_the_exported_graph_compiles_under_xla(detector, assert_export_compiles):
    assert_export_compiles(detector)


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


# --- keypoints --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cats(config, keypoint_task) -> Detector:
    """Detect ear and tail of the second class."""
    head = PredictionHeadParams(num_filters=(8,), kernel_sizes=(3,))
    heads = dict.fromkeys(("heatmap_head_params", "offset_head_params", "regress_head_params"), head)
    task = dataclasses.replace(keypoint_task, **heads)
    keras.utils.set_random_seed(0)
    model = dataclasses.replace(config, keypoint_estimation_task=task)
    return build_detector(model, LabelMap.from_names(["dog", "cat"]))


@pytest.fixture(scope="module")
def cat_batch(batch) -> dict[str, tf.Tensor]:
    """The ear in the middle of the box, no label for the tail of every second cat."""
    middle = (batch["boxes_yxyx_rel"][..., :2] + batch["boxes_yxyx_rel"][..., 2:]) / 2
    points = np.stack([middle, middle - 0.05], axis=2)
    points[:, [0, 2]] = np.nan
    points[::2, :, 1] = np.nan
    return {**batch, "box_weights": tf.constant([[1.0, 1.0, 0.0]] * 4), "keypoints_yx_rel_GP2": tf.constant(points)}


def test_a_family_with_keypoints_names_them_and_asks_for_their_ground_truth(cats, detector):
    family = cats.family
    assert (family.keypoints.class_name, family.keypoints.names) == ("cat", ("ear", "tail"))
    assert "keypoints_yx_rel_GP2" in family.ground_truth_columns
    assert detector.family.keypoints is None
    assert "keypoints_yx_rel_GP2" not in detector.family.ground_truth_columns


def test_losses_of_keypoints_have_the_declared_names(cats, cat_batch):
    losses = cats.losses(cats.forward(cat_batch, training=False), cat_batch)
    assert tuple(losses) == cats.loss_names
    assert all(np.isfinite(loss.numpy()) and loss.numpy() > 0 for loss in losses.values())


def test_losses_of_keypoints_of_parts_add_up_to_those_of_the_batch(cats, cat_batch):
    outputs = cats.forward(cat_batch, training=False)
    whole = cats.losses(outputs, cat_batch)
    counts = [cats.count_matches({name: value[i : i + 2] for name, value in cat_batch.items()}) for i in (0, 2)]
    np.testing.assert_allclose(counts[0] + counts[1], cats.count_matches(cat_batch))
    parts = [
        cats.losses(
            {name: value[i : i + 2] for name, value in outputs.items()},
            {name: value[i : i + 2] for name, value in cat_batch.items()},
            counts[0] + counts[1],
        )
        for i in (0, 2)
    ]
    for name, loss in whole.items():
        assert float(parts[0][name] + parts[1][name]) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.slow
def test_losses_of_keypoints_and_their_gradients_compile_under_xla(cats, cat_batch):
    outputs = cats.forward(cat_batch, training=False)

    def step(outputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = tf.add_n(list(cats.losses(outputs, cat_batch).values()))
        return loss, tape.gradient(loss, outputs)

    loss, gradients = tf.function(step, jit_compile=True, autograph=False)(outputs)
    wanted_loss, wanted = step(outputs)
    assert loss.numpy() == pytest.approx(wanted_loss.numpy(), rel=1e-5)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(gradients[name], gradient, atol=1e-5)


@pytest.mark.slow
def test_detections_with_keypoints_compile_under_xla(cats, cat_batch):
    outputs = dict(cats.forward(cat_batch, training=False))
    for seed, name in enumerate(("class_logits_BHWK", "keypoint_logits_BHWP")):  # those of random weights nearly tie
        outputs[name] = tf.random.stateless_normal(outputs[name].shape, [seed, 0])
    eager = cats.detections(outputs, cat_batch["true_hw"])
    assert set(eager) == {*OUTPUT_NAMES, KEYPOINTS, KEYPOINT_SCORES}
    assert eager[KEYPOINTS].shape == (4, 20, 2, 2)
    compiled = tf.function(cats.detections, jit_compile=True, autograph=False)(outputs, cat_batch["true_hw"])
    for name, value in eager.items():
        np.testing.assert_allclose(compiled[name], value, atol=1e-5)


def test_the_class_with_keypoints_must_be_in_the_label_map(cats):
    with pytest.raises(InputError, match=r"keypoint_class_name: got 'cat', allowed: .*red, green"):
        build_detector(cats.config, TWO)
