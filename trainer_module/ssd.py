"""Single-shot detectors (SSD, RetinaNet, EfficientDet): the network, its anchors, and what they mean together.

Structure as the Object Detection API's `SSDMetaArch`. Letters: `B` images, `A` anchors, `C` class channels (classes,
after a background channel where there is one).
"""

from dataclasses import dataclass

import keras
import tensorflow as tf

from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import (
    BiFpn,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.trainer_module.anchors import build_anchors, feature_hws
from detloom.trainer_module.backbones.efficientnet import build_efficientnet
from detloom.trainer_module.backbones.mobilenet_v1 import build_mobilenet_v1
from detloom.trainer_module.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.backbones.resnet_v1 import build_resnet_v1
from detloom.trainer_module.heads.level_heads import build_level_heads
from detloom.trainer_module.heads.shared_heads import build_shared_heads
from detloom.trainer_module.losses import count_matches, detection_losses
from detloom.trainer_module.necks.bifpn import build_bifpn
from detloom.trainer_module.necks.extra_layers import build_extra_layers
from detloom.trainer_module.necks.fpn import build_fpn
from detloom.trainer_module.postprocess import build_detections
from detloom.trainer_module.preprocess import network_hw
from detloom.trainer_module.targets import Targets, assign_targets


@dataclass(frozen=True)
class SsdDetector:
    """Plain functions over one network; see `Detector`."""

    config: Ssd
    label_map: LabelMap
    network: keras.Model
    anchors_yxyx_rel_A4: tf.Tensor

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Of what `losses` returns."""
        return ("class_loss", "box_loss")

    def describe(self) -> str:
        """What of its size the log says beside the parameters."""
        return f"{len(self.anchors_yxyx_rel_A4)} anchors"

    def count_matches(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """See `Detector.count_matches`."""
        return count_matches(self._targets(batch))

    def losses(
        self, batch: dict[str, tf.Tensor], *, training: bool, num_matches: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Scalar `class_loss` and `box_loss` of a batch of `build_train_dataset`; see `Detector.losses`."""
        outputs = self.network(batch["image"], training=training)
        return self.losses_of_outputs(outputs, batch, num_matches)

    def losses_of_outputs(
        self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor], num_matches: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """The same from what the network answered."""
        answers = outputs["offsets_BA4"], outputs["class_logits_BAC"]
        return detection_losses(self.config, self.anchors_yxyx_rel_A4, self._targets(batch), *answers, num_matches)

    def _targets(self, batch: dict[str, tf.Tensor]) -> Targets:
        boxes, classes = batch["boxes_yxyx_rel"], batch["class_indices"]
        return assign_targets(self.config, self.anchors_yxyx_rel_A4, boxes, classes, batch.get("box_weights"))

    def detect(self, images_BHW3: tf.Tensor, true_hw_B2: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Detections (`schemas/detections.py`) in prepared pictures; see `Detector.detect`."""
        outputs = self.network(images_BHW3, training=False)
        return self.detections_of_outputs(outputs, true_hw_B2)

    def detections_of_outputs(
        self, outputs: dict[str, tf.Tensor], true_hw_B2: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """The same from what the network answered."""
        return build_detections(
            self.config,
            self.anchors_yxyx_rel_A4,
            tf.constant(self.label_map.class_ids),
            outputs["offsets_BA4"],
            outputs["class_logits_BAC"],
            true_hw_B2,
        )


def build_ssd_detector(config: Ssd, label_map: LabelMap) -> SsdDetector:
    """A detector with random weights."""
    network = build_ssd(config, label_map.num_classes)
    image_hw = network_hw(config.image_resizer)
    anchors = build_anchors(config.anchor_generator, image_hw, feature_hws(config, image_hw))
    num_rows = network.output["offsets_BA4"].shape[1]
    assert len(anchors) == num_rows, f"{len(anchors)} anchors for {num_rows} rows of the network's outputs"
    return SsdDetector(config, label_map, network, tf.constant(anchors))


def build_ssd(config: Ssd, num_classes: int) -> keras.Model:
    """Network from prepared pictures, [B, H, W, 3], to {"offsets_BA4", "class_logits_BAC"}, float32."""
    height, width = network_hw(config.image_resizer)
    extractor = config.feature_extractor
    image = keras.Input((height, width, 3), name="image")
    padded = _pad_to_multiple(image, extractor.pad_to_multiple)
    features = _build_backbone(extractor, padded, freeze_batchnorm=config.freeze_batchnorm)
    pyramid = _build_neck(extractor, features, freeze_batchnorm=config.freeze_batchnorm)
    num_channels = num_classes + int(config.add_background_class)
    offsets, logits = _build_heads(config, pyramid, num_channels)
    outputs = {"offsets_BA4": _concat_levels(offsets, 4), "class_logits_BAC": _concat_levels(logits, num_channels)}
    return keras.Model(image, outputs, name=f"ssd_{extractor.backbone}_{height}x{width}")


def _pad_to_multiple(image: keras.KerasTensor, multiple: int) -> keras.KerasTensor:
    """Zeros below and to the right, up to multiples of `multiple`. Boxes stay relative to the picture without them."""
    rows, columns = (-side % multiple for side in image.shape[1:3])
    if rows == 0 and columns == 0:
        return image
    return keras.layers.ZeroPadding2D(((0, rows), (0, columns)), name="image_pad")(image)


def _build_backbone(
    config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    match config.backbone:
        case "mobilenet_v1":
            return build_mobilenet_v1(config, image, freeze_batchnorm=freeze_batchnorm)
        case "mobilenet_v2":
            return build_mobilenet_v2(config, image, freeze_batchnorm=freeze_batchnorm)
        case "resnet50_v1" | "resnet101_v1" | "resnet152_v1":
            return build_resnet_v1(config, image, freeze_batchnorm=freeze_batchnorm)
        case _:
            return build_efficientnet(config, image, freeze_batchnorm=freeze_batchnorm)


def _build_neck(
    config: FeatureExtractor, features: dict[int, keras.KerasTensor], *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    match config.neck:
        case Fpn():
            return build_fpn(config, features, freeze_batchnorm=freeze_batchnorm)
        case BiFpn():
            return build_bifpn(config, features, freeze_batchnorm=freeze_batchnorm)
        case ExtraFeatureLayers():
            return build_extra_layers(config, features, freeze_batchnorm=freeze_batchnorm)
    raise AssertionError(f"no such neck: {config.neck}")


def _build_heads(
    config: Ssd, pyramid: dict[int, keras.KerasTensor], num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    match config.box_predictor:
        case ConvolutionalBoxPredictor():
            return build_level_heads(config, pyramid, num_class_channels)
        case WeightSharedConvolutionalBoxPredictor():
            return build_shared_heads(config, pyramid, num_class_channels)
    raise AssertionError(f"no such heads: {config.box_predictor}")


def _concat_levels(levels: list[keras.KerasTensor], depth: int) -> keras.KerasTensor:
    """[B, H, W, anchors * depth] of each level to float32 [B, A, depth]."""
    flat = [keras.layers.Reshape((-1, depth))(level) for level in levels]
    joined = keras.layers.Concatenate(axis=1)(flat) if len(flat) > 1 else flat[0]
    return keras.layers.Activation("linear", dtype=tf.float32)(joined)
