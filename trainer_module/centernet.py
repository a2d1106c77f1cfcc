"""CenterNet (arXiv:1904.07850): the network, and what its maps mean.

Structure as the Object Detection API's `CenterNetMetaArch`. Letters: `B` images, `H W` cells of the heat map, `K`
classes, `G` padded boxes.
"""

from dataclasses import dataclass

import keras
import tensorflow as tf

from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.centernet_decode import build_centernet_detections
from detloom.trainer_module.centernet_losses import centernet_losses, count_boxes
from detloom.trainer_module.centernet_network import STRIDE, build_centernet
from detloom.trainer_module.centernet_targets import CenterNetTargets, assign_centernet_targets
from detloom.trainer_module.preprocess import network_hw


@dataclass(frozen=True)
class CenterNetDetector:
    """Plain functions over one network; see `Detector`."""

    config: CenterNet
    label_map: LabelMap
    network: keras.Model

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Of what `losses` returns."""
        return ("class_loss", "size_loss", "offset_loss")

    @property
    def map_hw(self) -> tuple[int, int]:
        """Rows and columns of the heat map."""
        height, width = network_hw(self.config.image_resizer)
        return height // STRIDE, width // STRIDE

    def describe(self) -> str:
        """What of its size the log says beside the parameters."""
        return "a heat map of {} x {} cells".format(*self.map_hw)

    def count_matches(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """See `Detector.count_matches`."""
        return count_boxes(self._targets(batch))

    def losses(
        self, batch: dict[str, tf.Tensor], *, training: bool, num_matches: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Scalar `class_loss`, `size_loss` and `offset_loss` of a batch of `build_train_dataset`; see `Detector`."""
        outputs = self.network(batch["image"], training=training)
        return self.losses_of_outputs(outputs, batch, num_matches)

    def losses_of_outputs(
        self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor], num_matches: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """The same from what the network answered."""
        true_cells_hw_B2 = -(-batch["true_hw"] // STRIDE)
        return centernet_losses(self.config, self._targets(batch), outputs, true_cells_hw_B2, num_matches)

    def _targets(self, batch: dict[str, tf.Tensor]) -> CenterNetTargets:
        return assign_centernet_targets(
            batch["boxes_yxyx_rel"],
            batch["class_indices"],
            batch.get("box_weights"),
            map_hw=self.map_hw,
            num_classes=self.label_map.num_classes,
            min_iou=self.config.object_center_params.min_box_overlap_iou,
        )

    def detect(self, images_BHW3: tf.Tensor, true_hw_B2: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Detections (`schemas/detections.py`) in prepared pictures; see `Detector.detect`."""
        outputs = self.network(images_BHW3, training=False)
        return self.detections_of_outputs(outputs, true_hw_B2)

    def detections_of_outputs(
        self, outputs: dict[str, tf.Tensor], true_hw_B2: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """The same from what the network answered."""
        if true_hw_B2 is None:
            batch_size = tf.shape(outputs["class_logits_BHWK"])[0]
            true_hw_B2 = tf.tile(tf.constant([network_hw(self.config.image_resizer)]), [batch_size, 1])
        class_ids_K = tf.constant(self.label_map.class_ids)
        true_cells_hw_B2 = tf.cast(true_hw_B2, tf.float32) / STRIDE
        return build_centernet_detections(self.config, class_ids_K, outputs, true_cells_hw_B2)


def build_centernet_detector(config: CenterNet, label_map: LabelMap) -> CenterNetDetector:
    """A detector with random weights."""
    return CenterNetDetector(config, label_map, build_centernet(config, label_map.num_classes))
