"""Parameters of DatasetValidator."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detloom.components.dataset_validator.model_input import ModelInput
from detloom.schemas.data_checks import DataChecks
from detloom.schemas.errors import InputError
from detloom.schemas.typed_dict import from_json, to_canonical_json

REQUIRED_SPLITS = "required_splits"  # JSON
TRAIN_SPLIT = "train_split"
CHECKS = "checks"  # canonical JSON of `DataChecks`
MODEL_INPUT = "model_input"  # canonical JSON of `ModelInput`; "" where there is none
MAX_PIXELS = "max_pixels"
HISTORY = "history"
CODE_FINGERPRINT = "code_fingerprint"
PROPERTY_TYPES: dict[str, type] = {
    REQUIRED_SPLITS: str,
    TRAIN_SPLIT: str,
    CHECKS: str,
    MODEL_INPUT: str,
    MAX_PIXELS: int,
    HISTORY: str,
    CODE_FINGERPRINT: str,
}


@dataclass(frozen=True, kw_only=True)
class DatasetValidatorParams:
    """What a data set must satisfy, and how much each check weighs.

    Attributes:
        required_splits: those that have to be there and to hold boxes.
        train_split: what is trained on; the other splits must not share pictures with it.
        model_input: None where no model is known; checks that need one are skipped then.
        max_pixels: a larger picture is not decoded, neither for its perceptual hash nor for the page.
        history: folder or address where each span's report is kept for the next one, and the page of data that do not
            pass; empty where a Resolver finds the earlier report and the outputs of failed nodes stay.
        code_fingerprint: of the package's source; read by nobody, it makes TFX's cache see an edited check.
    """

    required_splits: tuple[str, ...] = ("train", "eval")
    train_split: str = "train"
    checks: DataChecks = DataChecks()
    model_input: ModelInput | None = None
    max_pixels: int = 100_000_000
    history: str = ""
    code_fingerprint: str = ""

    def __post_init__(self) -> None:
        if not self.required_splits or not all(self.required_splits):
            raise InputError(f"required_splits: got {list(self.required_splits)}, allowed: at least one name.")
        if self.max_pixels < 1:
            raise InputError(f"max_pixels: got {self.max_pixels}, allowed: 1 and up.")
        object.__setattr__(self, "required_splits", tuple(self.required_splits))

    def to_properties(self) -> dict[str, str | int]:
        """Flat values for TFX."""
        return {
            REQUIRED_SPLITS: json.dumps(self.required_splits),
            TRAIN_SPLIT: self.train_split,
            CHECKS: to_canonical_json(self.checks),
            MODEL_INPUT: to_canonical_json(self.model_input) if self.model_input else "",
            MAX_PIXELS: self.max_pixels,
            HISTORY: self.history,
            CODE_FINGERPRINT: self.code_fingerprint,
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "DatasetValidatorParams":
        """The inverse of `to_properties`; other keys are left alone."""
        model_input = properties[MODEL_INPUT]
        return cls(
            required_splits=tuple(json.loads(properties[REQUIRED_SPLITS])),
            train_split=properties[TRAIN_SPLIT],
            checks=from_json(DataChecks, properties[CHECKS]),
            model_input=from_json(ModelInput, model_input) if model_input else None,
            max_pixels=int(properties[MAX_PIXELS]),
            history=properties.get(HISTORY) or "",
            code_fingerprint=properties[CODE_FINGERPRINT],
        )
