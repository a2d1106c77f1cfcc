"""The detections of one image, with its pixels and the names of their classes. Imports no TensorFlow."""

import io
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from detloom.schemas.contracts import detections as names
from detloom.schemas.reading.redact import escape
from detloom.trainer_module.boxes.masks import encode_box_masks, paste_masks
from detloom.trainer_module.drawing.draw import draw_rows
from detloom.trainer_module.evaluation.coco_images import ImageDetections, format_coco_results
from detloom.trainer_module.inference.runtime import Rows

MASK_COUNTS = "mask_counts"  # replaces the masks over boxes, see `with_image_masks`


@dataclass(frozen=True, eq=False)
class Prediction:
    """One image and its detections, in descending order of score.

    Attributes:
        image_rgb: uint8 [H, W, 3], the decoded image.
        rows: the detections; boxes are relative to the image.
        class_names: one for each detection.
    """

    image_rgb: npt.NDArray[np.uint8]
    rows: Rows
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        height, width = self.image_rgb.shape[:2]
        counts = ", ".join(f"{name} {count}" for name, count in Counter(self.class_names).most_common())
        scores = f"; scores {self.scores.max():.3f} to {self.scores.min():.3f}" if counts else ""
        return f"Prediction({width} x {height} px, {len(self.scores)} detections{': ' * bool(counts)}{counts}{scores})"

    def _repr_png_(self) -> bytes:
        """Return the image with its detections, for notebooks."""
        buffer = io.BytesIO()
        self.draw().save(buffer, "PNG")
        return buffer.getvalue()

    @property
    def boxes_yxyx_rel(self) -> npt.NDArray[np.float32]:
        """Boxes [N, 4]."""
        return self.rows[names.BOXES]

    @property
    def boxes_yxyx_px(self) -> npt.NDArray[np.float32]:
        """Boxes [N, 4] in pixels of the image."""
        height, width = self.image_rgb.shape[:2]
        return self.boxes_yxyx_rel * np.array([height, width, height, width], np.float32)

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """Scores [N]."""
        return self.rows[names.SCORES]

    @property
    def class_ids(self) -> npt.NDArray[np.int64]:
        """Label-map ids [N]."""
        return self.rows[names.CLASSES]

    @property
    def masks_NHW(self) -> npt.NDArray[np.bool_] | None:
        """Masks over the image, bool [N, H, W]; None if the model has none."""
        masks = self.rows.get(names.MASKS)
        if masks is None:
            return None
        height, width = self.image_rgb.shape[:2]
        return paste_masks(self.boxes_yxyx_rel, masks, (height, width))

    @property
    def keypoints_yx_rel(self) -> npt.NDArray[np.float32] | None:
        """Keypoints [N, P, 2], relative to the image; None if the model has none."""
        return self.rows.get(names.KEYPOINTS)

    @property
    def keypoint_scores(self) -> npt.NDArray[np.float32] | None:
        """Scores of the keypoints [N, P], 0 to 1; 0 for a class without keypoints. None if the model has none."""
        return self.rows.get(names.KEYPOINT_SCORES)

    def above(self, min_score: float) -> "Prediction":
        """Return only the detections with at least this score."""
        is_kept = self.scores >= min_score
        rows = {name: value[is_kept] for name, value in self.rows.items()}
        return Prediction(self.image_rgb, rows, tuple(itertools.compress(self.class_names, is_kept.tolist())))

    def lines(self) -> list[str]:
        """Return a line of text for each detection: class name, score, and left, top, right, bottom in pixels."""
        boxes_yxyx_px = np.rint(self.boxes_yxyx_px).astype(int).tolist()
        return [
            f"{escape(name)} {score:.3f}  left {xmin} top {ymin} right {xmax} bottom {ymax}"
            for name, score, (ymin, xmin, ymax, xmax) in zip(self.class_names, self.scores, boxes_yxyx_px, strict=True)
        ]

    def draw(self) -> Image.Image:
        """Draw the detections on the image: boxes, and masks and keypoints if the model has them."""
        return draw_rows(self.image_rgb, self.rows, self.class_names)

    def to_coco(self, image_id: int = 0) -> list[dict[str, Any]]:
        """Return a row of a COCO results file for each detection: `bbox` is left, top, width, height in pixels."""
        height, width = self.image_rgb.shape[:2]
        return format_coco_results([self.found(image_id)], {image_id: (height, width)})

    def found(self, image_id: int = 0) -> ImageDetections:
        """Return the detections with masks over the image."""
        return detections_of(with_image_masks(self.rows, self.image_rgb.shape[:2]), image_id)


def with_image_masks(rows: Rows, image_hw: tuple[int, ...]) -> Rows:
    """Replace masks over boxes by run lengths over the image, which need little memory; other rows are unchanged."""
    if names.MASKS not in rows:
        return rows
    others = {name: value for name, value in rows.items() if name != names.MASKS}
    height, width = image_hw
    return {**others, MASK_COUNTS: encode_box_masks(rows[names.BOXES], rows[names.MASKS], (height, width))}


def detections_of(rows: Rows, image_id: int) -> ImageDetections:
    """Return rows of `with_image_masks` as detections of an image."""
    return ImageDetections(
        image_id,
        rows[names.BOXES],
        rows[names.SCORES],
        rows[names.CLASSES],
        mask_counts=rows.get(MASK_COUNTS),
        keypoints_yx_rel=rows.get(names.KEYPOINTS),
        keypoint_scores=rows.get(names.KEYPOINT_SCORES),
    )
