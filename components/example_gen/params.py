"""Parameters of DetectionExampleGen."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from detloom.schemas.errors import InputError

FORMATS = ("coco", "voc")
UNKNOWN_CLASS_CHOICES = ("fail", "reject")
# TFX watches a source by a pattern, and its spans turn that into a regular expression: of what has a meaning in a
# pattern, '[' can be escaped for both, these cannot.
_PATTERN_CHARS = ("*", "?", "\\")


@dataclass(frozen=True, kw_only=True)
class ExampleGenParams:
    """What to read and what to refuse.

    Attributes:
        splits: source by output split; VOC: the name of a list in ImageSets/Main; COCO: the path of an annotation
            JSON relative to the data folder. It is taken literally and may not lead out of its folder. Two splits may
            have the same source.
        images_dir: relative to the data folder; "" is JPEGImages for VOC, and for COCO `images` where the data folder
            has such a folder, else the data folder itself.
        class_names: with ids 1, 2, ... in this order; empty is what the data says: COCO categories with their ids, VOC
            the sorted names over all splits.
        unknown_class: what an object of a class that `class_names` or the COCO categories lack does: "fail" the run,
            or "reject" the box.
        shard_max_bytes: of image bytes in one shard, give or take one image.
        max_reject_fraction: quarantined records over records read, and likewise refused boxes over boxes read of the
            records written, all splits together; where either is above it, ingestion fails.
        code_fingerprint: of the package's source; read by nobody, it makes TFX's cache see an edited reader.
    """

    data_format: str
    splits: Mapping[str, str]
    images_dir: str = ""
    class_names: tuple[str, ...] = ()
    unknown_class: str = "fail"
    shard_max_bytes: int = 128 * 2**20
    max_pixels: int = 100_000_000
    max_reject_fraction: float = 0.05
    code_fingerprint: str = ""

    def __post_init__(self) -> None:
        _check_choice("data_format", self.data_format, FORMATS)
        _check_choice("unknown_class", self.unknown_class, UNKNOWN_CLASS_CHOICES)
        if not self.splits or not all(self.splits) or not all(self.splits.values()):
            raise InputError(f"splits: got {dict(self.splits)}, allowed: at least one output split with its source.")
        for split in self.splits:
            if not split.replace("-", "").replace("_", "").isalnum():
                raise InputError(f"splits: got the name {split!r}, allowed: letters, digits, '-' and '_'.")
        for split, source in self.splits.items():
            _check_source(f"splits.{split}", source)
        if len(set(self.class_names)) != len(self.class_names) or not all(self.class_names):
            raise InputError(f"class_names: got {list(self.class_names)}, allowed: different names, none empty.")
        for name in ("shard_max_bytes", "max_pixels"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, allowed: 1 and up.")
        if not 0.0 <= self.max_reject_fraction <= 1.0:
            raise InputError(f"max_reject_fraction: got {self.max_reject_fraction}, allowed: 0 to 1.")
        object.__setattr__(self, "splits", dict(self.splits))
        object.__setattr__(self, "class_names", tuple(self.class_names))

    def to_properties(self) -> dict[str, str | int | float]:
        """Flat values for TFX; mappings and lists become JSON."""
        properties = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **properties,
            "splits": json.dumps(self.splits),
            "class_names": json.dumps(self.class_names, ensure_ascii=False),
            "max_reject_fraction": float(self.max_reject_fraction),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "ExampleGenParams":
        """The inverse of `to_properties`; other keys (TFX's own) are left alone."""
        values = {field.name: properties[field.name] for field in fields(cls)}
        values["splits"] = json.loads(values["splits"])
        values["class_names"] = tuple(json.loads(values["class_names"]))
        return cls(**values)


def _check_source(name: str, source: str) -> None:
    if os.path.isabs(source) or ".." in source.split("/"):
        raise InputError(f"{name}: got {source!r}, allowed: a name relative to the data folder, without '..'.")
    if any(char in source for char in _PATTERN_CHARS):
        raise InputError(f"{name}: got {source!r}, allowed: the name of one file, without {' '.join(_PATTERN_CHARS)}.")


def _check_choice(name: str, got: str, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        raise InputError(f"{name}: got {got!r}, allowed: {', '.join(allowed)}.")
