"""Parameters of DetectionEvaluator; their names in TFX stand here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.gates_config import Gates
from detloom.schemas.typed_dict import from_json, to_canonical_json

SPLIT = "split"
SETTINGS = "settings"  # canonical JSON of `Evaluator`
GATES = "gates"  # canonical JSON of `Gates`
CODE_FINGERPRINT = "code_fingerprint"
PROPERTY_TYPES: dict[str, type] = {SPLIT: str, SETTINGS: str, GATES: str, CODE_FINGERPRINT: str}


@dataclass(frozen=True, kw_only=True)
class EvaluatorParams:
    """What decides an evaluation, apart from the models and the data.

    Attributes:
        code_fingerprint: of the package's source; only makes TFX's cache see a change of code.
    """

    split: str = "test"
    settings: Evaluator = field(default_factory=Evaluator)
    gates: Gates = field(default_factory=Gates)
    code_fingerprint: str = ""

    def to_properties(self) -> dict[str, Any]:
        return {
            SPLIT: self.split,
            SETTINGS: to_canonical_json(self.settings),
            GATES: to_canonical_json(self.gates),
            CODE_FINGERPRINT: self.code_fingerprint,
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "EvaluatorParams":
        """Other properties, which TFX adds, are left alone."""
        return cls(
            split=properties[SPLIT],
            settings=from_json(Evaluator, properties[SETTINGS]),
            gates=from_json(Gates, properties[GATES]),
            code_fingerprint=properties[CODE_FINGERPRINT],
        )
