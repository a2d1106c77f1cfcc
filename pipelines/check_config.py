"""Check a configuration: the origin of each value, and the fields that are ignored, refused or not trained."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from detloom.pipelines.check_learned_columns import check_learned_columns
from detloom.schemas.errors import InputError
from detloom.schemas.load_config import build_config
from detloom.schemas.model.config import TrainEvalConfig, content_hash
from detloom.schemas.model.config_checks import warnings_before_run
from detloom.schemas.odapi.pipeline_config import FieldNote, PipelineConfigReport, refusal
from detloom.schemas.reading.overrides import Located
from detloom.schemas.reading.tree_diff import leaves
from detloom.schemas.reading.typed_dict import format_key_path, show_value, to_dict
from detloom.schemas.run_file.read_config import is_run_file, load_source
from detloom.schemas.run_file.read_run_file import build_run, check_paths
from detloom.trainer_module.detectors.supported import unsupported_settings

DEFAULT = "default"  # origin of a value that is not set


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigValue:
    """A value in effect; `where` is "file:line", "preset NAME", "--set ..." or "default"."""

    key: str
    value: str
    where: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigCheck:
    """The result of checking one file.

    Attributes:
        verdict: "loads", "refused" (names what detloom does not do) or "invalid" (cannot be read).
        error: one sentence; empty if it loads.
        mapped, ignored, refused: the fields of a `pipeline.config`; empty for other files.
        not_trained: settings that are understood, but that this version's trainer does not do.
    """

    file: str
    verdict: str
    error: str = ""
    content_hash: str = ""
    mapped: tuple[FieldNote, ...] = ()
    ignored: tuple[FieldNote, ...] = ()
    refused: tuple[FieldNote, ...] = ()
    not_trained: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    values: tuple[ConfigValue, ...] = ()


def check_config(source: str, overrides: Sequence[Located] = ()) -> ConfigCheck:
    """Check a run file, `pipeline.config`, `config.json` or preset with overrides; errors become part of the result."""
    report: PipelineConfigReport | None = None
    try:
        tree, report = load_source(source, overrides)
        if report is not None and report.refused:
            check = ConfigCheck(file=source, verdict="refused", error=str(refusal(report)))
        elif is_run_file(source):
            run = build_run(tree)  # paths as written: values of environment variables are not printed
            check_paths(run, tree, Path(source), overrides)  # raises InputError
            check_learned_columns(run)
            check = _answer(source, run.config, tuple(_values(to_dict(run), tree)))
        else:
            config = build_config(tree)
            check = _answer(source, config, tuple(_values(to_dict(config), tree)))
    except InputError as error:
        check = ConfigCheck(file=source, verdict="invalid", error=str(error))
    if report is None:
        return check
    return dataclasses.replace(check, mapped=report.mapped, ignored=report.ignored, refused=report.refused)


def _answer(source: str, config: TrainEvalConfig, values: tuple[ConfigValue, ...]) -> ConfigCheck:
    return ConfigCheck(
        file=source,
        verdict="loads",
        content_hash=content_hash(config),
        not_trained=unsupported_settings(config),
        warnings=warnings_before_run(config),
        values=values,
    )


def _values(plain: dict[str, Any], tree: Located) -> Iterator[ConfigValue]:
    for path, value in leaves(plain):
        where = tree.locate(path) if tree.holds(path) else DEFAULT
        yield ConfigValue(key=format_key_path(path), value=show_value(path, value), where=where)
