"""The family of Faster R-CNN. Imports TensorFlow only inside the methods that need it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from detloom.schemas.contracts import ground_truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.network import ConvHyperparams, KeepAspectRatioResizer
from detloom.trainer_module.detectors.detector import Family, Finding, check_padding
from detloom.trainer_module.detectors.faster_rcnn.anchors import build_first_stage_anchors
from detloom.trainer_module.detectors.one_stage.supported import (
    check_backbone_hyperparams,
    check_conv_hyperparams,
    check_suppression,
)

if TYPE_CHECKING:
    import keras

    from detloom.trainer_module.detectors.faster_rcnn.detector import FasterRcnnDetector
    from detloom.trainer_module.detectors.preprocess import Preprocessing


@dataclass(frozen=True)
class FasterRcnnFamily(Family[FasterRcnn]):
    """Faster R-CNN (arXiv:1506.01497)."""

    def check_settings(self) -> Iterator[Finding]:
        """See `Family`."""
        config = self.config
        resizer = config.image_resizer
        if isinstance(resizer, KeepAspectRatioResizer):
            yield check_padding(resizer)
            network_hw = (resizer.max_dimension, resizer.max_dimension)
        else:
            network_hw = (resizer.height, resizer.width)
        if not config.clip_anchors_to_image:
            has_inner = bool(build_first_stage_anchors(config, network_hw).is_inner_A.any())
            supported = "true, or a larger image_resizer: no anchor is inside of an input of {} x {} pixels"
            yield Finding(has_inner, "model.clip_anchors_to_image", False, supported.format(*network_hw))
        groups: dict[str, ConvHyperparams | None] = {
            "first_stage_box_predictor_conv_hyperparams": config.first_stage_box_predictor_conv_hyperparams,
            "second_stage_box_predictor.fc_hyperparams": config.second_stage_box_predictor.fc_hyperparams,
            "second_stage_box_predictor.conv_hyperparams": config.second_stage_box_predictor.conv_hyperparams,
        }
        for path, hyperparams in groups.items():
            if hyperparams is not None:
                yield from check_conv_hyperparams(hyperparams, f"model.{path}")
        yield from check_backbone_hyperparams(config.feature_extractor)
        path = "model.second_stage_post_processing"
        yield check_suppression(config.second_stage_post_processing, path)
        nms = config.second_stage_post_processing.batch_non_max_suppression
        is_shared = config.second_stage_box_predictor.share_box_across_classes
        supported = "false unless second_stage_box_predictor.share_box_across_classes is true"
        is_supported = is_shared or not nms.use_class_agnostic_nms
        path = f"{path}.batch_non_max_suppression.use_class_agnostic_nms"
        yield Finding(is_supported, path, nms.use_class_agnostic_nms, supported)

    @property
    def ground_truth_columns(self) -> tuple[str, ...]:
        """See `Family`."""
        columns = ground_truth.TRAINING_COLUMNS
        return (*columns, ground_truth.MASKS) if self.config.number_of_stages == 3 else columns

    def num_class_channels(self, num_classes: int) -> int:
        """Return the number of classes and the background."""
        return num_classes + 1

    @property
    def preprocessing(self) -> "Preprocessing":
        """Images are normalized last, so that padding is a color."""
        from detloom.trainer_module.detectors.faster_rcnn.network import normalize
        from detloom.trainer_module.detectors.preprocess import Preprocessing

        to_units = partial(normalize, self.config.feature_extractor.backbone)
        return Preprocessing(self.config.image_resizer, to_units, normalize_first=False)

    def build(self, label_map: LabelMap) -> "FasterRcnnDetector":
        """See `Family`."""
        from detloom.trainer_module.detectors.faster_rcnn.detector import build_faster_rcnn_detector

        return build_faster_rcnn_detector(self, label_map)

    def odapi_layer_keys(self, network: "keras.Model") -> dict[str, str]:
        """See `Family`."""
        from detloom.trainer_module.detectors.faster_rcnn.odapi_keys import faster_rcnn_layer_keys

        return faster_rcnn_layer_keys(self.config, network)

    def odapi_classification_keys(self, network: "keras.Model") -> dict[str, str]:
        """See `Family`."""
        from detloom.trainer_module.detectors.faster_rcnn.odapi_keys import classification_layer_keys

        return classification_layer_keys(network)
