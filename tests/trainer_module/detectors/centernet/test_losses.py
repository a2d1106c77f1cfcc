import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.losses import PenaltyReducedFocal
from detloom.trainer_module.detectors.centernet.detector import CenterNetDetector
from detloom.trainer_module.detectors.centernet.family import CenterNetFamily
from detloom.trainer_module.detectors.centernet.losses import cells_of_image, penalty_reduced_focal_loss

pytestmark = pytest.mark.usefixtures("eager")
FIVE = LabelMap.from_names(["a", "b", "c", "d", "e"])


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_losses_equal_the_reference(name, center_net_configs, center_net_raw, center_net_truth, center_net_reference):
    detector = CenterNetDetector(CenterNetFamily(center_net_configs[name]), FIVE, network=None)
    losses = detector.losses(center_net_raw_tensors(center_net_raw), center_net_truth)
    values = [losses[key].numpy() for key in ("class_loss", "size_loss", "offset_loss")]
    np.testing.assert_allclose(values, center_net_reference[f"{name}_losses"], rtol=1e-5)


def center_net_raw_tensors(raw: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {key: tf.constant(value) for key, value in raw.items()}


def test_the_focal_loss_equals_the_paper():
    # p = 0.5: at a centre 0.5^2 * log 2; beside it, with a target of 0.5, 0.5^4 * 0.5^2 * log 2.
    # The last centre is of an image that has half of the pixels' values.
    targets, weights = tf.constant([1.0, 0.5, 0.0, 1.0]), tf.constant([1.0, 0.0, 0.0, 0.5])
    loss = penalty_reduced_focal_loss(PenaltyReducedFocal(), tf.zeros([4]), targets, weights)
    np.testing.assert_allclose(loss.numpy(), np.log(2) * np.array([1 / 4, 1 / 64, 1 / 4, 1 / 8]), rtol=1e-6)


def test_a_very_wrong_logit_has_a_finite_loss_and_gradient():
    logits = tf.constant([-200.0, 200.0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = penalty_reduced_focal_loss(PenaltyReducedFocal(), logits, tf.constant([1.0, 0.0]), tf.ones([]))
    assert np.isfinite(loss.numpy()).all()
    assert np.isfinite(tape.gradient(loss, logits).numpy()).all()


def test_centres_of_mixed_images_are_learned(center_net_configs, center_net_truth):
    detector = CenterNetDetector(CenterNetFamily(center_net_configs["resnet50"]), FIVE, network=None)
    batch = {key: tf.constant(value) for key, value in center_net_truth.items()}
    batch["image_shares"] = tf.where(batch["class_indices"] >= 0, 0.5, 0.0)
    outputs = {
        "class_logits_BHWK": tf.fill([2, 24, 24, 5], -2.0),
        "sizes_BHW2": tf.zeros([2, 24, 24, 2]),
        "offsets_BHW2": tf.zeros([2, 24, 24, 2]),
    }
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        loss = tf.add_n(list(detector.losses(outputs, batch).values()))
    gradient = tape.gradient(loss, outputs)["class_logits_BHWK"].numpy()
    places = [(0, 7, 9, 0), (0, 12, 13, 4), (0, 14, 15, 3), (1, 4, 12, 1), (1, 9, 4, 2)]
    assert all(gradient[place] < 0 for place in places)
    assert (gradient < 0).sum() == len(places)


def test_padding_has_no_loss(center_net_configs, center_net_raw, center_net_truth):
    detector = CenterNetDetector(CenterNetFamily(center_net_configs["resnet50"]), FIVE, network=None)
    outputs = center_net_raw_tensors(center_net_raw)
    # 72 of 96 rows are image in the first, 60 in the second: 18 and 15 rows of the map.
    is_image = cells_of_image(tf.constant([[18, 24], [15, 24]]), (24, 24))
    louder = {**outputs, "class_logits_BHWK": outputs["class_logits_BHWK"] + 5 * (1 - is_image)}
    one, other = (detector.losses(each, center_net_truth)["class_loss"] for each in (outputs, louder))
    assert one.numpy() == other.numpy()


def test_without_boxes_only_the_heat_map_has_a_loss(center_net_configs, center_net_raw, center_net_truth):
    detector = CenterNetDetector(CenterNetFamily(center_net_configs["resnet50"]), FIVE, network=None)
    batch = {**center_net_truth, "class_indices": np.full((2, 4), -1, np.int32)}
    losses = detector.losses(center_net_raw_tensors(center_net_raw), batch)
    assert losses["size_loss"].numpy() == losses["offset_loss"].numpy() == 0
    assert losses["class_loss"].numpy() > 0
