"""CenterNet (arXiv:1904.07850): network, losses and detections.

The structure is that of `CenterNetMetaArch` in the Object Detection API. Letters: `B` images, `H W` cells of the heat
map, `K` classes, `G` padded boxes, `P` keypoints of an object.
"""

from dataclasses import dataclass, replace

import keras
import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.detections import BOXES, CLASSES, MASKS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.deepmac import DeepMac
from detloom.trainer_module.detectors.activation_memory import activation_bytes
from detloom.trainer_module.detectors.centernet.decode import build_centernet_detections
from detloom.trainer_module.detectors.centernet.deepmac import (
    build_mask_network,
    check_mask_classes,
    mask_logits,
    mask_loss,
    trained_mask_weights,
)
from detloom.trainer_module.detectors.centernet.keypoint_losses import (
    KEYPOINT_LOSSES,
    count_keypoints,
    keypoint_losses,
)
from detloom.trainer_module.detectors.centernet.keypoint_targets import KeypointTargets, assign_keypoint_targets
from detloom.trainer_module.detectors.centernet.losses import centernet_losses, count_boxes
from detloom.trainer_module.detectors.centernet.network import OBJECTS, PIXELS, STRIDE, build_centernet, output_suffixes
from detloom.trainer_module.detectors.centernet.targets import CenterNetTargets, assign_centernet_targets
from detloom.trainer_module.detectors.detector import Detector, Family, Tensors

_NUM_BOXES = 100  # of a training image, for the estimate of memory


@dataclass(frozen=True, eq=False)
class CenterNetDetector(Detector[CenterNet]):
    """A CenterNet; see `Detector`.

    Attributes:
        keypoint_class_index: of the class with keypoints, if the detector has any.
        maps: with masks: the part of `network` from images to maps.
        mask_network: with masks: the part of `network` that is applied to each box.
    """

    keypoint_class_index: int | None = None
    maps: keras.Model | None = None
    mask_network: keras.Model | None = None

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
        masks = ("mask_loss",) if self.config.deepmac_mask_estimation is not None else ()
        return ("class_loss", "size_loss", "offset_loss", *keypoints, *masks)

    def forward(self, batch: Tensors, *, training: bool) -> Tensors:
        """See `Detector`. In training, masks are predicted in the boxes of the ground truth."""
        outputs: Tensors = (self.maps or self.network)(batch[truth.IMAGE], training=training)
        if self.mask_network is None or not training:
            return outputs
        logits = {
            f"mask_logits_BGss{suffix}": self._mask_logits(outputs, suffix, batch[truth.BOXES], training=True)
            for suffix in self._mask_suffixes
        }
        return {**outputs, **logits}

    @property
    def _masks(self) -> DeepMac:
        assert self.config.deepmac_mask_estimation is not None
        return self.config.deepmac_mask_estimation

    @property
    def _mask_suffixes(self) -> tuple[str, ...]:
        """The suffixes of the hourglasses whose masks are trained."""
        suffixes = output_suffixes(self.config.feature_extractor)
        return suffixes[-1:] if self._masks.use_only_last_stage else suffixes

    def _mask_logits(
        self, outputs: Tensors, suffix: str, boxes_yxyx_rel_BN4: tf.Tensor, *, training: bool
    ) -> tf.Tensor:
        assert self.mask_network is not None
        pixels_BHWD, objects_BHWE = (outputs[f"{name}{suffix}"] for name in (PIXELS, OBJECTS))
        return mask_logits(
            self._masks, self.mask_network, pixels_BHWD, objects_BHWE, boxes_yxyx_rel_BN4, training=training
        )

    def losses(self, outputs: Tensors, batch: Tensors, num_matches: tf.Tensor | None = None) -> Tensors:
        """See `Detector`."""
        true_cells_hw_B2 = -(-batch[truth.TRUE_HW] // STRIDE)
        targets = self._targets(batch)
        if self.mask_network is not None:
            num_boxes, num_masks = (None, None) if num_matches is None else tf.unstack(num_matches)
            return {
                **centernet_losses(self.config, targets, outputs, true_cells_hw_B2, num_boxes),
                "mask_loss": self._mask_loss(outputs, batch, num_masks),
            }
        keypoint_targets = self._keypoint_targets(batch)
        if keypoint_targets is None:
            return centernet_losses(self.config, targets, outputs, true_cells_hw_B2, num_matches)
        num_boxes, num_points_3 = (None, None) if num_matches is None else (num_matches[0], num_matches[1:])
        return {
            **centernet_losses(self.config, targets, outputs, true_cells_hw_B2, num_boxes),
            **keypoint_losses(self.config, keypoint_targets, outputs, true_cells_hw_B2, num_points_3),
        }

    def count_matches(self, batch: Tensors) -> tf.Tensor:
        """See `Detector`. With keypoints [4]: of the boxes, and of the losses of heat map, offsets and regression.

        With masks [2]: of the boxes, and of the masks.
        """
        num_boxes = count_boxes(self._targets(batch))
        if self.mask_network is not None:
            return tf.stack([num_boxes, tf.reduce_sum(self._mask_weights(batch))])
        keypoint_targets = self._keypoint_targets(batch)
        if keypoint_targets is None:
            return num_boxes
        return tf.concat([[num_boxes], count_keypoints(keypoint_targets)], axis=0)

    def _mask_loss(self, outputs: Tensors, batch: Tensors, num_masks: tf.Tensor | None) -> tf.Tensor:
        """Return the loss of the masks; the hourglasses are averaged."""
        weights_BG = self._mask_weights(batch)
        losses = []
        for suffix in self._mask_suffixes:
            logits_BGss = outputs.get(f"mask_logits_BGss{suffix}")
            if logits_BGss is None:  # in inference
                logits_BGss = self._mask_logits(outputs, suffix, batch[truth.BOXES], training=False)
            losses.append(mask_loss(logits_BGss, batch[truth.MASKS], batch[truth.BOXES], weights_BG))
        num_masks = tf.maximum(tf.reduce_sum(weights_BG) if num_masks is None else num_masks, 1.0)
        return self._masks.task_loss_weight * tf.add_n(losses) / (num_masks * len(losses))

    def _mask_weights(self, batch: Tensors) -> tf.Tensor:
        weights_BG = batch.get(truth.WEIGHTS)
        if weights_BG is None:
            weights_BG = tf.ones(tf.shape(batch[truth.CLASSES]))
        return trained_mask_weights(self._masks, self.label_map, batch[truth.CLASSES], weights_BG)

    def activation_bytes_per_image(self) -> int | None:
        """See `Detector`; the mask network counts once for each of `train_input.max_number_of_boxes`' default."""
        if self.maps is None or self.mask_network is None:
            return super().activation_bytes_per_image()
        of_maps, of_mask = activation_bytes(self.maps), activation_bytes(self.mask_network)
        if of_maps is None or of_mask is None:
            return None
        return of_maps + len(self._mask_suffixes) * _NUM_BOXES * of_mask

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
        detections = build_centernet_detections(
            self.config, class_ids_K, outputs, true_cells_hw_B2, self.keypoint_class_index
        )
        if self.mask_network is None:
            return detections
        share_hw_B2 = true_cells_hw_B2 / tf.constant(self.map_hw, tf.float32)
        boxes_rel_BM4 = detections[BOXES] * tf.tile(share_hw_B2, [1, 2])[:, tf.newaxis]
        logits_BMss = self._mask_logits(outputs, "", boxes_rel_BM4, training=False)
        is_detection_BM11 = (detections[CLASSES] > 0)[..., tf.newaxis, tf.newaxis]
        return {**detections, MASKS: tf.where(is_detection_BM11, tf.sigmoid(logits_BMss), 0.0)}

    def fixed_size_outputs(self, outputs: Tensors, *, raw: bool, max_detections: int) -> Tensors:
        """Return detections in any case: there is no non-maximum suppression to leave out."""
        params = replace(self.config.object_center_params, max_box_predictions=max_detections)
        family = replace(self.family, config=replace(self.config, object_center_params=params))
        return replace(self, family=family).detections(outputs)


def build_centernet_detector(family: Family[CenterNet], label_map: LabelMap) -> CenterNetDetector:
    """Build a detector with random weights.

    Raises:
        InputError: if the label map lacks the class with keypoints, or a class whose masks are trained.
    """
    class_index = None
    if (task := family.config.keypoint_estimation_task) is not None:
        if task.keypoint_class_name not in label_map.names:
            raise InputError(
                f"model.keypoint_estimation_task.keypoint_class_name: got {task.keypoint_class_name!r}, allowed: a "
                f"class of the label map: {', '.join(label_map.names)}."
            )
        class_index = label_map.names.index(task.keypoint_class_name)
    maps = build_centernet(family.config, label_map.num_classes)
    if (masks := family.config.deepmac_mask_estimation) is None:
        return CenterNetDetector(family, label_map, maps, class_index)
    check_mask_classes(masks, label_map)
    mask_network = build_mask_network(masks)
    network = keras.Model(
        [maps.input, mask_network.input], {**maps.output, "mask_logits": mask_network.output}, name=maps.name
    )
    return CenterNetDetector(family, label_map, network, class_index, maps, mask_network)
