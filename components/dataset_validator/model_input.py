"""What becomes of a picture and its boxes on the way into the network: the part of a model that the data can misfit."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detloom.schemas.config import Model
from detloom.schemas.model_config import AnchorGenerator, Ssd
from detloom.schemas.network_config import FixedShapeResizer, ImageResizer


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """The part of a configuration that boxes are judged by.

    Attributes:
        anchor_generator: None where the detector has no anchors.
        max_boxes: that training takes of one picture (`train_input.max_number_of_boxes`).
    """

    image_resizer: ImageResizer
    anchor_generator: AnchorGenerator | None
    max_boxes: int = 100

    @classmethod
    def of_model(cls, model: Model, max_boxes: int) -> "ModelInput":
        anchors = model.anchor_generator if isinstance(model, Ssd) else None
        return cls(image_resizer=model.image_resizer, anchor_generator=anchors, max_boxes=max_boxes)

    def describe(self) -> str:
        """The resizer in a few words."""
        resizer = self.image_resizer
        if isinstance(resizer, FixedShapeResizer):
            return f"FixedShapeResizer, {resizer.height} x {resizer.width} px (height x width)"
        padded = ", padded to a square" if resizer.pad_to_max_dimension else ""
        return f"KeepAspectRatioResizer, {resizer.min_dimension} to {resizer.max_dimension} px{padded}"


def resize_geometry(resizer: ImageResizer, image_hw: tuple[int, int]) -> tuple[tuple[float, float], tuple[int, int]]:
    """Height and width of the resized picture, and of the network's input, which padding can make larger.

    For KeepAspectRatioResizer as the Object Detection API computes it (core/preprocessor.py, `resize_to_range`): the
    shorter side becomes `min_dimension`; if the longer one then exceeded `max_dimension`, that one becomes it instead.
    """
    if isinstance(resizer, FixedShapeResizer):
        size = (resizer.height, resizer.width)
        return size, size
    height, width = image_hw
    scale = resizer.min_dimension / min(height, width)
    if scale * max(height, width) > resizer.max_dimension:
        scale = resizer.max_dimension / max(height, width)
    resized = (max(round(height * scale), 1), max(round(width * scale), 1))
    if resizer.pad_to_max_dimension:
        return resized, (resizer.max_dimension, resizer.max_dimension)
    return resized, resized


def boxes_in_input(
    boxes_yxyx_rel_N4: npt.NDArray[np.float64], resized_hw: tuple[float, float]
) -> npt.NDArray[np.float64]:
    """Boxes in pixels of the network's input; padding is below and to the right, so it moves none of them."""
    height, width = resized_hw
    return boxes_yxyx_rel_N4 * np.array([height, width, height, width], np.float64)
