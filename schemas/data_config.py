"""Where the labelled images are, and how they are split and ingested."""

import re
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.errors import FieldError

EMBEDDED_DIGITS = "embedded:digits"  # a data path that means: compose the demo data set, then read it


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Where a split comes from: for VOC a list in ImageSets/Main, for COCO an annotation file under the data path."""

    train: str
    """What is trained on."""
    eval: str
    """What chooses the checkpoint during training."""
    test: str
    """What the evaluator judges by; training never sees it."""

    def __post_init__(self) -> None:
        for split in ("train", "eval", "test"):
            check(bool(getattr(self, split)), split, "nothing", "a name")
        for split in ("eval", "test"):
            check(getattr(self, split) != self.train, split, repr(self.train), "another split than train", "train")


@dataclass(frozen=True, kw_only=True)
class SplitByRatio:
    """Splits by a stable hash of each record: an image keeps its split whatever is added to the data."""

    train: float = 0.8
    """Share that is trained on."""
    eval: float = 0.1
    """Share that chooses the checkpoint during training."""
    test: float = 0.1
    """Share that the evaluator judges by."""
    source: str = ""
    """What is split, named as in `splits`; empty for all there is."""
    group_by: str = ""
    """Regular expression searched in the path of the image; what its first group matches (a camera, a patient) is never
    divided between splits. Empty: each image on its own."""
    stratify: bool = False
    """Keep the mix of classes alike in all splits; added data may then move images to another split."""
    seed: int = 0
    """Another one gives another division."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "train", "eval", "test")
        total = self.train + self.eval + self.test
        check(abs(total - 1) <= 1e-6, "train", f"a sum of {total:g} with eval and test", "a sum of 1", "eval")
        try:
            groups = re.compile(self.group_by).groups
        except re.error as error:
            raise FieldError("group_by", f"got {self.group_by!r}, allowed: a regular expression ({error}).") from None
        allowed = "a regular expression with a group, such as '(cam[0-9]+)_'"
        check(not self.group_by or groups > 0, "group_by", repr(self.group_by), allowed)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The labelled images."""

    format: Literal["auto", "coco", "voc", "yolo", "open_images", "kitti", "labelme", "cvat", "tfrecord", "images"] = (
        "auto"
    )
    """How labels are written; "auto" looks, and says what it saw."""
    path: str
    """Folder of the data set, relative to the run file; or "embedded:digits". `${NAME}` is read from the environment,
    `{SPAN}` and `{VERSION}` are resolved by TFX."""
    splits: Splits | None = None
    """Where each split comes from; this or `split_by_ratio`."""
    split_by_ratio: SplitByRatio | None = None
    """Divide the images, instead of `splits`."""
    num_spans: int = 1
    """How many of the latest spans are merged; more than one needs `{SPAN}` in `path`."""
    images_dir: str = ""
    """Folder of the images under `path`; empty for the format's usual one."""
    hierarchy_file: str = ""
    """Open Images: JSON of the class hierarchy under `path`; a box then counts for the ancestors of its class too."""
    classes: tuple[str, ...] = ()
    """Class names in the order of their ids; empty takes what the data set says."""
    unknown_class: Literal["fail", "reject", "leave_out"] = "fail"
    """What to do with a class that `classes` lacks: fail, quarantine the box, or leave the box out and count it."""
    masks: bool = False
    """Keep instance masks."""
    keypoints: bool = False
    """Keep keypoints."""
    exif_rotation: Literal["rotate", "reject"] = "rotate"
    """What to do with a JPEG that its EXIF data turns: turn it upright, or quarantine it."""
    decode_images: bool = False
    """Decode every image in full while ingesting, to find damage that headers do not show; the cost is printed."""
    max_pixels: int = 100_000_000
    """An image with more is quarantined."""
    max_image_bytes: int = 67_108_864
    """A file with more is quarantined."""
    max_boxes: int = 10_000
    """An image with more is quarantined."""
    max_reject_fraction: float = 0.05
    """Share of records that may be quarantined, and of boxes that may be refused, before the run fails."""
    shard_max_bytes: int = 134_217_728
    """Of the images in one shard file, about."""
    gzip: bool = False
    """Compress the shards; encoded images do not get smaller."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "max_reject_fraction")
        at_least_one = ("num_spans", "max_pixels", "max_image_bytes", "max_boxes", "shard_max_bytes")
        check_fields(self, "1 or more", *at_least_one)
        check(all(self.classes) and len(set(self.classes)) == len(self.classes), "classes", self.classes, "each once")
        is_one = (self.splits is None) != (self.split_by_ratio is None)
        got = "neither it nor split_by_ratio" if self.splits is None else "it and split_by_ratio"
        check(is_one, "splits", got, "one of the two", "split_by_ratio")
        has_span = "{SPAN" in self.path or "{YYYY}" in self.path
        check(self.num_spans == 1 or has_span, "num_spans", self.num_spans, "1 where path has no {SPAN}", "path")
