"""Validate a folder of examples with the model and the checks of a configuration, without TFX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detloom.components.dataset_validator.validate import validate_examples
from detloom.pipelines.local.beam_pipelines import pipeline_maker
from detloom.pipelines.local.console import format_table
from detloom.schemas.model.config import InputReader, TrainEvalConfig
from detloom.schemas.reading.redact import escape
from detloom.schemas.reading.typed_dict import from_dict
from detloom.schemas.reading.yaml_file import read_yaml
from detloom.schemas.run_file.data_checks import DataChecks
from detloom.schemas.run_file.read_config import is_run_file, read_config, read_sections


def validate_folder(
    examples: Path,
    output: Path,
    *,
    config: str = "",
    checks_file: Path | None = None,
    previous: Path | None = None,
    train_split: str = "",
    num_workers: int = 1,
) -> dict[str, Any]:
    """Validate a folder of examples with the model and the checks of a configuration; write and return the report.

    Args:
        config: as for the option; empty uses the default checks, without those that need a model.

    Raises:
        InputError: a file or a split is missing, or a setting is wrong; not for a check that fails.
    """
    settings, checks = _read_validation(config, checks_file)
    return validate_examples(
        examples,
        output,
        checks=checks,
        model=settings.model if settings else None,
        max_boxes=(settings.train_input if settings else InputReader()).max_number_of_boxes,
        train_split=train_split,
        previous_report=previous,
        make_pipeline=pipeline_maker(num_workers),
    )


def format_checks(report: Mapping[str, Any]) -> str:
    """Format the checks of a report as a table, and the verdict."""
    rows = [(check["status"], check["check"], check["sentence"]) for check in report["checks"]]
    return f"{format_table(rows)}\n{escape(report['sentence'])}"


def _read_validation(config: str, checks_file: Path | None) -> tuple[TrainEvalConfig | None, DataChecks]:
    """Return the configuration of `--config`, and the checks of `--checks`, the run file or the defaults."""
    settings = read_config(config) if config else None
    if checks_file is not None:
        data, locate = read_yaml(checks_file)
        return settings, from_dict(DataChecks, data or {}, locate=locate)
    if config and is_run_file(config):
        return settings, read_sections(config).checks
    return settings, DataChecks()
