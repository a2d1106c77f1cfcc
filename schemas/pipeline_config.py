"""The Object Detection API's `pipeline.config`: read, explained field by field, and written.

A file means here what it means there: defaults of omitted fields, merging, deprecated spellings. Nothing in it is
dropped: each field is mapped, ignored with a reason, or refused. docs/pipeline_config.md lists what becomes of which.
"""

from pathlib import Path

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.odapi.report import FieldNote, PipelineConfigReport
from detloom.schemas.text_file import read_text_file
from detloom.schemas.typed_dict import from_dict

__all__ = [
    "FieldNote",
    "PipelineConfigReport",
    "format_pipeline_config",
    "parse_pipeline_config",
    "read_pipeline_config",
    "refusal",
]


def parse_pipeline_config(text: str, name: str, override_text: str = "") -> PipelineConfigReport:
    """What a text means; fields that cannot be honoured are in the report's `refused`.

    Args:
        name: of the file, for messages.
        override_text: merged over it, as the Object Detection API's `config_override`; its place is "override".

    Raises:
        InputError: with file and line, if this is not the format, or a field is unknown or of another type.
    """
    from detloom.schemas.odapi.reader import read_messages
    from detloom.schemas.odapi.text_format import merge_text, new_root

    root = new_root(name)
    merge_text(root, text, name)
    if override_text:
        merge_text(root, override_text, "override")
    return read_messages(root)


def refusal(report: PipelineConfigReport) -> InputError:
    """The error for a file with refused fields: it names the first, and how to see the others."""
    first, *others = report.refused
    more = f" (and {len(others)} more: detloom config check {report.name} lists them)" if others else ""
    return InputError(f"{first.where}: {first.path}: {first.reason}{more}.")


def read_pipeline_config(path: Path, override_text: str = "") -> TrainEvalConfig:
    """The configuration that a file stands for.

    Raises:
        InputError: with file and line, for the first field that is refused, wrong or out of range.
    """
    report = parse_pipeline_config(read_text_file(path), str(path), override_text)
    if report.refused:
        raise refusal(report)
    return from_dict(TrainEvalConfig, report.located.data, locate=report.located.locate)


def format_pipeline_config(config: TrainEvalConfig) -> str:
    """A text that is read as the same configuration.

    What the format has no field for stands in an extension at its end, which the Object Detection API refuses.
    """
    from detloom.schemas.odapi.writer import format_config

    return format_config(config)
