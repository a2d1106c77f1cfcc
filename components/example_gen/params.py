"""Define the parameters of DetectionExampleGen."""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from detloom.components.example_gen.sources.formats import FORMATS
from detloom.components.similarity.near_duplicates import DEFAULT_MAX_DISTANCE
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import Data

AUTO = "auto"  # data format that requests detection
UNKNOWN_CLASS_CHOICES = ("fail", "reject", "leave_out")
EXIF_CHOICES = ("rotate", "reject")
_MAPPINGS = ("splits", "split_ratios")
# Parameters of every data set, which the run file's `data` section and the command line have too.
_COMMON = (
    "data_format", "images_dir", "hierarchy_file", "with_masks", "with_keypoints", "class_names", "unknown_class",
    "shard_max_bytes", "gzip", "decode_images", "max_reject_fraction",
)  # fmt: skip
_ONLY_IN_RUN_FILE = ("max_pixels", "max_image_bytes", "max_boxes", "exif_rotation", "num_spans")
_OF_RATIOS = ("source", "split_group", "split_stratify", "split_seed", "separate_near_duplicates")
# Their names there, where they differ.
_SETTING_NAMES = {
    "with_masks": "masks", "with_keypoints": "keypoints", "class_names": "classes", "split_group": "group_by",
    "split_stratify": "stratify", "split_seed": "seed",
}  # fmt: skip
_RUN_FILE_NAMES = {**_SETTING_NAMES, "data_format": "format"}
_OPTION_NAMES = {**_SETTING_NAMES, "hierarchy_file": "hierarchy"}
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@dataclass(frozen=True, kw_only=True)
class ExampleGenParams:
    """Settings for what to read, how to split it, and what to reject.

    Attributes:
        data_format: one of `FORMATS`, or "auto".
        splits: source by output split. VOC: the name of a list in ImageSets/Main; COCO: the path of an annotation JSON
            relative to the data folder; other formats: docs/ingestion.md. It is used literally and may not lead out of
            its folder. Two splits may have the same source. Empty: the data set's own splits and names.
        split_ratios: share by output split, instead of `splits`: a hash of a record's key selects its split, so adding
            data does not move it.
        source: with `split_ratios`, what to split; "" is everything.
        split_group: with `split_ratios`, a regular expression searched in the image path (TFRecords: in the record
            key). The text of its first group names the record's group (a camera, a patient), and a group is never
            divided between splits. A record without a match is quarantined.
        split_stratify: with `split_ratios`, keep the class distribution equal in all splits; adding data may then move
            a record to another split.
        split_seed: another seed gives another division.
        separate_near_duplicates: assign near-duplicates to splits one by one. Otherwise, without `split_group`, they
            stay in one split, for which every image is decoded at a small size. Identical files always do.
        max_distance: largest number of different bits, 0 to 10, between the hashes of two near-duplicates.
        images_dir: relative to the data folder; "" is the format's usual folder.
        hierarchy_file: Open Images' class hierarchy; a box is repeated for all ancestors of its class.
        class_names: get ids 1, 2, ... in this order. Empty uses the data: its own ids if it has them (COCO, TFRecords),
            else its declared order (YOLO), else the sorted names over all splits.
        unknown_class: effect of an object whose class is neither in `class_names` nor in the data's own list: "fail"
            the run, "reject" the box, or "leave_out" the box, which is counted but not a reject.
        shard_max_bytes: image bytes in one shard, plus or minus one image.
        gzip: compress the shards. Encoded images do not shrink; this helps if the labels are larger than the images.
        max_pixels, max_image_bytes, max_boxes: a record above a limit is quarantined.
        decode_images: decode every image completely, to find damage that headers do not show; the cost is logged.
        exif_rotation: "rotate" a JPEG with an EXIF rotation upright, or "reject" it.
        num_spans: how many of the latest spans are merged; more than one requires {SPAN} in the path.
        max_reject_fraction: limit for quarantined records / records read, and for rejected boxes / boxes read of the
            written records, over all splits; ingestion fails above it.
        code_fingerprint: of the package's source; no code reads it, but it changes TFX's cache key when a reader is
            edited.
    """

    data_format: str = AUTO
    splits: Mapping[str, str] = field(default_factory=dict)
    split_ratios: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    split_group: str = ""
    split_stratify: bool = False
    split_seed: int = 0
    separate_near_duplicates: bool = False
    max_distance: int = DEFAULT_MAX_DISTANCE
    images_dir: str = ""
    hierarchy_file: str = ""
    with_masks: bool = False
    with_keypoints: bool = False
    class_names: tuple[str, ...] = ()
    unknown_class: str = "fail"
    shard_max_bytes: int = 128 * 2**20
    gzip: bool = False
    max_pixels: int = 100_000_000
    max_image_bytes: int = 64 * 2**20
    max_boxes: int = 10_000
    decode_images: bool = False
    exif_rotation: str = "rotate"
    num_spans: int = 1
    max_reject_fraction: float = 0.05
    code_fingerprint: str = ""

    def __post_init__(self) -> None:
        _check_choice("data_format", self.data_format, (AUTO, *FORMATS))
        _check_choice("unknown_class", self.unknown_class, UNKNOWN_CLASS_CHOICES)
        _check_choice("exif_rotation", self.exif_rotation, EXIF_CHOICES)
        self._check_splits()
        for name in ("source", "images_dir", "hierarchy_file"):
            _check_inside(name, getattr(self, name))
        if len(set(self.class_names)) != len(self.class_names) or not all(self.class_names):
            raise InputError(f"class_names: got {list(self.class_names)}, allowed: unique names that are not empty.")
        if not 0 <= self.max_distance <= 10:
            raise InputError(f"max_distance: got {self.max_distance}, allowed: 0 to 10.")
        for name in ("shard_max_bytes", "max_pixels", "max_image_bytes", "max_boxes", "num_spans"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, allowed: 1 and up.")
        if not 0.0 <= self.max_reject_fraction <= 1.0:
            raise InputError(f"max_reject_fraction: got {self.max_reject_fraction}, allowed: 0 to 1.")
        object.__setattr__(self, "splits", dict(self.splits))
        object.__setattr__(self, "split_ratios", dict(self.split_ratios))
        object.__setattr__(self, "class_names", tuple(self.class_names))

    def _check_splits(self) -> None:
        if self.splits and self.split_ratios:
            raise InputError("splits and split_ratios: got both, allowed: one of them.")
        for split in (*self.splits, *self.split_ratios):
            check_split_name(split, "splits")
        for split, source in self.splits.items():
            _check_inside(f"splits.{split}", source)
        ratios = self.split_ratios
        if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values()):
            raise InputError(f"split_ratios: got {dict(ratios)}, allowed: shares above 0.")
        if ratios and abs(sum(ratios.values()) - 1.0) > 1e-6:
            raise InputError(
                f"split_ratios: got {dict(ratios)}, a sum of {sum(ratios.values()):g}, allowed: a sum of 1."
            )
        if not ratios and any(getattr(self, name) for name in _OF_RATIOS):
            raise InputError(f"{', '.join(_OF_RATIOS)}: allowed only with split_ratios.")
        try:
            groups = re.compile(self.split_group).groups
        except re.error as error:
            raise InputError(
                f"split_group: got {self.split_group!r}, allowed: a regular expression ({error})."
            ) from None
        if self.split_group and not groups:
            raise InputError(
                f"split_group: got {self.split_group!r}, allowed: an expression with a group, such as '(cam[0-9]+)_'."
            )

    @classmethod
    def from_run_file(cls, data: Data, max_distance: int) -> "ExampleGenParams":
        """Return the parameters of a run file's `data` section, and with ratios of its check of near-duplicates."""
        values = {name: getattr(data, _RUN_FILE_NAMES.get(name, name)) for name in (*_COMMON, *_ONLY_IN_RUN_FILE)}
        if data.splits is not None:
            values["splits"] = asdict(data.splits)
        if data.split_by_ratio is not None:
            settings = asdict(data.split_by_ratio)
            values |= {name: settings.pop(_RUN_FILE_NAMES.get(name, name)) for name in _OF_RATIOS}
            values |= {"split_ratios": settings, "max_distance": max_distance}
        return cls(**values)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], **parsed: Any) -> "ExampleGenParams":
        """Return the parameters of the options of `detloom ingest`; `parsed` are those whose text needs parsing."""
        names = [name for name in (*_COMMON, *_OF_RATIOS) if name not in parsed]
        return cls(**{name: options[_OPTION_NAMES.get(name, name)] for name in names}, **parsed)

    def to_properties(self) -> dict[str, str | int | float]:
        """Return flat values for TFX: mappings and lists become JSON, booleans become 0 and 1."""
        properties = {item.name: getattr(self, item.name) for item in fields(self)}
        for name, value in properties.items():
            if isinstance(value, bool):
                properties[name] = int(value)
        return {
            **properties,
            **{name: json.dumps(getattr(self, name)) for name in _MAPPINGS},
            "class_names": json.dumps(self.class_names, ensure_ascii=False),
            "max_reject_fraction": float(self.max_reject_fraction),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "ExampleGenParams":
        """Return the parameters of `to_properties`; other keys (TFX's own) are ignored."""
        values = {item.name: properties[item.name] for item in fields(cls)}
        for item in fields(cls):
            if isinstance(item.default, bool):
                values[item.name] = bool(values[item.name])
        for name in _MAPPINGS:
            values[name] = json.loads(values[name])
        values["class_names"] = tuple(json.loads(values["class_names"]))
        return cls(**values)


def check_split_name(split: str, where: str) -> None:
    """Raise unless the name can be part of a folder name and of TFX's lists of splits."""
    if not _SPLIT_NAME.fullmatch(split):
        raise InputError(f"{where}: got the name {split!r}, allowed: letters, digits, '-' and '_'.")


def _check_inside(name: str, source: str) -> None:
    if os.path.isabs(source) or ".." in source.split("/") or "\0" in source:
        raise InputError(f"{name}: got {source!r}, allowed: a name relative to the data folder, without '..'.")


def _check_choice(name: str, got: str, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        raise InputError(f"{name}: got {got!r}, allowed: {', '.join(allowed)}.")
