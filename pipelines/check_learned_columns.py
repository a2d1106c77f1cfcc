"""Check that ingestion and export keep what the detector learns. Imports neither TensorFlow nor TFX."""

from detloom.schemas.contracts.ground_truth import KEYPOINTS, MASKS
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.detectors.families import family_of


def check_learned_columns(run: RunFile) -> None:
    """Raise InputError if the run's ingestion would drop masks or keypoints that the detector learns, or its export."""
    columns = family_of(run.config.model).ground_truth_columns
    for field, column, is_kept in (("masks", MASKS, run.data.masks), ("keypoints", KEYPOINTS, run.data.keypoints)):
        if column not in columns:
            continue
        if not is_kept:
            raise InputError(f"data.{field}: got false, allowed: true, because the detector learns {field}.")
        if run.export.tflite:
            why = f"because TensorFlow Lite files have no {field}"
            raise InputError(f"export.tflite: got {list(run.export.tflite)}, allowed: [], {why}.")
