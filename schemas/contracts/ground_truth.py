"""Keys of ground truth, from the parsed record to the losses.

Ground truth of one image of `H` x `W` pixels with `G` boxes is a dictionary. In a batch every entry has a leading axis
of `B` images, and columns are padded to a common `G`.

    image                 uint8 or float32 [H, W, 3], colors of 0 to 255 until it is normalized
    true_hw               int32 [2], rows and columns of the network input that are image; the rest is padding
    image_hw              int32 [2], size of the original image in pixels; only in evaluation
    num_dropped           int32 [], boxes over the limit of a training batch; only in training
    mask_pngs             string [G], masks of the original image as grayscale PNG; only in evaluation, with masks

All other entries are columns: one value per box.

    boxes_yxyx_rel        float32 [G, 4], relative to the image (in a training batch, to the padded image)
    class_indices         int32 [G], 0-based; -1 in padding
    box_weights           float32 [G], weight of each box in the losses
    image_shares          float32 [G], share of the box's image in the pixels of a mixed image; only after MixUp
    is_crowd              bool [G]
    area_px               float32 [G], area of the object in the original image
    masks_GHW             uint8 [G, H, W], 1 inside the object; optional (in a batch, over the padded image)
    keypoints_yx_rel_GP2  float32 [G, P, 2], relative like boxes, NaN for points that are not labelled; optional

A detector family with another kind of ground truth adds its column here.
"""

from dataclasses import dataclass
from typing import Literal

IMAGE = "image"
TRUE_HW = "true_hw"
IMAGE_HW = "image_hw"
NUM_DROPPED = "num_dropped"
MASK_PNGS = "mask_pngs"

BOXES = "boxes_yxyx_rel"
CLASSES = "class_indices"
WEIGHTS = "box_weights"
SHARES = "image_shares"
CROWD = "is_crowd"
AREA = "area_px"
MASKS = "masks_GHW"
KEYPOINTS = "keypoints_yx_rel_GP2"


@dataclass(frozen=True)
class Column:
    """One value per box.

    Attributes:
        padding: value in rows without a box.
        geometry: how the column follows a change of the image geometry: as boxes, points, masks, or not at all.
    """

    padding: float
    geometry: Literal["boxes", "points", "masks", "none"] = "none"


COLUMNS: dict[str, Column] = {
    BOXES: Column(padding=0.0, geometry="boxes"),
    CLASSES: Column(padding=-1),
    WEIGHTS: Column(padding=0.0),
    SHARES: Column(padding=0.0),
    CROWD: Column(padding=False),
    AREA: Column(padding=0.0),
    MASKS: Column(padding=0, geometry="masks"),
    KEYPOINTS: Column(padding=float("nan"), geometry="points"),
}
TRAINING_COLUMNS = (BOXES, CLASSES, WEIGHTS)  # what most losses need
OPTIONAL_COLUMNS = (MASKS, KEYPOINTS)  # read only on request
