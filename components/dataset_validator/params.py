"""Parameters of DatasetValidator."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from detloom.schemas.errors import InputError

SEVERITIES = ("off", "warn", "fail")


@dataclass(frozen=True, kw_only=True)
class DatasetValidatorParams:
    """What a data set must satisfy, and how much each check weighs: "off", "warn" or "fail".

    Attributes:
        train_split: the split that has to hold every class of the label map.
        records: examples that cannot be parsed, or whose box features differ in length.
        examples_per_split: the required splits exist and hold at least `min_examples_per_split` examples each.
        boxes: coordinates are finite, in 0 to 1, ordered, and enclose an area.
        class_ids: every class id stands in the label map.
        classes_in_train: every class of the label map has a box in `train_split`.
        boxes_in_splits: every required split holds at least one box.
        code_fingerprint: of the package's source; read by nobody, it makes TFX's cache see an edited check.
    """

    required_splits: tuple[str, ...] = ("train", "eval")
    train_split: str = "train"
    min_examples_per_split: int = 1
    records: str = "fail"
    examples_per_split: str = "fail"
    boxes: str = "fail"
    class_ids: str = "fail"
    classes_in_train: str = "warn"
    boxes_in_splits: str = "fail"
    code_fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in CHECKS:
            if getattr(self, name) not in SEVERITIES:
                raise InputError(f"{name}: got {getattr(self, name)!r}, allowed: {', '.join(SEVERITIES)}.")
        if not self.required_splits or not all(self.required_splits):
            raise InputError(f"required_splits: got {list(self.required_splits)}, allowed: at least one name.")
        if self.min_examples_per_split < 1:
            raise InputError(f"min_examples_per_split: got {self.min_examples_per_split}, allowed: 1 and up.")
        object.__setattr__(self, "required_splits", tuple(self.required_splits))

    def to_properties(self) -> dict[str, str | int | float]:
        """Flat values for TFX; the list of splits becomes JSON."""
        properties = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**properties, "required_splits": json.dumps(self.required_splits)}

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "DatasetValidatorParams":
        """The inverse of `to_properties`; other keys are left alone."""
        values = {field.name: properties[field.name] for field in fields(cls)}
        values["required_splits"] = tuple(json.loads(values["required_splits"]))
        return cls(**values)


# The attributes that are severities, one a check, in the order of the report.
CHECKS = ("records", "examples_per_split", "boxes", "class_ids", "classes_in_train", "boxes_in_splits")
