"""Severities and thresholds of the data checks before training.

A check compares one number with its threshold. Each check has its own class, so that a run file that sets only the
severity keeps the check's default threshold, and vice versa.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal, Protocol

from detloom.schemas.errors import check, check_fields
from detloom.schemas.run_file.data import DEFAULT_MAX_DISTANCE

Severity = Literal["off", "warn", "fail"]


class Check(Protocol):
    """Interface of all checks."""

    @property
    def severity(self) -> Severity: ...

    @property
    def threshold(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class _Check:
    severity: Severity = "warn"
    """Effect on the run."""


@dataclass(frozen=True, kw_only=True)
class _Share(_Check):
    """A check whose threshold is a share."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "threshold")


@dataclass(frozen=True, kw_only=True)
class _Count(_Check):
    """A check whose threshold is a number without an upper limit."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "threshold")


@dataclass(frozen=True, kw_only=True)
class UnreadableRecords(_Share):
    """Examples that cannot be parsed, have no image or no image size, or have box features of different lengths.

    If images are decoded (`near_duplicates`), a stored size that differs from the image counts too. Missing or damaged
    files always count as a failure, whatever the threshold, because their number of examples is unknown.
    """

    severity: Severity = "fail"
    threshold: float = 0.0
    """Largest share of all examples."""


@dataclass(frozen=True, kw_only=True)
class UndecodableImages(_Share):
    """Images that cannot be decoded, at a small size or as training decodes them. Training and evaluation end at such
    an image, so `off`, `warn` and a threshold above 0 leave it to them."""

    severity: Severity = "fail"
    threshold: float = 0.0
    """Largest share of all images."""


@dataclass(frozen=True, kw_only=True)
class ExamplesPerSplit(_Count):
    """Splits that are missing or small."""

    severity: Severity = "fail"
    threshold: float = 1.0
    """Smallest number of examples in each split of the run."""


@dataclass(frozen=True, kw_only=True)
class UnsoundBoxes(_Share):
    """Boxes that are inverted, have no area, are not finite, or are not within 0 to 1."""

    severity: Severity = "fail"
    threshold: float = 0.0
    """Largest share of all boxes."""


@dataclass(frozen=True, kw_only=True)
class UnknownClassIds(_Share):
    """Boxes whose class id is not in the label map."""

    severity: Severity = "fail"
    threshold: float = 0.0
    """Largest share of all boxes."""


@dataclass(frozen=True, kw_only=True)
class BoxesInSplits(_Count):
    """Splits without boxes.

    A split other than the training split whose examples have no labels at all only gives a warning, because the labels
    of test sets are often not published.
    """

    severity: Severity = "fail"
    threshold: float = 1.0
    """Smallest number of boxes in each split of the run."""


@dataclass(frozen=True, kw_only=True)
class ClassesInTrain(_Count):
    """Classes of the label map that are missing from the training data."""

    threshold: float = 1.0
    """Smallest number of boxes of each class in the training split."""


@dataclass(frozen=True, kw_only=True)
class ClassesInSplits(_Count):
    """Classes of the training split that are missing from another split, which then cannot measure them."""

    threshold: float = 1.0
    """Smallest number of boxes, in each other split, of each class of the training split."""


@dataclass(frozen=True, kw_only=True)
class ClassBalance(_Count):
    """Classes that are much rarer than others in the training split."""

    threshold: float = 100.0
    """Largest ratio of boxes between the most frequent and the rarest class, among classes with boxes."""


@dataclass(frozen=True, kw_only=True)
class EmptyImages(_Share):
    """Images without boxes in the training split."""

    threshold: float = 0.5
    """Largest share of the split's images."""


@dataclass(frozen=True, kw_only=True)
class CrowdedImages(_Share):
    """Images with more boxes than training uses (`train_input.max_number_of_boxes`); training drops the smallest boxes.

    Only boxes of the training split are counted, without crowds.
    """

    threshold: float = 0.0
    """Largest share of the split's images."""


@dataclass(frozen=True, kw_only=True)
class TinyBoxes(_Share):
    """Boxes that become very small when the image is resized to the model's input."""

    threshold: float = 0.05
    """Largest share of the boxes of any split."""
    min_side_px: float = 4.0
    """Shorter side in pixels, after resizing, below which a box is tiny; 4 is half a cell of a stride-8 feature map."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "0 or more", "min_side_px")


@dataclass(frozen=True, kw_only=True)
class HugeBoxes(_Share):
    """Boxes that fill the model's input."""

    threshold: float = 0.2
    """Largest share of the boxes of any split."""
    max_area: float = 0.9
    """Share of the model's input, padding included, above which a box is huge."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "0 to 1", "max_area")


@dataclass(frozen=True, kw_only=True)
class OverlappingBoxes(_Share):
    """Duplicate boxes: boxes that nearly equal another box of the same class in the image."""

    threshold: float = 0.01
    """Largest share of the boxes of any split."""
    min_iou: float = 0.9
    """IoU at or above which two boxes are duplicates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "above 0, at most 1", "min_iou")


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates(_Share):
    """Images of other splits that also occur, byte for byte, in the training split."""

    severity: Severity = "fail"
    threshold: float = 0.0
    """Largest share of the images of any other split."""


@dataclass(frozen=True, kw_only=True)
class ExactDuplicatesWithinSplit(_Share):
    """Images that equal another image of their split byte for byte."""

    threshold: float = 0.0
    """Largest share of the images of any split."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(_Share):
    """Images of other splits that are near-duplicates of an image of the training split.

    Images are compared by a 64-bit difference hash, for which each image is decoded. If this check is off, images are
    not decoded and `near_duplicates_within_split` is skipped.
    """

    threshold: float = 0.01
    """Largest share of the images of any other split."""
    max_distance: int = DEFAULT_MAX_DISTANCE
    """Largest number of different bits, 0 to 10, between the hashes of two near-duplicates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 <= self.max_distance <= 10, "max_distance", self.max_distance, "0 to 10")


@dataclass(frozen=True, kw_only=True)
class NearDuplicatesWithinSplit(_Share):
    """Near-duplicates within a split, by the distance of `near_duplicates`; often frames of a video."""

    threshold: float = 0.1
    """Largest share of the images of any split."""


@dataclass(frozen=True, kw_only=True)
class ClassDrift(_Share):
    """Change of the training split's class distribution since the previous span.

    The measure is the Jensen-Shannon distance between the shares of boxes: 0 for equal distributions, 1 for
    distributions without a common class.
    """

    threshold: float = 0.1
    """Largest distance. Two random halves of 2,000 boxes in 10 classes have a distance of about 0.06."""


@dataclass(frozen=True, kw_only=True)
class SizeDrift(_Share):
    """Change of the training split's box sizes since the previous span.

    The measure is the Jensen-Shannon distance between the distributions of box area relative to the image.
    """

    threshold: float = 0.1
    """Largest distance."""


@dataclass(frozen=True, kw_only=True)
class AnchorRecall(_Share):
    """Fit of the configured anchors to the boxes of the training split, resized to the model's input."""

    threshold: float = 0.8
    """Smallest share of boxes that have an anchor with an IoU of at least 0.5."""


@dataclass(frozen=True, kw_only=True)
class DataChecks:
    """Checks of the data. Each check warns, fails the run, or is off.

    `severity` and `threshold` affect only the verdict; the report shows the numbers of all checks that are not off.
    """

    records: UnreadableRecords = UnreadableRecords()
    """Examples that cannot be used."""
    undecodable_images: UndecodableImages = UndecodableImages()
    """Files that are damaged or are not images."""
    examples_per_split: ExamplesPerSplit = ExamplesPerSplit()
    """Number of examples in each split."""
    boxes: UnsoundBoxes = UnsoundBoxes()
    """Boxes with invalid coordinates."""
    class_ids: UnknownClassIds = UnknownClassIds()
    """Class ids without a name."""
    boxes_in_splits: BoxesInSplits = BoxesInSplits()
    """Number of boxes in each split."""
    classes_in_train: ClassesInTrain = ClassesInTrain()
    """Number of boxes of each class for training."""
    classes_in_splits: ClassesInSplits = ClassesInSplits()
    """Number of boxes of each class for evaluation."""
    class_balance: ClassBalance = ClassBalance()
    """Ratio of the most frequent class to the rarest."""
    empty_images: EmptyImages = EmptyImages()
    """Images without boxes."""
    crowded_images: CrowdedImages = CrowdedImages()
    """Images with more boxes than training uses."""
    tiny_boxes: TinyBoxes = TinyBoxes()
    """Boxes that are too small after resizing."""
    huge_boxes: HugeBoxes = HugeBoxes()
    """Boxes that fill the image."""
    overlapping_boxes: OverlappingBoxes = OverlappingBoxes()
    """Objects that are labelled twice."""
    exact_duplicates: ExactDuplicates = ExactDuplicates()
    """Equal images in the training split and another split (leakage)."""
    exact_duplicates_within_split: ExactDuplicatesWithinSplit = ExactDuplicatesWithinSplit()
    """Equal images within a split."""
    near_duplicates: NearDuplicates = NearDuplicates()
    """Near-duplicates in the training split and another split (leakage)."""
    near_duplicates_within_split: NearDuplicatesWithinSplit = NearDuplicatesWithinSplit()
    """Near-duplicates within a split."""
    class_drift: ClassDrift = ClassDrift()
    """Class distribution compared with the previous span."""
    size_drift: SizeDrift = SizeDrift()
    """Box sizes compared with the previous span."""
    anchor_recall: AnchorRecall = AnchorRecall()
    """Boxes compared with the configured anchors."""


CHECK_NAMES = tuple(field.name for field in dataclasses.fields(DataChecks))
