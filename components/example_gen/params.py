"""Parameters of DetectionExampleGen."""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from detloom.components.example_gen.sources.formats import FORMATS
from detloom.schemas.errors import InputError

AUTO = "auto"  # a data format that means: look which it is
UNKNOWN_CLASS_CHOICES = ("fail", "reject", "leave_out")
EXIF_CHOICES = ("rotate", "reject")
_MAPPINGS = ("splits", "split_ratios")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@dataclass(frozen=True, kw_only=True)
class ExampleGenParams:
    """What to read, how to split it and what to refuse.

    Attributes:
        data_format: one of `FORMATS`, or "auto".
        splits: source by output split; VOC: the name of a list in ImageSets/Main; COCO: the path of an annotation
            JSON relative to the data folder; the others: docs/ingestion.md. It is taken literally and may not lead out
            of its folder. Two splits may have the same source. Empty: the splits of the data set, under its own names.
        split_ratios: share by output split, instead of `splits`: a record goes where a hash of its key puts it, so that
            it stays there whatever is added to the data.
        source: with `split_ratios`, what is split; "" is all there is.
        split_group: with `split_ratios`, a regular expression searched in the path of the image (of TFRecords: in the
            record key); what its first group matched names the group (a camera, a patient), and no group straddles
            splits. A record without a match is quarantined.
        split_stratify: with `split_ratios`, keep the mix of classes alike in all splits; added data may then move a
            record to another split.
        split_seed: another one gives another division.
        images_dir: relative to the data folder; "" is the format's usual one.
        hierarchy_file: Open Images' class hierarchy; boxes become boxes of all ancestors too.
        class_names: with ids 1, 2, ... in this order; empty is what the data says: its own ids where it has some (COCO,
            TFRecords), else its declared order (YOLO), else the sorted names over all splits.
        unknown_class: what an object of a class that `class_names` or the data's own list lacks does: "fail" the run,
            "reject" the box, or "leave_out" the box: counted, but no reject.
        shard_max_bytes: of image bytes in one shard, give or take one image.
        gzip: compress the shards. Encoded images do not get smaller; it is for labels that weigh more than pictures.
        max_pixels, max_image_bytes, max_boxes: a record above is quarantined.
        decode_images: decode every image in full, to find damage that headers do not show; the cost is printed.
        exif_rotation: what happens to a JPEG that its EXIF data turns: "rotate" it upright, or "reject" it.
        num_spans: how many of the latest spans are merged; more than one needs {SPAN} in the path.
        max_reject_fraction: quarantined records over records read, and likewise refused boxes over boxes read of the
            records written, all splits together; where either is above it, ingestion fails.
        code_fingerprint: of the package's source; read by nobody, it makes TFX's cache see an edited reader.
    """

    data_format: str
    splits: Mapping[str, str] = field(default_factory=dict)
    split_ratios: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    split_group: str = ""
    split_stratify: bool = False
    split_seed: int = 0
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
            raise InputError(f"class_names: got {list(self.class_names)}, allowed: different names, none empty.")
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
        if not ratios and (self.source or self.split_group or self.split_stratify or self.split_seed):
            raise InputError("source, split_group, split_stratify, split_seed: only with split_ratios.")
        try:
            groups = re.compile(self.split_group).groups
        except re.error as error:
            raise InputError(f"split_group: got {self.split_group!r}, no regular expression ({error}).") from None
        if self.split_group and not groups:
            raise InputError(
                f"split_group: got {self.split_group!r}, allowed: one with a group, such as '(cam[0-9]+)_'."
            )

    def to_properties(self) -> dict[str, str | int | float]:
        """Flat values for TFX; mappings and lists become JSON, truth values 0 and 1."""
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
        """The inverse of `to_properties`; other keys (TFX's own) are left alone."""
        values = {item.name: properties[item.name] for item in fields(cls)}
        for item in fields(cls):
            if isinstance(item.default, bool):
                values[item.name] = bool(values[item.name])
        for name in _MAPPINGS:
            values[name] = json.loads(values[name])
        values["class_names"] = tuple(json.loads(values["class_names"]))
        return cls(**values)


def check_split_name(split: str, where: str) -> None:
    """A name that can be part of a folder's, and stand in TFX's lists."""
    if not _SPLIT_NAME.fullmatch(split):
        raise InputError(f"{where}: got the name {split!r}, allowed: letters, digits, '-' and '_'.")


def _check_inside(name: str, source: str) -> None:
    if os.path.isabs(source) or ".." in source.split("/") or "\0" in source:
        raise InputError(f"{name}: got {source!r}, allowed: a name relative to the data folder, without '..'.")


def _check_choice(name: str, got: str, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        raise InputError(f"{name}: got {got!r}, allowed: {', '.join(allowed)}.")
