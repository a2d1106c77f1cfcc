"""CenterNet (arXiv:1904.07850): network, losses and detections.

The structure is that of `CenterNetMetaArch` in the Object Detection API. Letters: `B` images, `H W` cells of the heat
map, `K` classes, `G` padded boxes, `P` keypoints of an object.
"""

from dataclasses import dataclass, replace

import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNet
from detloom.trainer_module.detectors.centernet.decode import build_centernet_detections
from detloom.trainer_module.detectors.centernet.keypoint_losses import (
    KEYPOINT_LOSSES,
    count_keypoints,
    keypoint_losses,
)
from detloom.trainer_module.detectors.centernet.keypoint_targets import KeypointTargets, assign_keypoint_targets
from detloom.trainer_module.detectors.centernet.losses import centernet_losses, count_boxes
from detloom.trainer_module.detectors.centernet.network import STRIDE, build_centernet
from detloom.trainer_module.detectors.centernet.targets import CenterNetTargets, assign_centernet_targets
from detloom.trainer_module.detectors.detector import Detector, Family, Tensors


@dataclass(frozen=True, eq=False)
class CenterNetDetector(Detector[CenterNet]):
    """A CenterNet; see `Detector`.

    Attributes:
        keypoint_class_index: of the class with keypoints, if the detector has any.
    """

    keypoint_class_index: int | None = None

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
        keypoints = KEYPOINT_LOSSES if self.config.keypoint_estimation_task is not None else ()
        return ("class_loss", "size_loss", "offset_loss", *keypoints)

    def losses(self, outputs: Tensors, batch: Tensors, num_matches: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        true_cells_hw_B2 = -(-batch[truth.TRUE_HW] // STRIDE)
        targets = self._targets(batch)
        keypoint_targets = self._keypoint_targets(batch)
        if keypoint_targets is None:
            return centernet_losses(self.config, targets, outputs, true_cells_hw_B2, num_matches)
        num_boxes, num_points_3 = (None, None) if num_matches is None else (num_matches[0], num_matches[1:])
        return {
            **centernet_losses(self.config, targets, outputs, true_cells_hw_B2, num_boxes),
            **keypoint_losses(self.config, keypoint_targets, outputs, true_cells_hw_B2, num_points_3),
        }

    def count_matches(self, batch: Tensors) -> tf.Tensor:
        """See `Detector`. With keypoints [4]: of the boxes, and of the losses of heat map, offsets and regression."""
        num_boxes = count_boxes(self._targets(batch))
        keypoint_targets = self._keypoint_targets(batch)
        if keypoint_targets is None:
            return num_boxes
        return tf.concat([[num_boxes], count_keypoints(keypoint_targets)], axis=0)

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

    def _keypoint_targets(self, batch: Tensors) -> KeypointTargets | None:
        if self.config.keypoint_estimation_task is None:
            return None
        assert self.keypoint_class_index is not None
        return assign_keypoint_targets(
            self.config.keypoint_estimation_task,
            batch[truth.BOXES],
            batch[truth.CLASSES],
            batch[truth.KEYPOINTS],
            batch.get(truth.WEIGHTS),
            map_hw=self.map_hw,
            class_index=self.keypoint_class_index,
        )

    def detections(self, outputs: Tensors, true_hw_B2: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        if true_hw_B2 is None:
            batch_size = tf.shape(outputs["class_logits_BHWK"])[0]
            true_hw_B2 = tf.tile(tf.constant([self.preprocessing.network_hw]), [batch_size, 1])
        class_ids_K = tf.constant(self.label_map.class_ids)
        true_cells_hw_B2 = tf.cast(true_hw_B2, tf.float32) / STRIDE
        return build_centernet_detections(
            self.config, class_ids_K, outputs, true_cells_hw_B2, self.keypoint_class_index
        )

    def fixed_size_outputs(self, outputs: Tensors, *, raw: bool, max_detections: int) -> Tensors:
        """Return detections in any case: there is no non-maximum suppression to leave out."""
        params = replace(self.config.object_center_params, max_box_predictions=max_detections)
        family = replace(self.family, config=replace(self.config, object_center_params=params))
        return replace(self, family=family).detections(outputs)


def build_centernet_detector(family: Family[CenterNet], label_map: LabelMap) -> CenterNetDetector:
    """Build a detector with random weights.

    Raises:
        InputError: if the label map lacks the class with keypoints.
    """
    class_index = None
    if (task := family.config.keypoint_estimation_task) is not None:
        if task.keypoint_class_name not in label_map.names:
            raise InputError(
                f"model.keypoint_estimation_task.keypoint_class_name: got {task.keypoint_class_name!r}, allowed: a "
                f"class of the label map: {', '.join(label_map.names)}."
            )
        class_index = label_map.names.index(task.keypoint_class_name)
    network = build_centernet(family.config, label_map.num_classes)
    return CenterNetDetector(family, label_map, network, class_index)
