"""Check a configuration: the origin of each value, and the fields that are ignored, refused or not trained."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from detloom.pipelines.dag.check_data import check_learned_columns
from detloom.pipelines.local.console import format_columns
from detloom.schemas.errors import InputError
from detloom.schemas.load_config import apply_layer, build_config, load_tree
from detloom.schemas.model.config import TrainEvalConfig, content_hash
from detloom.schemas.model.config_checks import warnings_before_run
from detloom.schemas.odapi.pipeline_config import FieldNote, PipelineConfigReport, refusal
from detloom.schemas.reading.overrides import Located, merge
from detloom.schemas.reading.tree_diff import leaves
from detloom.schemas.reading.typed_dict import format_key_path, show_value, to_dict
from detloom.schemas.run_file.read_run_file import build_run, check_paths, load_run_tree, resolve_checkpoint
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


def is_run_file(source: str) -> bool:
    return source.endswith((".yaml", ".yml"))


def check_config(source: str, overrides: Sequence[Located] = (), override_text: str = "") -> ConfigCheck:
    """Check a run file, `pipeline.config`, `config.json` or preset with overrides; errors become part of the result."""
    report: PipelineConfigReport | None = None
    try:
        tree, report = _load(source, overrides, override_text)
        if report is not None and report.refused:
            check = ConfigCheck(file=source, verdict="refused", error=str(refusal(report)))
        elif is_run_file(source):
            run = build_run(tree)  # paths as written: values of environment variables are not printed
            check_paths(run, tree, Path(source))  # raises InputError
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


def _load(source: str, overrides: Sequence[Located], override_text: str) -> tuple[Located, PipelineConfigReport | None]:
    """Return the merged tree of a source and its overrides, and the report of a `pipeline.config`."""
    if is_run_file(source):
        return load_run_tree(Path(source), overrides, override_text)
    over = merge(Located({}, lambda _: source), *overrides)
    tree, report = load_tree(source, Path(), override_text=override_text, above=over)
    return (apply_layer(tree, over) if overrides else tree), report


def _load_whole(source: str, overrides: Sequence[Located], override_text: str) -> Located:
    """Return the tree as `_load` does; raise an error for a refused field."""
    tree, report = _load(source, overrides, override_text)
    if report is not None and report.refused:
        raise refusal(report)
    return tree


def _answer(source: str, config: TrainEvalConfig, values: tuple[ConfigValue, ...]) -> ConfigCheck:
    return ConfigCheck(
        file=source,
        verdict="loads",
        content_hash=content_hash(config),
        not_trained=unsupported_settings(config),
        warnings=warnings_before_run(config),
        values=values,
    )


def read_effective(source: str, overrides: Sequence[Located] = (), override_text: str = "") -> dict[str, Any]:
    """Return all values of a run file or a configuration as plain data, with defaults; paths are as written.

    Raises:
        InputError: as for running it.
    """
    tree = _load_whole(source, overrides, override_text)
    return dict(to_dict(build_run(tree) if is_run_file(source) else build_config(tree)))


def read_config(source: str, overrides: Sequence[Located] = (), override_text: str = "") -> TrainEvalConfig:
    """Read the configuration of a preset, a `pipeline.config`, a `config.json` or a run file.

    Raises:
        InputError: as for running it.
    """
    tree = _load_whole(source, overrides, override_text)
    return build_run(tree).config if is_run_file(source) else build_config(tree)


def read_training_config(source: str, overrides: Sequence[Located] = ()) -> TrainEvalConfig:
    """Read a configuration to train on this machine; resolve its fine-tune checkpoint relative to the run file."""
    config = read_config(source, overrides)
    if not is_run_file(source):
        return config
    return dataclasses.replace(config, train=resolve_checkpoint(config.train, Path(source)))


def _values(plain: dict[str, Any], tree: Located) -> Iterator[ConfigValue]:
    for path, value in leaves(plain):
        where = tree.locate(path) if tree.holds(path) else DEFAULT
        yield ConfigValue(key=format_key_path(path), value=show_value(path, value), where=where)


def format_check(check: ConfigCheck) -> str:
    """Format the full check of one file as text."""
    numbers = f"mapped {len(check.mapped)}, ignored {len(check.ignored)}, refused {len(check.refused)}"
    lists = f" ({numbers})" if check.mapped or check.ignored or check.refused else ""
    lines = [f"{check.file}: {check.verdict}{lists}"]
    if check.content_hash:
        lines.append(f"  sha256 {check.content_hash}")
    if check.error:
        lines.append(f"  {check.error}")
    lines += _section("warnings", check.warnings)
    lines += _section("understood, but not trained by this version", check.not_trained)
    for title, notes in (("refused", check.refused), ("ignored", check.ignored), ("mapped", check.mapped)):
        rows = [(_line(check, note.where), f"{note.path} = {note.value}", note.reason) for note in notes]
        lines += _section(title, format_columns(rows))
    values = [(f"{value.key} = {value.value}", _line(check, value.where)) for value in check.values]
    return "\n".join([*lines, *_section("effective values", format_columns(values))])


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _line(check: ConfigCheck, where: str) -> str:
    """Return a location without the file name if it is in the checked file."""
    prefix = f"{check.file}:"
    return f"line {where[len(prefix) :]}" if where.startswith(prefix) else where


def format_checks(checks: Sequence[ConfigCheck]) -> str:
    """Format a table with one line per file, and the error of each file that does not load."""
    width = max(len(check.file) for check in checks)
    lines = [f"{'file':<{width}}  {'verdict':<8}  mapped  ignored  refused  not trained yet"]
    for check in checks:
        counts = f"{len(check.mapped):>6}  {len(check.ignored):>7}  {len(check.refused):>7}"
        lines.append(f"{check.file:<{width}}  {check.verdict:<8}  {counts}  {len(check.not_trained):>15}")
    faults = [f"  {check.error}" for check in checks if check.error]
    return "\n".join([*lines, *(["", "does not load:", *faults] if faults else [])])
