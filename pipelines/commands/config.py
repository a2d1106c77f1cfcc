"""`detloom config`: check, show, compare and convert configurations. Imports neither TensorFlow nor TFX."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import complete_config, json_option, override_options, read_override_options
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import escape_lines

if TYPE_CHECKING:
    from detloom.pipelines.check_config import ConfigCheck


@command("detloom config check cells.yaml", "detloom config show cells.yaml", cls=click.Group)
def config() -> None:
    """Check, show, compare and convert configurations.

    A configuration is a run file (.yaml), a pipeline.config of the Object Detection API, the config.json of an earlier
    training run, or the name of a preset.
    """


@command(
    "detloom config check cells.yaml --set train.batch_size=16",
    "detloom config check configs/*.config --json",
    group=config,
)
@click.argument("files", nargs=-1, required=True, shell_complete=complete_config)
@override_options
@json_option
@click.option("--full", is_flag=True, help="With several files: show all details of each instead of one line.")
def check(files: tuple[str, ...], settings: tuple[str, ...], as_json: bool, full: bool) -> None:
    """Check files and show the values in effect.

    Of a pipeline.config, shows which fields are mapped, ignored (with the reason) or refused.
    """
    from detloom.pipelines.check_config import check_config
    from detloom.schemas.reading.typed_dict import to_dict

    overrides = read_override_options(settings)
    checks = [check_config(file, overrides) for file in files]
    if as_json:
        click.echo(json.dumps([to_dict(each) for each in checks], indent=1, ensure_ascii=False))
    elif full or len(checks) == 1:
        click.echo("\n\n".join(_format_check(each) for each in checks))
    else:
        click.echo(_format_checks(checks))
    sys.exit(any(each.error for each in checks))


@command("detloom config show cells.yaml", "detloom config show ssd_mobilenet_v2_fpnlite_320x320 --json", group=config)
@click.argument("source", shell_complete=complete_config)
@override_options
@json_option
def show(source: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Print all effective values, including defaults.

    SOURCE is a configuration or a preset. The output is YAML in the format of a run file.
    """
    import yaml

    from detloom.schemas.run_file.read_config import read_effective

    plain = read_effective(source, read_override_options(settings))
    if as_json:
        click.echo(json.dumps(plain, indent=1, ensure_ascii=False))
    else:
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120), nl=False)


@command("detloom config diff cells.yaml other.yaml", group=config)
@click.argument("one", shell_complete=complete_config)
@click.argument("other", shell_complete=complete_config)
@override_options
@json_option
def diff(one: str, other: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Print the values in which two configurations differ.

    Overrides apply to OTHER.
    """
    from detloom.pipelines.local.console import format_columns
    from detloom.schemas.reading.tree_diff import diff_trees
    from detloom.schemas.reading.typed_dict import to_dict
    from detloom.schemas.run_file.read_config import is_run_file, read_config, read_effective

    try:
        overrides = read_override_options(settings)
        if is_run_file(one) and is_run_file(other):
            rows = diff_trees(read_effective(one), read_effective(other, overrides))
        else:  # only the detector configuration of a run file can be compared with other formats
            rows = diff_trees(to_dict(read_config(one)), to_dict(read_config(other, overrides)))
    except InputError as error:
        click.echo(f"error: {escape_lines(str(error))}", err=True)
        sys.exit(ExitCode.USAGE)
    if as_json:
        plain = [{"key": key, "one": left, "other": right} for key, left, right in rows]
        click.echo(json.dumps(plain, indent=1))
    elif rows:
        cells = [(key, left, "->", right) for key, left, right in rows]
        click.echo("\n".join(format_columns(cells)))
    else:
        click.echo("no difference")
    sys.exit(bool(rows))


@command("detloom config to-text cells.yaml > pipeline.config", group=config)
@click.argument("source", shell_complete=complete_config)
@override_options
def to_text(source: str, settings: tuple[str, ...]) -> None:
    """Print a pipeline.config of the Object Detection API.

    Settings that the format does not support are written in an extension, which the Object Detection API refuses
    instead of ignoring it.
    """
    from detloom.schemas.odapi.pipeline_config import format_pipeline_config
    from detloom.schemas.run_file.read_config import read_config

    parsed = read_config(source, read_override_options(settings))
    click.echo(format_pipeline_config(parsed), nl=False)


@command("detloom config schema > run_file.schema.json", group=config)
def schema() -> None:
    """Print the JSON Schema of the run file, for editors."""
    from detloom.schemas.run_file.json_schema import run_file_schema

    click.echo(json.dumps(run_file_schema(), indent=1, ensure_ascii=False))


def _format_check(check: "ConfigCheck") -> str:
    """Format the full check of one file as text."""
    from detloom.pipelines.local.console import format_columns

    numbers = f"mapped {len(check.mapped)}, ignored {len(check.ignored)}, refused {len(check.refused)}"
    lists = f" ({numbers})" if check.mapped or check.ignored or check.refused else ""
    lines = [f"{check.file}: {check.verdict}{lists}"]
    if check.content_hash:
        lines.append(f"  sha256 {check.content_hash}")
    if check.error:
        lines.append(f"  {check.error}")
    lines += _section("warnings", check.warnings)
    lines += _section("understood, but not trained by this version", check.not_trained)
    notes_by_title = {"refused": check.refused, "ignored": check.ignored, "mapped": check.mapped}
    for title, notes in notes_by_title.items():
        rows = [(_line(check, note.where), f"{note.path} = {note.value}", note.reason) for note in notes]
        lines += _section(title, format_columns(rows))
    values = [(f"{value.key} = {value.value}", _line(check, value.where)) for value in check.values]
    return "\n".join([*lines, *_section("effective values", format_columns(values))])


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _line(check: "ConfigCheck", where: str) -> str:
    """Return a location without the file name if it is in the checked file."""
    prefix = f"{check.file}:"
    return f"line {where[len(prefix) :]}" if where.startswith(prefix) else where


def _format_checks(checks: Sequence["ConfigCheck"]) -> str:
    """Format a table with one line per file, and the error of each file that does not load."""
    width = max(len(check.file) for check in checks)
    lines = [f"{'file':<{width}}  {'verdict':<8}  mapped  ignored  refused  not trained yet"]
    for check in checks:
        counts = f"{len(check.mapped):>6}  {len(check.ignored):>7}  {len(check.refused):>7}"
        lines.append(f"{check.file:<{width}}  {check.verdict:<8}  {counts}  {len(check.not_trained):>15}")
    faults = [f"  {check.error}" for check in checks if check.error]
    return "\n".join([*lines, *(["", "does not load:", *faults] if faults else [])])
