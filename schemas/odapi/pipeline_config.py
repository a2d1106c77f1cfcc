"""Read and write the Object Detection API's `pipeline.config`, and report on each field.

A file has the same meaning as in the API: defaults of omitted fields, merging, deprecated spellings. No field is
dropped silently: each one is mapped, ignored with a reason, or refused. docs/pipeline_config.md lists all fields.
"""

from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.rules import FieldNote, PipelineConfigReport
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.reading.typed_dict import from_dict

__all__ = [
    "FieldNote",
    "PipelineConfigReport",
    "format_pipeline_config",
    "parse_pipeline_config",
    "read_pipeline_config",
    "refusal",
]


def parse_pipeline_config(text: str, name: str) -> PipelineConfigReport:
    """Parse a text; fields that are not supported are in the report's `refused`.

    Args:
        name: name of the file, for messages.

    Raises:
        InputError: with file and line, if the syntax is invalid, or a field is unknown or has the wrong type.
    """
    from detloom.schemas.odapi.reader import read_messages
    from detloom.schemas.odapi.text_format import merge_text, new_root

    root = new_root(name)
    merge_text(root, text, name)
    return read_messages(root)


def refusal(report: PipelineConfigReport) -> InputError:
    """Return the error for a file with refused fields; it names the first field and how to list the others."""
    first, *others = report.refused
    more = f" (and {len(others)} more: detloom config check {report.name} lists them)" if others else ""
    return InputError(f"{first.where}: {first.path}: {first.reason}{more}.")


def read_pipeline_config(path: Path) -> TrainEvalConfig:
    """Read the configuration of a file.

    Raises:
        InputError: with file and line, for the first field that is refused, wrong or out of range.
    """
    report = parse_pipeline_config(read_text_file(path), str(path))
    if report.refused:
        raise refusal(report)
    return from_dict(TrainEvalConfig, report.located.data, locate=report.located.locate)


def format_pipeline_config(config: TrainEvalConfig) -> str:
    """Format a configuration as text that is read back as the same configuration.

    Settings without a field in the format are written to an extension at the end, which the Object Detection API
    rejects.
    """
    from detloom.schemas.odapi.writer import format_config

    return format_config(config)
