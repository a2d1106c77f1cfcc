"""Parameters of ModelCard; their names in TFX stand here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.model_card_config import ModelCardConfig
from detloom.schemas.typed_dict import from_json, to_canonical_json

NAME = "name"
SPLIT = "split"
STATED = "stated"  # canonical JSON of `ModelCardConfig`
EVALUATOR = "evaluator"  # canonical JSON of `Evaluator`
TRAINER_FINGERPRINT = "trainer_fingerprint"
CODE_FINGERPRINT = "code_fingerprint"
PROPERTY_TYPES: dict[str, type] = {
    NAME: str,
    SPLIT: str,
    STATED: str,
    EVALUATOR: str,
    TRAINER_FINGERPRINT: str,
    CODE_FINGERPRINT: str,
}


@dataclass(frozen=True, kw_only=True)
class ModelCardParams:
    """What a card says beside what the artifacts hold.

    Attributes:
        name: of the model: that of the pipeline.
        split: that the evaluation was made on.
        stated: the run file's words.
        evaluator: settings of the evaluation, which the numbers are explained by.
        trainer_fingerprint: of the source that trained the model.
        code_fingerprint: of the card's source; only makes TFX's cache see a change of code.
    """

    name: str
    split: str = "test"
    stated: ModelCardConfig = field(default_factory=ModelCardConfig)
    evaluator: Evaluator = field(default_factory=Evaluator)
    trainer_fingerprint: str = ""
    code_fingerprint: str = ""

    def to_properties(self) -> dict[str, Any]:
        return {
            NAME: self.name,
            SPLIT: self.split,
            STATED: to_canonical_json(self.stated),
            EVALUATOR: to_canonical_json(self.evaluator),
            TRAINER_FINGERPRINT: self.trainer_fingerprint,
            CODE_FINGERPRINT: self.code_fingerprint,
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "ModelCardParams":
        """Other properties, which TFX adds, are left alone."""
        return cls(
            name=properties[NAME],
            split=properties[SPLIT],
            stated=from_json(ModelCardConfig, properties[STATED]),
            evaluator=from_json(Evaluator, properties[EVALUATOR]),
            trainer_fingerprint=properties[TRAINER_FINGERPRINT],
            code_fingerprint=properties[CODE_FINGERPRINT],
        )
