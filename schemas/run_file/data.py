"""Settings of the data: location, splits and ingestion."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import FieldError, PositiveInt, Ranged, Share, check, check_fields

MAX_PIXELS = 100_000_000  # of an image that is decoded, unless the data allow more
# Bits in which the hashes of near-duplicates differ. Measured on the blood cell photographs of BCCD: for 100 of them,
# copies at half size, JPEG quality 50, as PNG, 20 % brighter or cropped by 2 % are within 5 bits in at least 97 % of
# cases each; among all 364, the only pair within 10 bits shows the same cells photographed twice (5 bits).
DEFAULT_MAX_DISTANCE = 5
EMBEDDED_DIGITS = "embedded:digits"  # special data path: generate the demo data set, then read it


def name_setting(name: str) -> str:
    """Return how the command line and a run file call an ingestion setting."""
    return f"--{name.replace('_', '-')} or data.{name}"


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Source of each split: for VOC a list in ImageSets/Main, for COCO an annotation file under the data path."""

    train: str
    """Data for training."""
    eval: str = ""
    """Data for evaluation during training, which selects the checkpoint; empty: see `cut_share`."""
    test: str = ""
    """Data for the evaluation of the exported model; training never uses it. Empty: see `cut_share`."""
    cut_share: float = 0.0
    """Share of the training images that become the split whose source is empty, `eval` or `test`. A stable hash selects
    them, and images that look the same stay together."""

    def __post_init__(self) -> None:
        check(bool(self.train), "train", "nothing", "a name")
        for split in ("eval", "test"):
            check(getattr(self, split) != self.train, split, repr(self.train), "another split than train", "train")
        if self.eval and self.test:
            check(not self.cut_share, "cut_share", self.cut_share, "0 with all three splits", "eval")
            return
        missing = "eval" if self.test else "test"
        check(bool(self.eval or self.test), "eval", "neither eval nor test", "one of them, or data.split_by_ratio")
        check(0 < self.cut_share < 1, missing, "nothing", "a name, or cut_share between 0 and 1", "cut_share")


@dataclass(frozen=True, kw_only=True)
class RatioSettings:
    """Settings that assign images to splits by ratio."""

    source: str = ""
    """Source of the images to split, named as in `splits`; empty for all images."""
    group_by: str = ""
    """Regular expression that is searched in the path of the image (TFRecords: in the record key). Images with the same
    text in its first group, such as a camera or a patient, stay in the same split. Empty: every image is its own
    group."""
    stratify: bool = False
    """Keep the class distribution similar in all splits; added data may then move images to another split."""
    seed: int = 0
    """Random seed of the splits."""
    separate_near_duplicates: bool = False
    """Assign near-duplicates to splits one by one. Otherwise, without `group_by`, images that look the same stay in the
    same split, for which every image is decoded at a small size; `checks.near_duplicates.max_distance` says which look
    the same. Byte-identical images always stay in the same split."""

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.group_by).groups
        except re.error as error:
            raise FieldError("group_by", f"got {self.group_by!r}, allowed: a regular expression ({error}).") from None
        allowed = "a regular expression with a capturing group, such as '(cam[0-9]+)_'"
        check(not self.group_by or groups > 0, "group_by", repr(self.group_by), allowed)


@dataclass(frozen=True, kw_only=True)
class SplitByRatio(RatioSettings):
    """Splits by a stable hash of each record. An image stays in its split when data without duplicates of
    it is added."""

    train: float = 0.8
    """Share of the images for training."""
    eval: float = 0.1
    """Share of the images for evaluation during training, which selects the checkpoint."""
    test: float = 0.1
    """Share of the images for the evaluation of the exported model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "above 0", "train", "eval", "test")
        total = self.train + self.eval + self.test
        got = f"train {self.train:g} + eval {self.eval:g} + test {self.test:g} = {total:g}"
        check(abs(total - 1) <= 1e-6, "train", got, "a sum of 1; set all three shares", "eval")


@dataclass(frozen=True, kw_only=True)
class IngestSettings(Ranged):
    """Settings for reading and checking labelled images, and for what is kept of them.

    The only declaration of these settings: the run file, DetectionExampleGen, `detloom ingest` and the component for
    Kubeflow Pipelines take names, types, defaults and documentation from here.
    """

    format: Literal[
        "auto", "coco", "voc", "yolo", "open_images", "kitti", "labelme", "cvat", "tfrecord",
        "csv", "via", "label_studio", "createml", "supervisely", "images",
    ] = "auto"  # fmt: skip
    """Label format; `auto` detects it and reports the result."""
    images_dir: str = ""
    """Folder of the images in the data set; empty for the format's default folder."""
    hierarchy_file: str = ""
    """Open Images: JSON file of the class hierarchy in the data set; boxes then count for the ancestors of their class
    too."""
    classes: tuple[str, ...] = ()
    """Class names in the order of their ids; empty uses the classes of the data set."""
    unknown_class: Literal["fail", "reject", "leave_out"] = "fail"
    """Handling of a class that is not in `classes`: fail, quarantine the box, or leave the box out and count it."""
    masks: bool = False
    """Keep instance masks."""
    keypoints: bool = False
    """Keep keypoints."""
    exif_rotation: Literal["rotate", "reject"] = "rotate"
    """Handling of a JPEG with an EXIF rotation: rotate it upright, or quarantine it."""
    decode_images: bool = False
    """Decode every image completely, to find damage that is not visible in headers."""
    max_pixels: PositiveInt = MAX_PIXELS
    """Largest number of pixels of an image; larger images are quarantined."""
    max_image_bytes: PositiveInt = 67_108_864
    """Largest size of an image file in bytes; larger files are quarantined."""
    max_boxes: PositiveInt = 10_000
    """Largest number of boxes of an image; images with more are quarantined."""
    max_reject_fraction: Share = 0.05
    """Largest share of quarantined records, and of rejected boxes; with more, ingestion fails."""
    max_unlisted_fraction: Share = 0.5
    """Largest share of images without a label, if others have one: without a label file, or not in the annotations.
    They are counted and named; with more, ingestion fails, because labels may be missing."""
    allow_no_objects: bool = False
    """Accept labelled data without any object, such as a span of images of an empty road."""
    fractional_boxes: bool = False
    """Read boxes and keypoints as fractions of the image's size, in formats that have pixels; masks stay in pixels."""
    shard_max_bytes: PositiveInt = 134_217_728
    """Approximate size of the images in one shard file, in bytes."""
    gzip: bool = False
    """Compress the shards; encoded images do not get smaller."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(all(self.classes), "classes", self.classes, "names that are not empty")
        for name, count in Counter(self.classes).items():
            if count > 1:
                raise FieldError("classes", f"must not contain duplicates: {name!r} appears twice.")


@dataclass(frozen=True, kw_only=True)
class Data(IngestSettings):
    """Labelled images."""

    path: str
    """Folder of the data set, relative to the run file; or "embedded:digits". `${NAME}` is read from the environment,
    `{SPAN}` and `{VERSION}` are resolved by TFX."""
    splits: Splits | None = None
    """Source of each split; set either this or `split_by_ratio`."""
    split_by_ratio: SplitByRatio | None = None
    """Shares of the splits, instead of `splits`."""
    num_spans: PositiveInt = 1
    """Number of latest spans to merge; more than one needs `{SPAN}` in `path`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_one = (self.splits is None) != (self.split_by_ratio is None)
        got = "neither splits nor split_by_ratio" if self.splits is None else "both splits and split_by_ratio"
        check(is_one, "splits", got, "one of the two; set data.splits or data.split_by_ratio", "split_by_ratio")
        has_span = "{SPAN" in self.path or "{YYYY}" in self.path
        check(self.num_spans == 1 or has_span, "num_spans", self.num_spans, "1 if path has no {SPAN}", "path")
