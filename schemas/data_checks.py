"""The checks of a data set before training: how much each weighs, and from which number on.

A check compares one number with its threshold. Each has a class of its own, so that a run file that sets only the
severity keeps the check's threshold, and the other way round.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal, Protocol

from detloom.schemas.checks import check, check_fields

Severity = Literal["off", "warn", "fail"]


class Check(Protocol):
    """What all checks have."""

    @property
    def severity(self) -> Severity: ...

    @property
    def threshold(self) -> float: ...


class _Share:
    """A check of a share."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "threshold")


class _Count:
    """A check of a number without an upper end."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "threshold")


@dataclass(frozen=True, kw_only=True)
class UnreadableRecords(_Share):
    """Examples that cannot be parsed, have no image or no size of it, or whose box features differ in length.

    A size other than the image's counts too where images are decoded (`near_duplicates`). Files that are missing or
    damaged are not excused by the threshold, since nobody knows what they held.
    """

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of all examples."""


@dataclass(frozen=True, kw_only=True)
class UndecodableImages(_Share):
    """Images that cannot be decoded, found where they are (`near_duplicates`); skipped with that check off."""

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of all images."""


@dataclass(frozen=True, kw_only=True)
class ExamplesPerSplit(_Count):
    """Splits that are missing or small."""

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 1.0
    """Fewest examples in each split of the run."""


@dataclass(frozen=True, kw_only=True)
class UnsoundBoxes(_Share):
    """Boxes that are inverted, without area, not finite, or not in 0 to 1."""

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of all boxes."""


@dataclass(frozen=True, kw_only=True)
class UnknownClassIds(_Share):
    """Boxes whose class id the label map lacks."""

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of all boxes."""


@dataclass(frozen=True, kw_only=True)
class BoxesInSplits(_Count):
    """Splits without boxes.

    One whose examples have no label at all, and that is not the training split, only warns: the labels of test sets
    are often kept back.
    """

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 1.0
    """Fewest boxes in each split of the run."""


@dataclass(frozen=True, kw_only=True)
class ClassesInTrain(_Count):
    """Classes of the label map that the training data lack."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 1.0
    """Fewest boxes of each class in the training split."""


@dataclass(frozen=True, kw_only=True)
class ClassesInSplits(_Count):
    """Classes that are trained on, but that another split lacks: it cannot judge them."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 1.0
    """Fewest boxes, in each other split, of each class that the training split holds."""


@dataclass(frozen=True, kw_only=True)
class ClassBalance(_Count):
    """Classes that are much rarer than others in the training split."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 100.0
    """Most boxes of the most frequent class for one of the rarest, among classes with boxes."""


@dataclass(frozen=True, kw_only=True)
class EmptyImages(_Share):
    """Pictures without boxes in the training split."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.5
    """Largest share of the split's pictures."""


@dataclass(frozen=True, kw_only=True)
class CrowdedImages(_Share):
    """Pictures with more boxes than training takes (`train_input.max_number_of_boxes`); the smallest are dropped there.

    Only boxes of the training split count, without crowds.
    """

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of the split's pictures."""


@dataclass(frozen=True, kw_only=True)
class TinyBoxes(_Share):
    """Boxes of which little is left when the picture is resized to the model's input."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.05
    """Largest share of the boxes of any split."""
    min_side_px: float = 4.0
    """A box is tiny if its shorter side, resized, has fewer pixels: less than half a cell of a map of stride 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "0 or more", "min_side_px")


@dataclass(frozen=True, kw_only=True)
class HugeBoxes(_Share):
    """Boxes that fill the model's input."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.2
    """Largest share of the boxes of any split."""
    max_area: float = 0.9
    """A box is huge if it covers more than this share of the model's input, padding included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "0 to 1", "max_area")


@dataclass(frozen=True, kw_only=True)
class OverlappingBoxes(_Share):
    """Boxes that mark an object a second time: they nearly equal an earlier one of the same class in the picture."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.01
    """Largest share of the boxes of any split."""
    min_iou: float = 0.9
    """From this intersection over union on, two boxes are one object."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "above 0, at most 1", "min_iou")


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates(_Share):
    """Pictures of other splits that are, byte by byte, in the training split too."""

    severity: Severity = "fail"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of the pictures of any other split."""


@dataclass(frozen=True, kw_only=True)
class ExactDuplicatesWithinSplit(_Share):
    """Pictures that repeat, byte by byte, another of their split."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.0
    """Largest share of the pictures of any split."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(_Share):
    """Pictures of other splits that look like one of the training split.

    They are compared by a 64-bit difference hash, for which each has to be decoded. With this check off that time is
    saved, and `near_duplicates_within_split` is skipped.
    """

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.01
    """Largest share of the pictures of any other split."""
    max_distance: int = 5
    """Most bits in which the hashes of two pictures that look alike differ, 0 to 10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 <= self.max_distance <= 10, "max_distance", self.max_distance, "0 to 10")


@dataclass(frozen=True, kw_only=True)
class NearDuplicatesWithinSplit(_Share):
    """Pictures that look like another of their split, by the distance of `near_duplicates`: often frames of a video."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.1
    """Largest share of the pictures of any split."""


@dataclass(frozen=True, kw_only=True)
class ClassDrift(_Share):
    """Change of the training split's classes since the span before.

    By the Jensen-Shannon distance of the shares of boxes: 0 for equal distributions, 1 for such that share no class.
    """

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.1
    """Largest distance. Two random halves of 2,000 boxes in 10 classes are about 0.06 apart."""


@dataclass(frozen=True, kw_only=True)
class SizeDrift(_Share):
    """Change of the training split's box sizes since the span before.

    By the Jensen-Shannon distance of the distributions of the boxes' share of the picture.
    """

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.1
    """Largest distance."""


@dataclass(frozen=True, kw_only=True)
class AnchorRecall(_Share):
    """How well the configured anchors fit the boxes of the training split, resized to the model's input."""

    severity: Severity = "warn"
    """What it does to the run."""
    threshold: float = 0.8
    """Least share of the boxes of which some anchor has an intersection over union of at least 0.5."""


@dataclass(frozen=True, kw_only=True)
class DataChecks:
    """What the data must be like. Each check warns, fails the run, or is off.

    Only `severity` and `threshold` concern the verdict; the report shows the numbers of all checks but those that are
    off.
    """

    records: UnreadableRecords = UnreadableRecords()
    """Examples that cannot be used at all."""
    undecodable_images: UndecodableImages = UndecodableImages()
    """Images that are damaged, or none."""
    examples_per_split: ExamplesPerSplit = ExamplesPerSplit()
    """Enough examples everywhere."""
    boxes: UnsoundBoxes = UnsoundBoxes()
    """Boxes with wrong coordinates."""
    class_ids: UnknownClassIds = UnknownClassIds()
    """Class ids without a name."""
    boxes_in_splits: BoxesInSplits = BoxesInSplits()
    """Enough boxes everywhere."""
    classes_in_train: ClassesInTrain = ClassesInTrain()
    """Enough boxes of each class to train on."""
    classes_in_splits: ClassesInSplits = ClassesInSplits()
    """Enough boxes of each class to judge by."""
    class_balance: ClassBalance = ClassBalance()
    """The most frequent class against the rarest."""
    empty_images: EmptyImages = EmptyImages()
    """Pictures without boxes."""
    crowded_images: CrowdedImages = CrowdedImages()
    """Pictures with more boxes than training takes."""
    tiny_boxes: TinyBoxes = TinyBoxes()
    """Boxes that resizing makes too small."""
    huge_boxes: HugeBoxes = HugeBoxes()
    """Boxes as large as the picture."""
    overlapping_boxes: OverlappingBoxes = OverlappingBoxes()
    """Objects that are marked twice."""
    exact_duplicates: ExactDuplicates = ExactDuplicates()
    """Equal pictures in the training split and another: leakage."""
    exact_duplicates_within_split: ExactDuplicatesWithinSplit = ExactDuplicatesWithinSplit()
    """Equal pictures in one split."""
    near_duplicates: NearDuplicates = NearDuplicates()
    """Pictures that look alike in the training split and another: leakage."""
    near_duplicates_within_split: NearDuplicatesWithinSplit = NearDuplicatesWithinSplit()
    """Pictures that look alike in one split."""
    class_drift: ClassDrift = ClassDrift()
    """Classes against the span before."""
    size_drift: SizeDrift = SizeDrift()
    """Box sizes against the span before."""
    anchor_recall: AnchorRecall = AnchorRecall()
    """Boxes against the configured anchors."""


CHECK_NAMES = tuple(field.name for field in dataclasses.fields(DataChecks))
