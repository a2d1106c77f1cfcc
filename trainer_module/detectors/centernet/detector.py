"""CenterNet (arXiv:1904.07850): network, losses and detections.

The structure is that of `CenterNetMetaArch` in the Object Detection API. Letters: `B` images, `H W` cells of the heat
map, `K` classes, `G` padded boxes.
"""

from dataclasses import dataclass, replace

import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNet
from detloom.trainer_module.detectors.centernet.decode import build_centernet_detections
from detloom.trainer_module.detectors.centernet.losses import centernet_losses, count_boxes
from detloom.trainer_module.detectors.centernet.network import STRIDE, build_centernet
from detloom.trainer_module.detectors.centernet.targets import CenterNetTargets, assign_centernet_targets
from detloom.trainer_module.detectors.detector import Detector, Family, Tensors


@dataclass(frozen=True, eq=False)
class CenterNetDetector(Detector[CenterNet]):
    """A CenterNet; see `Detector`."""

    @property
    def map_hw(self) -> tuple[int, int]:
        """Rows and columns of the heat map."""
        height, width = self.preprocessing.network_hw
        return height // STRIDE, width // STRIDE

    def describe(self) -> str:
        """Return the size of the heat map."""
        return "a heat map of {} x {} cells".format(*self.map_hw)

    @property
    def loss_names(self) -> tuple[str, ...]:
        """See `Detector`."""
        return ("class_loss", "size_loss", "offset_loss")

    def losses(self, outputs: Tensors, batch: Tensors, num_matches: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        true_cells_hw_B2 = -(-batch[truth.TRUE_HW] // STRIDE)
        return centernet_losses(self.config, self._targets(batch), outputs, true_cells_hw_B2, num_matches)

    def count_matches(self, batch: Tensors) -> tf.Tensor:
        """See `Detector`."""
        return count_boxes(self._targets(batch))

    def _targets(self, batch: Tensors) -> CenterNetTargets:
        return assign_centernet_targets(
            batch[truth.BOXES],
            batch[truth.CLASSES],
            batch.get(truth.WEIGHTS),
            batch.get(truth.SHARES),
            map_hw=self.map_hw,
            num_classes=self.label_map.num_classes,
            min_iou=self.config.object_center_params.min_box_overlap_iou,
        )

    def detections(self, outputs: Tensors, true_hw_B2: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        if true_hw_B2 is None:
            batch_size = tf.shape(outputs["class_logits_BHWK"])[0]
            true_hw_B2 = tf.tile(tf.constant([self.preprocessing.network_hw]), [batch_size, 1])
        class_ids_K = tf.constant(self.label_map.class_ids)
        true_cells_hw_B2 = tf.cast(true_hw_B2, tf.float32) / STRIDE
        return build_centernet_detections(self.config.object_center_params, class_ids_K, outputs, true_cells_hw_B2)

    def fixed_size_outputs(self, outputs: Tensors, *, raw: bool, max_detections: int) -> Tensors:
        """Return detections in any case: there is no non-maximum suppression to leave out."""
        params = replace(self.config.object_center_params, max_box_predictions=max_detections)
        family = replace(self.family, config=replace(self.config, object_center_params=params))
        return replace(self, family=family).detections(outputs)


def build_centernet_detector(family: Family[CenterNet], label_map: LabelMap) -> CenterNetDetector:
    """Build a detector with random weights."""
    return CenterNetDetector(family, label_map, build_centernet(family.config, label_map.num_classes))
