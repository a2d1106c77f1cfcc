"""Define the parameters of DetectionExampleGen."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from detloom.components.properties import ComponentParams
from detloom.schemas.errors import FieldError, check, check_fields
from detloom.schemas.reading.typed_dict import check_choices, to_dict
from detloom.schemas.run_file.data import DEFAULT_MAX_DISTANCE, Data, IngestSettings, RatioSettings

TRAIN = "train"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@dataclass(frozen=True, kw_only=True)
class ExampleGenParams(ComponentParams, RatioSettings, IngestSettings):
    """All settings of an ingestion except the data folder; splits have any names, while those of the run file are
    fixed."""

    splits: dict[str, str] = field(default_factory=dict)
    """Source by split: for VOC the name of a list in ImageSets/Main, for COCO the path of an annotation file in the
    data set. Several splits may have the same source. Default: the splits of the data set."""
    split_by_ratio: dict[str, float] = field(default_factory=dict)
    """Share by split, instead of `splits`; `source`, `group_by`, `stratify`, `seed` and `separate_near_duplicates` need
    it."""
    cut_from_train: dict[str, float] = field(default_factory=dict)
    """Share of the images of the split train that become another split, such as test=0.15, which the data set lacks. A
    stable hash selects them, and images that look the same stay together."""
    max_distance: int = DEFAULT_MAX_DISTANCE
    """Largest number of different bits, 0 to 10, between the hashes of two near-duplicates."""
    num_spans: int = 1
    """Number of latest spans to merge; more than one needs `{SPAN}` in the path of the data."""

    def __post_init__(self) -> None:
        IngestSettings.__post_init__(self)
        RatioSettings.__post_init__(self)
        check_choices(self)
        check_fields(self, "0 to 10", "max_distance")
        check_fields(self, "1 or more", "num_spans")
        self._check_splits()
        for name in ("source", "images_dir", "hierarchy_file"):
            _check_inside(name, getattr(self, name))

    def _check_splits(self) -> None:
        if self.splits and self.split_by_ratio:
            raise FieldError("splits", "got both splits and split_by_ratio, allowed: one of them.")
        for split in (*self.splits, *self.split_by_ratio):
            check_split_name(split, "splits")
        for split, source in self.splits.items():
            _check_inside(f"splits.{split}", source)
        shares = self.split_by_ratio.values()
        are_valid = all(math.isfinite(share) and share > 0 for share in shares)
        check(are_valid, "split_by_ratio", dict(self.split_by_ratio), "shares above 0")
        total = sum(shares)
        got = f"{dict(self.split_by_ratio)}, a sum of {total:g}"
        check(not shares or abs(total - 1) <= 1e-6, "split_by_ratio", got, "a sum of 1")
        cut = self.cut_from_train
        for split in cut:
            check_split_name(split, "cut_from_train")
            check(split != TRAIN and split not in self.splits, "cut_from_train", split, "a split without a source")
        is_share = all(0 < share < 1 for share in cut.values()) and sum(cut.values()) < 1
        check(is_share, "cut_from_train", dict(cut), "shares between 0 and 1, with a sum below 1")
        check(not (cut and shares), "cut_from_train", dict(cut), "nothing with split_by_ratio")
        for item in fields(RatioSettings):
            if getattr(self, item.name) and not shares:
                raise FieldError(item.name, "allowed only with split_by_ratio.")

    def shares_of(self, source_split: str) -> Mapping[str, float]:
        """Return the share of each output split of a source's images; empty if all stay in its split."""
        if self.cut_from_train and source_split == TRAIN:
            return {TRAIN: 1 - sum(self.cut_from_train.values()), **self.cut_from_train}
        return self.split_by_ratio

    @classmethod
    def from_run_file(cls, data: Data, max_distance: int) -> "ExampleGenParams":
        """Return the parameters of a run file's `data` section, and with ratios of its check of near-duplicates."""
        values = {item.name: getattr(data, item.name) for item in fields(IngestSettings)}
        values["num_spans"] = data.num_spans
        if data.splits is not None:
            sources = {split: getattr(data.splits, split) for split in (TRAIN, "eval", "test")}
            values["splits"] = {split: source for split, source in sources.items() if source}
            if data.splits.cut_share:
                values["cut_from_train"] = dict.fromkeys(sources.keys() - values["splits"], data.splits.cut_share)
                values["max_distance"] = max_distance
        if data.split_by_ratio is not None:
            settings = to_dict(data.split_by_ratio)
            values |= {item.name: settings.pop(item.name) for item in fields(RatioSettings)}
            values |= {"split_by_ratio": settings, "max_distance": max_distance}
        return cls(**values)


def check_split_name(split: str, where: str) -> None:
    """Raise unless the name can be part of a folder name and of TFX's lists of splits."""
    if not _SPLIT_NAME.fullmatch(split):
        raise FieldError(where, f"got the name {split!r}, allowed: letters, digits, '-' and '_'.")


def _check_inside(name: str, source: str) -> None:
    if os.path.isabs(source) or ".." in source.split("/") or "\0" in source:
        raise FieldError(name, f"got {source!r}, allowed: a name relative to the data folder, without '..'.")
