"""The CenterNet family. Imports TensorFlow only inside the methods that need it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from detloom.schemas.contracts import ground_truth
from detloom.schemas.contracts.arrays import BoolArray, Float32Array
from detloom.schemas.contracts.keypoint_sigmas import sigmas_of
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.trainer_module.detectors.detector import Family, Finding, Keypoints, check_padding

if TYPE_CHECKING:
    import keras

    from detloom.trainer_module.detectors.centernet.detector import CenterNetDetector
    from detloom.trainer_module.detectors.preprocess import Preprocessing


@dataclass(frozen=True)
class CenterNetFamily(Family[CenterNet]):
    """CenterNet (arXiv:1904.07850)."""

    def check_settings(self) -> Iterator[Finding]:
        """See `Family`."""
        if isinstance(self.config.image_resizer, KeepAspectRatioResizer):
            yield check_padding(self.config.image_resizer)

    @property
    def ground_truth_columns(self) -> tuple[str, ...]:
        """See `Family`."""
        config, columns = self.config, super().ground_truth_columns
        points = (ground_truth.KEYPOINTS,) if config.keypoint_estimation_task is not None else ()
        masks = (ground_truth.MASKS,) if config.deepmac_mask_estimation is not None else ()
        return (*columns, *points, *masks)

    @property
    def keypoints(self) -> Keypoints | None:
        """See `Family`."""
        task = self.config.keypoint_estimation_task
        if task is None:
            return None
        names = tuple(point.name for point in task.points)
        return Keypoints(task.keypoint_class_name, names, sigmas_of(names, {}))

    @property
    def preprocessing(self) -> "Preprocessing":
        """Images are normalized last, so that padding is a color."""
        from detloom.trainer_module.detectors.centernet.network import normalize
        from detloom.trainer_module.detectors.preprocess import Preprocessing

        normalize_colors = partial(normalize, self.config.feature_extractor)
        return Preprocessing(self.config.image_resizer, normalize_colors, normalize_first=False)

    def build(self, label_map: LabelMap) -> "CenterNetDetector":
        """See `Family`."""
        from detloom.trainer_module.detectors.centernet.detector import build_centernet_detector

        return build_centernet_detector(self, label_map)

    def odapi_layer_keys(self, network: "keras.Model") -> dict[str, str]:
        """See `Family`."""
        from detloom.trainer_module.detectors.centernet.odapi_keys import centernet_layer_keys

        return centernet_layer_keys(self.config, network)

    def is_in_image(self, boxes_yxyx: Float32Array, image_share_hw: Float32Array) -> BoolArray:
        """Return which boxes have their centre in the image: the SavedModel finds no peaks in padding."""
        centers_yx = (boxes_yxyx[:, :2] + boxes_yxyx[:, 2:]) / 2
        is_inside: BoolArray = (centers_yx < image_share_hw).all(axis=1)
        return is_inside
