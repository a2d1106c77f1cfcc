"""The family of single-shot detectors with anchors. Imports TensorFlow only inside the methods that need it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from detloom.schemas.contracts.arrays import Array, Float32Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.network import BiFpn
from detloom.trainer_module.detectors.detector import AutomlSource, Family, Finding
from detloom.trainer_module.detectors.one_stage.supported import check_settings

if TYPE_CHECKING:
    import keras

    from detloom.trainer_module.detectors.one_stage.detector import SsdDetector
    from detloom.trainer_module.detectors.preprocess import Preprocessing


@dataclass(frozen=True)
class SsdFamily(Family[Ssd]):
    """SSD, RetinaNet and EfficientDet."""

    def check_settings(self) -> Iterator[Finding]:
        """See `Family`."""
        return check_settings(self.config)

    def num_class_channels(self, num_classes: int) -> int:
        """Return the number of classes, plus the background if the network has a channel for it."""
        return num_classes + int(self.config.add_background_class)

    @property
    def preprocessing(self) -> "Preprocessing":
        """Colors are normalized as the backbone was trained with."""
        from detloom.trainer_module.detectors.one_stage.network import normalize
        from detloom.trainer_module.detectors.preprocess import Preprocessing

        normalize_colors = partial(normalize, self.config.feature_extractor.backbone)
        return Preprocessing(self.config.image_resizer, normalize_colors, normalize_first=True)

    def build(self, label_map: LabelMap) -> "SsdDetector":
        """See `Family`."""
        from detloom.trainer_module.detectors.one_stage.detector import build_ssd_detector

        return build_ssd_detector(self, label_map)

    def odapi_layer_keys(self, network: "keras.Model") -> dict[str, str]:
        """Return the keys; {} for EfficientNet-Lite, which the Object Detection API does not have."""
        from detloom.trainer_module.detectors.one_stage.odapi_keys import odapi_layer_keys

        is_lite = self.config.feature_extractor.backbone.startswith("efficientnet-lite")
        return {} if is_lite else odapi_layer_keys(self.config, network)

    def automl_sources(self, network: "keras.Model") -> dict[str, AutomlSource]:
        """Return the sources of an EfficientDet; {} for detectors with another neck."""
        from detloom.trainer_module.detectors.one_stage.automl_keys import automl_sources

        return automl_sources(self.config, network) if isinstance(self.config.feature_extractor.neck, BiFpn) else {}

    @property
    def has_raw_outputs(self) -> bool:
        """See `Family`."""
        return True

    def tflite_warnings(self) -> tuple[str, ...]:
        """TensorFlow Lite has no soft suppression."""
        nms = self.config.post_processing.batch_non_max_suppression
        if nms.soft_nms_sigma == 0:
            return ()
        return (
            "TensorFlow Lite has no soft non-maximum suppression; boxes that overlap by an IoU of more than "
            f"{nms.iou_threshold:g} are removed instead.",
        )

    def select_raw(
        self,
        outputs: Mapping[str, Array],
        class_ids: tuple[int, ...],
        image_share_hw: Float32Array,
    ) -> dict[str, Array]:
        """See `Family`."""
        from detloom.trainer_module.detectors.one_stage.fixed_size import select_raw

        return select_raw(self.config.post_processing, outputs, class_ids, image_share_hw)
