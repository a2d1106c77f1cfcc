"""A detector: its network, its anchors, and what they mean together."""

from dataclasses import dataclass

import keras
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import Ssd
from detloom.trainer_module.anchors import build_anchors
from detloom.trainer_module.losses import assign_targets, detection_losses
from detloom.trainer_module.postprocess import build_detections
from detloom.trainer_module.preprocess import network_hw
from detloom.trainer_module.ssd import build_ssd


@dataclass(frozen=True)
class Detector:
    """Plain functions over one network; call them inside a `tf.function`."""

    config: Ssd
    label_map: LabelMap
    network: keras.Model
    anchors_yxyx_rel_A4: tf.Tensor

    def losses(self, batch: dict[str, tf.Tensor], *, training: bool) -> dict[str, tf.Tensor]:
        """Scalar `class_loss` and `box_loss` of a batch of `build_train_dataset`."""
        outputs = self.network(batch["image"], training=training)
        targets = assign_targets(
            self.config,
            self.anchors_yxyx_rel_A4,
            batch["boxes_yxyx_rel"],
            batch["class_indices"],
            self.label_map.num_classes,
        )
        return detection_losses(self.config, targets, outputs["offsets_BA4"], outputs["class_logits_BAC"])

    def detect(self, images_BHW3: tf.Tensor) -> dict[str, tf.Tensor]:
        """Detections (`schemas/detections.py`) in pictures of the network's size, scaled to [-1, 1]."""
        outputs = self.network(images_BHW3, training=False)
        return build_detections(
            self.config,
            self.anchors_yxyx_rel_A4,
            tf.constant(self.label_map.class_ids),
            outputs["offsets_BA4"],
            outputs["class_logits_BAC"],
        )


def build_detector(config: Ssd, label_map: LabelMap) -> Detector:
    """A detector with random weights.

    Raises:
        InputError: if the configuration names another number of classes than the label map.
    """
    if config.num_classes not in (None, label_map.num_classes):
        raise InputError(
            f"model.num_classes: got {config.num_classes}, the label map has {label_map.num_classes} classes; set "
            f"model.num_classes to {label_map.num_classes}, or leave it out."
        )
    match config:
        case Ssd():
            network = build_ssd(config, label_map.num_classes)
            anchors = build_anchors(config.anchor_generator, network_hw(config.image_resizer))
            return Detector(config, label_map, network, tf.constant(anchors))
    raise AssertionError(f"no such detector: {config}")
