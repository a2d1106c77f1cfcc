"""One preset; see `presets.py` for the sources of its numbers."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.network import FixedShapeResizer


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A published detector."""

    name: str
    """Name in run files and on the command line."""
    family: Literal["SSD", "RetinaNet", "EfficientDet", "CenterNet", "Faster R-CNN", "Mask R-CNN"]
    """Architecture."""
    config: TrainEvalConfig
    """Complete configuration; `model.num_classes` is None."""
    num_parameters: int
    """Number of trainable weights with 90 classes, as defined in `presets.py`."""
    coco_ap: float
    """Published box AP on COCO val2017, in percent."""
    coco_mask_ap: float | None = None
    """Published mask AP on COCO val2017, in percent; None for a detector without masks."""
    coco_keypoint_ap: float | None = None
    """Published AP of the keypoints of persons on COCO val2017, in percent; None for a detector without keypoints."""
    description: str
    """Description in one sentence."""

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the network's input in pixels."""
        resizer = self.config.model.image_resizer
        if isinstance(resizer, FixedShapeResizer):
            return resizer.height, resizer.width
        return resizer.max_dimension, resizer.max_dimension  # padded to a square
