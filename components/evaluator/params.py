"""Parameters of DetectionEvaluator; their names in TFX stand here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.run_file import Gates
from detloom.schemas.typed_dict import from_json, to_canonical_json

SPLIT = "split"
BATCH_SIZE = "batch_size"
GATES = "gates"  # canonical JSON of `Gates`
NUM_PICTURES = "num_pictures"
CODE_FINGERPRINT = "code_fingerprint"
PROPERTY_TYPES: dict[str, type] = {
    SPLIT: str,
    BATCH_SIZE: int,
    GATES: str,
    NUM_PICTURES: int,
    CODE_FINGERPRINT: str,
}


@dataclass(frozen=True, kw_only=True)
class EvaluatorParams:
    """What decides an evaluation, apart from the models and the data.

    Attributes:
        batch_size: images that go through the model at a time; always exactly so many, the last ones filled up.
        num_pictures: images drawn on the page.
        code_fingerprint: of the package's source; only makes TFX's cache see a change of code.
    """

    split: str = "test"
    batch_size: int = 8
    gates: Gates = field(default_factory=Gates)
    num_pictures: int = 12
    code_fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size: got {self.batch_size}, allowed: 1 or more.")
        if self.num_pictures < 0:
            raise InputError(f"num_pictures: got {self.num_pictures}, allowed: 0 or more.")

    def to_properties(self) -> dict[str, Any]:
        return {
            SPLIT: self.split,
            BATCH_SIZE: self.batch_size,
            GATES: to_canonical_json(self.gates),
            NUM_PICTURES: self.num_pictures,
            CODE_FINGERPRINT: self.code_fingerprint,
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "EvaluatorParams":
        """Other properties, which TFX adds, are left alone."""
        return cls(
            split=properties[SPLIT],
            batch_size=int(properties[BATCH_SIZE]),
            gates=from_json(Gates, properties[GATES]),
            num_pictures=int(properties[NUM_PICTURES]),
            code_fingerprint=properties[CODE_FINGERPRINT],
        )
