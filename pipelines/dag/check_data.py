"""Check that ingestion keeps what the detector learns. Imports neither TensorFlow nor TFX."""

from detloom.schemas.contracts.ground_truth import KEYPOINTS, MASKS
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.detectors.families import family_of


def check_ingested_columns(run: RunFile) -> None:
    """Raise InputError if the detector learns masks or keypoints that the run's ingestion would drop."""
    columns = family_of(run.config.model).ground_truth_columns
    for field, column, is_kept in (("masks", MASKS, run.data.masks), ("keypoints", KEYPOINTS, run.data.keypoints)):
        if column in columns and not is_kept:
            raise InputError(f"data.{field}: got false, allowed: true, because the detector learns {field}.")
