"""Severities and thresholds of the data checks before training."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import NotNegative, Ranged, Share
from detloom.schemas.run_file.data import DEFAULT_MAX_DISTANCE

Severity = Literal["off", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class CountCheck(Ranged):
    """Compare a number with a threshold. In a run file, keys that are not written keep the defaults of the check."""

    severity: Severity = "warn"
    """Effect on the run."""
    threshold: NotNegative
    """Limit of the number; `DataChecks` says what it counts."""


@dataclass(frozen=True, kw_only=True)
class ShareCheck(CountCheck):
    """Compare a share, 0 to 1, with a threshold."""

    threshold: Share


@dataclass(frozen=True, kw_only=True)
class TinyBoxCheck(ShareCheck):
    """Share of boxes that become very small when the image is resized to the model's input."""

    min_side_px: NotNegative = 4.0
    """Shorter side in pixels, after resizing, below which a box is tiny; 4 is half a cell of a stride-8 feature map."""


@dataclass(frozen=True, kw_only=True)
class HugeBoxCheck(ShareCheck):
    """Share of boxes that fill the model's input."""

    max_area: Share = 0.9
    """Share of the model's input, padding included, above which a box is huge."""


@dataclass(frozen=True, kw_only=True)
class OverlapCheck(ShareCheck):
    """Share of boxes that nearly equal another box of the same class in the image."""

    min_iou: Annotated[float, "above 0, at most 1"] = 0.9
    """IoU at or above which two boxes are duplicates."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicateCheck(ShareCheck):
    """Share of images that are near-duplicates of an image of the training split.

    Images are compared by a 64-bit difference hash, for which each image is decoded. If this check is off, images are
    not decoded and `near_duplicates_within_split` is skipped.
    """

    max_distance: Annotated[int, "0 to 10"] = DEFAULT_MAX_DISTANCE
    """Largest number of different bits, 0 to 10, between the hashes of two near-duplicates."""


@dataclass(frozen=True, kw_only=True)
class DataChecks:
    """Checks of the data. Each check warns, fails the run, or is off.

    `severity` and `threshold` affect only the verdict; the report shows the numbers of all checks that are not off.
    """

    records: ShareCheck = ShareCheck(severity="fail", threshold=0.0)
    """Largest share of examples that cannot be parsed, have no image or no image size, or have box features of
    different lengths. If images are decoded (`near_duplicates`), a stored size that differs from the image counts too.
    Missing or damaged files always count as a failure, whatever the threshold, because their number of examples is
    unknown."""
    undecodable_images: ShareCheck = ShareCheck(severity="fail", threshold=0.0)
    """Largest share of images that cannot be decoded, at a small size or as training decodes them. Training and
    evaluation end at such an image, so `off`, `warn` and a threshold above 0 leave it to them."""
    examples_per_split: CountCheck = CountCheck(severity="fail", threshold=1.0)
    """Smallest number of examples in each split of the run."""
    boxes: ShareCheck = ShareCheck(severity="fail", threshold=0.0)
    """Largest share of boxes that are inverted, have no area, are not finite, or are not within 0 to 1."""
    class_ids: ShareCheck = ShareCheck(severity="fail", threshold=0.0)
    """Largest share of boxes whose class id is not in the label map."""
    boxes_in_splits: CountCheck = CountCheck(severity="fail", threshold=1.0)
    """Smallest number of boxes in each split of the run. A split other than the training split whose examples have no
    labels at all only gives a warning, because the labels of test sets are often not published."""
    classes_in_train: CountCheck = CountCheck(threshold=1.0)
    """Smallest number of boxes of each class of the label map in the training split."""
    classes_in_splits: CountCheck = CountCheck(threshold=1.0)
    """Smallest number of boxes, in each other split, of each class of the training split; a split cannot measure a
    class that it lacks."""
    class_balance: CountCheck = CountCheck(threshold=100.0)
    """Largest ratio of boxes between the most frequent and the rarest class of the training split, among classes with
    boxes."""
    empty_images: ShareCheck = ShareCheck(threshold=0.5)
    """Largest share of images without boxes in the training split."""
    crowded_images: ShareCheck = ShareCheck(threshold=0.0)
    """Largest share of images of the training split with more boxes, without crowds, than training uses
    (`train_input.max_number_of_boxes`); training drops the smallest boxes."""
    tiny_boxes: TinyBoxCheck = TinyBoxCheck(threshold=0.05)
    """Largest share of tiny boxes in any split."""
    huge_boxes: HugeBoxCheck = HugeBoxCheck(threshold=0.2)
    """Largest share of huge boxes in any split."""
    overlapping_boxes: OverlapCheck = OverlapCheck(threshold=0.01)
    """Largest share of duplicate boxes in any split: objects that are labelled twice."""
    exact_duplicates: ShareCheck = ShareCheck(severity="fail", threshold=0.0)
    """Largest share of images of any other split that also occur, byte for byte, in the training split (leakage)."""
    exact_duplicates_within_split: ShareCheck = ShareCheck(threshold=0.0)
    """Largest share of images that equal another image of their split byte for byte."""
    near_duplicates: NearDuplicateCheck = NearDuplicateCheck(threshold=0.01)
    """Largest share of images of any other split that are near-duplicates of a training image (leakage)."""
    near_duplicates_within_split: ShareCheck = ShareCheck(threshold=0.1)
    """Largest share of near-duplicates within any split, by the distance of `near_duplicates`; often frames of a
    video."""
    class_drift: ShareCheck = ShareCheck(threshold=0.1)
    """Largest change of the training split's class distribution since the previous span: the Jensen-Shannon distance
    between the shares of boxes, 0 for equal distributions, 1 for distributions without a common class. Two random
    halves of 2,000 boxes in 10 classes have a distance of about 0.06."""
    size_drift: ShareCheck = ShareCheck(threshold=0.1)
    """Largest change of the training split's box sizes since the previous span: the Jensen-Shannon distance between the
    distributions of box area relative to the image."""
    anchor_recall: ShareCheck = ShareCheck(threshold=0.8)
    """Smallest share of boxes of the training split, resized to the model's input, that have a configured anchor with
    an IoU of at least 0.5."""


CHECK_NAMES = tuple(field.name for field in dataclasses.fields(DataChecks))
