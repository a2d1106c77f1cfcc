"""Single-shot detectors (SSD, RetinaNet, EfficientDet): network, anchors, losses and detections.

The structure is that of `SSDMetaArch` in the Object Detection API. Letters: `B` images, `A` anchors, `C` class channels
(classes, after a background channel if there is one).
"""

from dataclasses import dataclass

import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import Ssd
from detloom.trainer_module.boxes.anchors import build_anchors, feature_hws
from detloom.trainer_module.boxes.box_coder import decode_boxes
from detloom.trainer_module.boxes.postprocess import build_detections
from detloom.trainer_module.boxes.targets import Targets, assign_targets
from detloom.trainer_module.detectors.detector import Detector, Family, Tensors
from detloom.trainer_module.detectors.one_stage.fixed_size import raw_outputs, suppressed_outputs
from detloom.trainer_module.detectors.one_stage.losses import count_matches, detection_losses, target_settings
from detloom.trainer_module.detectors.one_stage.network import build_ssd

_TARGETS = "targets/"  # of keys in a batch


@dataclass(frozen=True, eq=False)
class SsdDetector(Detector[Ssd]):
    """A single-shot detector; see `Detector`."""

    anchors_yxyx_rel_A4: tf.Tensor

    def describe(self) -> str:
        """Return the number of anchors."""
        return f"{len(self.anchors_yxyx_rel_A4)} anchors"

    @property
    def loss_names(self) -> tuple[str, ...]:
        """See `Detector`."""
        return ("class_loss", "box_loss")

    def losses(self, outputs: Tensors, batch: Tensors, num_matches: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        return detection_losses(
            self.config,
            self.anchors_yxyx_rel_A4,
            self._targets(batch),
            outputs["offsets_BA4"],
            outputs["class_logits_BAC"],
            num_matches,
        )

    def targets(self, batch: Tensors) -> Tensors:
        """See `Detector`."""
        return {f"{_TARGETS}{name}": value for name, value in self._targets(batch)._asdict().items()}

    def count_matches(self, batch: Tensors) -> tf.Tensor:
        """See `Detector`."""
        return count_matches(self._targets(batch))

    def _targets(self, batch: Tensors) -> Targets:
        if f"{_TARGETS}match_BA" in batch:
            return Targets(*(batch[f"{_TARGETS}{name}"] for name in Targets._fields))
        box_weights_BG = batch.get(truth.WEIGHTS)
        if truth.SHARES in batch:
            box_weights_BG *= batch[truth.SHARES]
        return assign_targets(
            target_settings(self.config),
            self.anchors_yxyx_rel_A4,
            batch[truth.BOXES],
            batch[truth.CLASSES],
            box_weights_BG,
        )

    def detections(self, outputs: Tensors, true_hw_B2: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        config, offsets_BA4 = self.config, outputs["offsets_BA4"]

        def boxes_of(anchors_BN: tf.Tensor) -> tf.Tensor:
            offsets_BN4 = tf.gather(offsets_BA4, anchors_BN, batch_dims=1)
            return decode_boxes(config.box_coder, offsets_BN4, tf.gather(self.anchors_yxyx_rel_A4, anchors_BN))

        image_share_hw_B2 = tf.ones([tf.shape(offsets_BA4)[0], 2])
        if true_hw_B2 is not None:
            image_share_hw_B2 = tf.cast(true_hw_B2, tf.float32) / tf.constant(self.preprocessing.network_hw, tf.float32)
        return build_detections(
            config.post_processing,
            outputs["class_logits_BAC"],
            boxes_of,
            tf.constant(self.label_map.class_ids),
            has_background=config.add_background_class,
            image_share_hw_B2=image_share_hw_B2,
            on_host=self.suppresses_on_host,
        )

    def fixed_size_outputs(self, outputs: Tensors, *, raw: bool, max_detections: int) -> Tensors:
        """See `Detector`."""
        if raw:
            return raw_outputs(self.config, self.anchors_yxyx_rel_A4, outputs)
        return suppressed_outputs(
            self.config, self.anchors_yxyx_rel_A4, outputs, self.label_map.class_ids, max_detections
        )


def build_ssd_detector(family: Family[Ssd], label_map: LabelMap) -> SsdDetector:
    """Build a detector with random weights."""
    config = family.config
    network = build_ssd(config, label_map.num_classes)
    image_hw = family.preprocessing.network_hw
    anchors = build_anchors(config.anchor_generator, image_hw, feature_hws(config.feature_extractor, image_hw))
    num_rows = network.output["offsets_BA4"].shape[1]
    assert len(anchors) == num_rows, f"{len(anchors)} anchors for {num_rows} rows of the network's outputs"
    return SsdDetector(family, label_map, network, tf.constant(anchors))
