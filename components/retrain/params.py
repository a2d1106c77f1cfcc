"""Parameters of RetrainDecision and TrainingRecord; their names in TFX stand here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detloom.schemas.data_checks import DataChecks
from detloom.schemas.retrain_config import Retrain
from detloom.schemas.typed_dict import from_json, to_canonical_json

RETRAIN = "retrain"  # canonical JSON of `Retrain`
CHECKS = "checks"  # canonical JSON of `DataChecks`
TRAIN_SPLIT = "train_split"
CONFIG_HASH = "config_hash"
PIPELINE = "pipeline"
NONCE = "nonce"
CODE_FINGERPRINT = "code_fingerprint"
PROPERTY_TYPES: dict[str, type] = {
    RETRAIN: str,
    CHECKS: str,
    TRAIN_SPLIT: str,
    CONFIG_HASH: str,
    PIPELINE: str,
    NONCE: str,
    CODE_FINGERPRINT: str,
}


@dataclass(frozen=True, kw_only=True)
class RetrainParams:
    """What is a reason to train, and where finished trainings are remembered.

    Attributes:
        checks: their limits of drift.
        train_split: that is trained on.
        config_hash: of settings and code of the training; another one is always a reason.
        pipeline: its name: several may remember in one folder.
        nonce: read by nobody. On one machine RetrainDecision gets `records_state`, so that TFX's cache sees what lies
            in the records, and TrainingRecord a fresh one each run, as it is never answered from the cache.
        code_fingerprint: of the source; read by nobody, for the cache.
    """

    retrain: Retrain
    checks: DataChecks
    train_split: str
    config_hash: str
    pipeline: str = ""
    nonce: str = ""
    code_fingerprint: str = ""

    def to_properties(self) -> dict[str, str]:
        """Flat values for TFX."""
        return {
            RETRAIN: to_canonical_json(self.retrain),
            CHECKS: to_canonical_json(self.checks),
            TRAIN_SPLIT: self.train_split,
            CONFIG_HASH: self.config_hash,
            PIPELINE: self.pipeline,
            NONCE: self.nonce,
            CODE_FINGERPRINT: self.code_fingerprint,
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "RetrainParams":
        """The inverse of `to_properties`; other keys are left alone. An empty text may come back as None."""
        return cls(
            retrain=from_json(Retrain, properties[RETRAIN]),
            checks=from_json(DataChecks, properties[CHECKS]),
            train_split=properties[TRAIN_SPLIT],
            config_hash=properties[CONFIG_HASH],
            pipeline=properties.get(PIPELINE) or "",
            nonce=properties.get(NONCE) or "",
            code_fingerprint=properties.get(CODE_FINGERPRINT) or "",
        )
