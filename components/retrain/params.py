"""Parameters of RetrainDecision and TrainingRecord."""

from dataclasses import dataclass

from detloom.components.properties import ComponentParams
from detloom.schemas.run_file.data_checks import DataChecks
from detloom.schemas.run_file.schedule import Retrain


@dataclass(frozen=True, kw_only=True)
class RetrainParams(ComponentParams):
    """Conditions for retraining, and the location of the training records.

    Attributes:
        checks: data checks, which hold the drift limits.
        train_split: the split to train on.
        config_hash: hashes of the training settings and code as JSON by part; a difference always causes training.
        pipeline: pipeline name; several pipelines may keep records in one folder.
        production: folder of versions, or its address, or that of an endpoint; empty if unknown. The training of a
            model that was rolled back there counts as if it had never finished.
        records_state: only part of the cache key: the state of the records, for RetrainDecision in local runs.
        nonce: only part of the cache key: a new value in each local run, so that TrainingRecord is never cached.
    """

    retrain: Retrain
    checks: DataChecks = DataChecks()
    train_split: str = "train"
    config_hash: str = "{}"
    pipeline: str = ""
    production: str = ""
    records_state: str = ""
    nonce: str = ""
