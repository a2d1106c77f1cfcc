import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.families import build_detector

pytestmark = pytest.mark.usefixtures("eager")
LABEL_MAP = LabelMap(((3, "cat"), (8, "dog")))


def test_a_number_of_classes_other_than_the_label_maps_is_refused(tiny_config, changed):
    with pytest.raises(
        InputError, match=r"model\.num_classes: got 90, the label map has 2 classes; set model\.num_classes to 2"
    ):
        build_detector(changed(tiny_config.model, {"num_classes": 90}), LABEL_MAP)


@pytest.mark.parametrize(("num_classes", "add_background_class"), [(None, False), (2, True)])
def test_a_detector_has_losses_and_detections(tiny_config, changed, num_classes, add_background_class):
    settings = {"num_classes": num_classes, "add_background_class": add_background_class}
    detector = build_detector(changed(tiny_config.model, settings), LABEL_MAP)
    boxes = tf.constant([[[0.1, 0.1, 0.6, 0.6], [0.0, 0.0, 0.0, 0.0]]])
    batch = {"image": tf.zeros([1, 64, 64, 3]), "boxes_yxyx_rel": boxes, "class_indices": tf.constant([[1, -1]])}
    losses = detector.losses(detector.forward(batch, training=False), batch)
    assert set(losses) == {"class_loss", "box_loss"}
    assert all(np.isfinite(loss) for loss in losses.values())
    found = detector.detect(batch["image"])
    assert set(np.unique(found["detection_classes"])) <= {0, 3, 8}
