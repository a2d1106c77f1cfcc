"""Settings that this version understands but cannot train; they are refused by name. Imports no TensorFlow."""

from collections.abc import Iterator

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.detectors.detector import Finding
from detloom.trainer_module.detectors.families import family_of


def unsupported_settings(config: TrainEvalConfig) -> tuple[str, ...]:
    """Return a sentence, beginning with the key path, for each setting that this version cannot train."""
    findings = [*family_of(config.model).check_settings(), *_check_reading_and_eval(config)]
    return tuple(
        f"{finding.path}: got {_format(finding.got)}, supported: {finding.supported}."
        for finding in findings
        if not finding.is_supported
    )


def check_trainable(config: TrainEvalConfig) -> None:
    """Raise InputError, on one line, if there are unsupported settings."""
    sentences = unsupported_settings(config)
    if sentences:
        raise InputError(f"This version cannot train the configuration. {' '.join(sentences)}")


def _format(got: object) -> str:
    """Format a value as in a run file, and a group of settings by its class."""
    if got is None or isinstance(got, bool):
        return {None: "null", True: "true", False: "false"}[got]
    if isinstance(got, str):
        return f"'{redact(got)}'"
    return f"{got}" if isinstance(got, int | float) else type(got).__name__


def _check_reading_and_eval(config: TrainEvalConfig) -> Iterator[Finding]:
    is_supported = config.train.moving_average is not None or not config.eval.use_moving_averages
    supported = "true only with train.moving_average (set that, or this to false)"
    yield Finding(is_supported, "eval.use_moving_averages", config.eval.use_moving_averages, supported)
    epochs = config.train_input.num_epochs
    yield Finding(epochs == 0, "train_input.num_epochs", epochs, "0 (without end; train.num_steps ends training)")
    epochs = config.eval_input.num_epochs
    yield Finding(epochs in (0, 1), "eval_input.num_epochs", epochs, "0 or 1 (each evaluation reads the split once)")
