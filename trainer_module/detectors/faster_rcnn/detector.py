"""Faster R-CNN (arXiv:1506.01497): networks, proposals, losses and detections.

The structure is that of `FasterRCNNMetaArch` in the Object Detection API. Letters: `B` images, `A` anchors, `G` padded
ground-truth boxes, `P` padded proposals, `Q` boxes per proposal (1, or one per class), `C` class channels (background,
then the classes).

`forward` returns

    rpn_offsets_BA4         box offsets of the anchors; in training without `clip_anchors_to_image`, of the inner ones
    objectness_logits_BA2   background and object
    random_BA               in training: random numbers for the choice of the anchors that count
    proposals_yxyx_rel_BP4  relative to the network's input, 0 in padding; in training those that were sampled
    num_proposals_B         int32, number of rows that are not padding
    offsets_BPQ4            box offsets from the proposals
    class_logits_BPC

and with masks, in training of the proposals (`N` = `P`), in inference of the detections:

    mask_boxes_yxyx_rel_BN4  relative to the network's input, 0 in padding
    num_masks_B              int32, number of rows that are not padding
    mask_logits_BNhwL        `h` x `w` cells of `L` masks (1, or one per class)
    detection_...            in inference: the detections without their masks
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.detections import BOXES, CLASSES, MASKS, NUM_DETECTIONS, SCORES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.trainer_module.boxes.box_coder import decode_boxes
from detloom.trainer_module.boxes.crops import crop_features
from detloom.trainer_module.boxes.postprocess import build_detections
from detloom.trainer_module.boxes.targets import Targets
from detloom.trainer_module.detectors.activation_memory import activation_bytes
from detloom.trainer_module.detectors.detector import Detector, Family, Tensors
from detloom.trainer_module.detectors.faster_rcnn.anchors import build_first_stage_anchors, feature_levels
from detloom.trainer_module.detectors.faster_rcnn.losses import (
    detection_targets,
    first_stage_losses,
    mask_loss,
    proposal_targets,
    sample_anchors,
    sample_proposals,
    second_stage_losses,
)
from detloom.trainer_module.detectors.faster_rcnn.network import Networks, build_networks
from detloom.trainer_module.detectors.faster_rcnn.proposals import BOX_CODER, Proposals, select_proposals
from detloom.trainer_module.detectors.faster_rcnn.sampling import take_first

_NO_OBJECT = 1e9  # logit of the background of padding; its scores are exactly 0


@dataclass(frozen=True, eq=False)
class FasterRcnnDetector(Detector[FasterRcnn]):
    """A Faster R-CNN; see `Detector`.

    Attributes:
        networks: the parts of `network`.
        anchors_yxyx_px_A4: anchors of the first stage, clipped to the network's input.
        inner_anchors_A: int32, indices of the anchors that are inside of it, in order.
    """

    networks: Networks
    anchors_yxyx_px_A4: tf.Tensor
    inner_anchors_A: tf.Tensor

    def describe(self) -> str:
        """Return the numbers of anchors and proposals."""
        return f"{len(self.anchors_yxyx_px_A4)} anchors, {self.config.first_stage_max_proposals} proposals"

    # --- networks -----------------------------------------------------------------------------------------------------

    def forward(self, batch: Tensors, *, training: bool) -> Tensors:
        """See `Detector`. Without `true_hw` in the batch, the whole input is image."""
        config = self.config
        first = self.networks.first_stage(batch[truth.IMAGE], training=training)
        outputs = {name: first[name] for name in ("rpn_offsets_BA4", "objectness_logits_BA2")}
        if training and not config.clip_anchors_to_image:
            outputs = {name: tf.gather(value, self.inner_anchors_A, axis=1) for name, value in outputs.items()}
        if training:
            outputs["random_BA"] = self.networks.random.uniform(tf.shape(outputs["rpn_offsets_BA4"])[:2])
        if self.networks.second_stage is None:
            return outputs
        true_hw_B2 = self._true_hw(outputs, batch.get(truth.TRUE_HW))
        proposals = self._proposals(outputs, true_hw_B2)
        if training and config.hard_example_miner is None:
            proposals = self._sample(proposals, batch)
        boxes_rel_BP4 = proposals.boxes_yxyx_px_BP4 / self._sides_4()
        features = [first[f"features_{level}"] for level in feature_levels(config.feature_extractor)]
        later = self.networks.later_stages if training else self.networks.second_stage
        of_regions = self._apply_to_regions(later, features, boxes_rel_BP4, training=training)
        outputs |= {
            "proposals_yxyx_rel_BP4": boxes_rel_BP4,
            "num_proposals_B": proposals.num_B,
            "offsets_BPQ4": of_regions["offsets_NQ4"],
            "class_logits_BPC": of_regions["class_logits_NC"],
        }
        if self.networks.third_stage is None:
            return outputs
        mask_boxes_rel_BN4, num_masks_B = boxes_rel_BP4, proposals.num_B
        if not training:
            outputs |= self._detections_without_masks(outputs, true_hw_B2)
            mask_boxes_rel_BN4 = outputs[BOXES] * tf.tile(self._image_share_hw(true_hw_B2), [1, 2])[:, tf.newaxis]
            num_masks_B = tf.cast(outputs[NUM_DETECTIONS], tf.int32)
            of_regions = self._apply_to_regions(self.networks.third_stage, features, mask_boxes_rel_BN4, training=False)
        return {
            **outputs,
            "mask_boxes_yxyx_rel_BN4": mask_boxes_rel_BN4,
            "num_masks_B": num_masks_B,
            "mask_logits_BNhwL": of_regions["mask_logits_NhwL"],
        }

    def _apply_to_regions(
        self, stage: keras.Model, features: list[tf.Tensor], boxes_rel_BN4: tf.Tensor, *, training: bool
    ) -> Tensors:
        """Return the outputs [B, N, ...] of a stage for the features of each box."""
        network_hw, side = self.preprocessing.network_hw, self.config.initial_crop_size
        crops = crop_features(features, boxes_rel_BN4, network_hw, side)
        outputs = stage(tf.reshape(crops, [-1, *crops.shape[2:]]), training=training)
        num_boxes = boxes_rel_BN4.shape[1]
        return {name: tf.reshape(value, [-1, num_boxes, *value.shape[1:]]) for name, value in outputs.items()}

    def _true_hw(self, outputs: Tensors, true_hw_B2: tf.Tensor | None) -> tf.Tensor:
        """Return rows and columns that are image, [B, 2]; those of the whole input if they are not given."""
        if true_hw_B2 is None:
            batch_size = tf.shape(outputs["rpn_offsets_BA4"])[0]
            return tf.tile(tf.constant([self.preprocessing.network_hw]), [batch_size, 1])
        return true_hw_B2

    def _image_share_hw(self, true_hw_B2: tf.Tensor) -> tf.Tensor:
        """Return rows and columns that are image, over those of the network's input, float32 [B, 2]."""
        return tf.cast(true_hw_B2, tf.float32) / self._sides_4()[:2]

    def _proposals(self, outputs: Tensors, true_hw_B2: tf.Tensor) -> Proposals:
        offsets_BA4, logits_BA2 = outputs["rpn_offsets_BA4"], outputs["objectness_logits_BA2"]
        return select_proposals(self.config, self._anchors_of(outputs), offsets_BA4, logits_BA2, true_hw_B2)

    def _sample(self, proposals: Proposals, batch: Tensors) -> Proposals:
        """Choose the proposals that train the second stage."""
        targets = detection_targets(proposals.boxes_yxyx_px_BP4, *self._boxes(batch))
        is_proposal_BP = tf.range(proposals.scores_BP.shape[1]) < proposals.num_B[:, tf.newaxis]
        random_BP = self.networks.random.uniform(tf.shape(proposals.scores_BP))
        is_chosen_BP = sample_proposals(self.config, targets, is_proposal_BP, random_BP)
        num_B, boxes_BP4, scores_BP = take_first(
            is_chosen_BP, self.config.second_stage_batch_size, proposals.boxes_yxyx_px_BP4, proposals.scores_BP
        )
        return Proposals(boxes_BP4, scores_BP, num_B)

    def _anchors_of(self, outputs: Tensors) -> tf.Tensor:
        """Return the anchors of the rows of the first stage's outputs."""
        if outputs["rpn_offsets_BA4"].shape[1] == len(self.anchors_yxyx_px_A4):
            return self.anchors_yxyx_px_A4
        return tf.gather(self.anchors_yxyx_px_A4, self.inner_anchors_A)

    def _sides_4(self) -> tf.Tensor:
        return tf.constant(self.preprocessing.network_hw * 2, tf.float32)

    # --- training -----------------------------------------------------------------------------------------------------

    @property
    def loss_names(self) -> tuple[str, ...]:
        """See `Detector`."""
        names = ("rpn_objectness_loss", "rpn_box_loss", "class_loss", "box_loss", "mask_loss")
        return names[: {1: 2, 2: 4, 3: 5}[self.config.number_of_stages]]

    def losses(self, outputs: Tensors, batch: Tensors, num_matches: tf.Tensor | None = None) -> Tensors:
        """See `Detector`. In inference mode, the anchors that count are always the same ones.

        The loss of the masks is a mean over the objects of the batch; of parts of a batch, it is the mean of their
        means, as between the replicas of the reference.
        """
        anchors_A4, targets = self._anchors_of(outputs), self.proposal_targets(outputs, batch)
        random_BA = outputs.get("random_BA")
        if random_BA is None:
            random_BA = tf.random.stateless_uniform(tf.shape(targets.match_BA), seed=[0, 0], alg="philox")
        losses = first_stage_losses(
            self.config,
            anchors_A4,
            targets,
            sample_anchors(self.config, targets, random_BA),
            outputs["rpn_offsets_BA4"],
            outputs["objectness_logits_BA2"],
        )
        if self.networks.second_stage is not None:
            proposals_px_BP4 = outputs["proposals_yxyx_rel_BP4"] * self._sides_4()
            targets = detection_targets(proposals_px_BP4, *self._boxes(batch))
            losses |= second_stage_losses(
                self.config,
                proposals_px_BP4,
                outputs["num_proposals_B"],
                targets,
                outputs["offsets_BPQ4"],
                outputs["class_logits_BPC"],
            )
        if self.networks.third_stage is not None:
            boxes_rel_BN4 = outputs["mask_boxes_yxyx_rel_BN4"]
            if boxes_rel_BN4 is not outputs["proposals_yxyx_rel_BP4"]:  # they are the same in training
                targets = detection_targets(boxes_rel_BN4 * self._sides_4(), *self._boxes(batch))
            weights_BN = tf.cast(tf.range(boxes_rel_BN4.shape[1]) < outputs["num_masks_B"][:, tf.newaxis], tf.float32)
            mean = mask_loss(
                self.config,
                batch[truth.MASKS],
                boxes_rel_BN4,
                weights_BN,
                targets,
                outputs["mask_logits_BNhwL"],
            )
            losses["mask_loss"] = mean * self.count_matches(batch)
        num_images = tf.maximum(self.count_matches(batch) if num_matches is None else num_matches, 1.0)
        return {name: loss / num_images for name, loss in losses.items()}

    def count_matches(self, batch: Tensors) -> tf.Tensor:
        """Return the number of images: the losses of each image are divided by the number of its samples already."""
        return tf.cast(tf.shape(batch[truth.CLASSES])[0], tf.float32)

    def proposal_targets(self, outputs: Tensors, batch: Tensors) -> Targets:
        """Return the targets of the anchors."""
        return proposal_targets(self._anchors_of(outputs), *self._boxes(batch))

    def _boxes(self, batch: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the boxes in pixels, their class indices and their weights."""
        weights_BG = batch.get(truth.WEIGHTS)
        if weights_BG is None:
            weights_BG = tf.cast(batch[truth.CLASSES] >= 0, tf.float32)
        if truth.SHARES in batch:
            weights_BG *= batch[truth.SHARES]
        return batch[truth.BOXES] * self._sides_4(), batch[truth.CLASSES], weights_BG

    def activation_bytes_per_image(self) -> int | None:
        """See `Detector`; the later stages count once for each proposal of an image."""
        config, later = self.config, self.networks.later_stages
        first_bytes = activation_bytes(self.networks.first_stage)
        if later is None or first_bytes is None:
            return first_bytes
        is_sampled = config.hard_example_miner is None
        num_proposals = config.second_stage_batch_size if is_sampled else config.first_stage_max_proposals
        return first_bytes + num_proposals * (activation_bytes(later) or 0)

    # --- inference ----------------------------------------------------------------------------------------------------

    def with_networks(self, convert: Callable[[keras.Model], keras.Model]) -> "FasterRcnnDetector":
        """See `Detector`."""
        networks = self.networks.convert(convert)
        return replace(self, network=networks.whole, networks=networks)

    def detections(self, outputs: Tensors, true_hw_B2: tf.Tensor | None = None) -> Tensors:
        """See `Detector`. Masks need outputs of inference mode."""
        if BOXES not in outputs:
            return self._detections_without_masks(outputs, self._true_hw(outputs, true_hw_B2))
        detections = {name: outputs[name] for name in (BOXES, SCORES, CLASSES, NUM_DETECTIONS)}
        logits_BNhwL = outputs["mask_logits_BNhwL"]
        num_masks = logits_BNhwL.shape[-1]
        class_ids_K = tf.constant(self.label_map.class_ids, tf.float32)
        is_class_BNL = tf.cast(detections[CLASSES][..., tf.newaxis] == class_ids_K, tf.float32)
        if num_masks == 1:  # no box without an object has a mask
            is_class_BNL = tf.reduce_max(is_class_BNL, axis=-1, keepdims=True)
        return {**detections, MASKS: tf.einsum("bnhwl,bnl->bnhw", tf.sigmoid(logits_BNhwL), is_class_BNL)}

    def _detections_without_masks(self, outputs: Tensors, true_hw_B2: tf.Tensor) -> Tensors:
        if self.networks.second_stage is None:
            return self._detections_of_proposals(self._proposals(outputs, true_hw_B2), true_hw_B2)
        offsets_BPQ4, boxes_rel_BP4 = outputs["offsets_BPQ4"], outputs["proposals_yxyx_rel_BP4"]
        boxes_px_BPQ4 = decode_boxes(BOX_CODER, offsets_BPQ4, (boxes_rel_BP4 * self._sides_4())[:, :, tf.newaxis])
        boxes_rel_BN4 = tf.reshape(boxes_px_BPQ4 / self._sides_4(), [-1, math.prod(offsets_BPQ4.shape[1:3]), 4])
        logits_BPC = outputs["class_logits_BPC"]
        is_proposal_BP1 = (tf.range(logits_BPC.shape[1]) < outputs["num_proposals_B"][:, tf.newaxis])[..., tf.newaxis]
        padding_C = _NO_OBJECT * (2 * tf.one_hot(0, logits_BPC.shape[-1]) - 1)
        return build_detections(
            self.config.second_stage_post_processing,
            tf.where(is_proposal_BP1, logits_BPC, padding_C),
            lambda indices_BM: tf.gather(boxes_rel_BN4, indices_BM, batch_dims=1),
            tf.constant(self.label_map.class_ids),
            has_background=True,
            image_share_hw_B2=self._image_share_hw(true_hw_B2),
            has_boxes_per_class=offsets_BPQ4.shape[2] > 1,
            on_host=self.suppresses_on_host,
        )

    def _detections_of_proposals(self, proposals: Proposals, true_hw_B2: tf.Tensor) -> Tensors:
        """Return the proposals as detections of the only class."""
        true_sides_B14 = tf.cast(tf.tile(true_hw_B2, [1, 2]), tf.float32)[:, tf.newaxis]
        is_row_BP = tf.range(proposals.scores_BP.shape[1]) < proposals.num_B[:, tf.newaxis]
        return {
            BOXES: tf.clip_by_value(proposals.boxes_yxyx_px_BP4 / true_sides_B14, 0.0, 1.0),
            SCORES: proposals.scores_BP,
            CLASSES: tf.where(is_row_BP, float(self.label_map.class_ids[0]), 0.0),
            NUM_DETECTIONS: tf.cast(proposals.num_B, tf.float32),
        }


def build_faster_rcnn_detector(family: Family[FasterRcnn], label_map: LabelMap) -> FasterRcnnDetector:
    """Build a detector with random weights.

    Raises:
        InputError: for one stage with several classes.
    """
    config = family.config
    if config.number_of_stages == 1 and label_map.num_classes != 1:
        raise InputError(
            f"model.number_of_stages: got 1, which finds objects without their classes, but the label map has "
            f"{label_map.num_classes} classes; set it to 2, or use a label map with one class."
        )
    networks = build_networks(config, label_map.num_classes)
    anchors = build_first_stage_anchors(config, family.preprocessing.network_hw)
    num_anchors, num_rows = len(anchors.is_inner_A), networks.first_stage.output["rpn_offsets_BA4"].shape[1]
    assert num_anchors == num_rows, f"{num_anchors} anchors for {num_rows} rows of the network's outputs"
    clipped_A4 = tf.constant(anchors.clipped_yxyx_px_A4)
    inner_A = tf.constant(np.flatnonzero(anchors.is_inner_A), tf.int32)
    return FasterRcnnDetector(family, label_map, networks.whole, networks, clipped_A4, inner_A)
