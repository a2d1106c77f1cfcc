"""`detloom config`, `detloom presets`, `detloom doctor`: looking before running. Imports neither TensorFlow nor TFX."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from detloom.schemas.errors import InputError
from detloom.schemas.overrides import Located, parse_set, read_overrides

_Command = TypeVar("_Command", bound=Callable[..., Any])


def override_options(command: _Command) -> _Command:
    """Adds --set and --hparams; `read_override_options` turns them into layers."""
    command = click.option(
        "--hparams",
        default="",
        metavar="LIST|FILE",
        help="Several settings: KEY=VALUE,KEY=VALUE or a YAML file of overrides. --set goes over them.",
    )(command)
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Replace one setting, such as train.batch_size=8; may be given several times.",
    )(command)


def read_override_options(settings: Sequence[str], hparams: str) -> list[Located]:
    return [*([read_overrides(hparams)] if hparams else []), *(parse_set(text) for text in settings)]


_CONFIG_OVERRIDE = click.option(
    "--config-override", default="", metavar="TEXT", help="Text in pipeline.config's format, merged over the file."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group()
def config() -> None:
    """Check, show, compare and convert configurations.

    A configuration is a run file (.yaml), a pipeline.config of the Object Detection API, the config.json of an earlier
    training, or the name of a preset.
    """


@config.command()
@click.argument("files", nargs=-1, required=True)
@override_options
@_CONFIG_OVERRIDE
@_JSON
@click.option("--full", is_flag=True, help="With several files: all about each, not one line.")
def check(
    files: tuple[str, ...], settings: tuple[str, ...], hparams: str, config_override: str, as_json: bool, full: bool
) -> None:
    """Say what FILES mean here: each field mapped, ignored (with the reason) or refused, and the values in effect.

    Exit code 1 if a file does not load.
    """
    from detloom.pipelines.config_check import check_config, format_check, format_checks
    from detloom.schemas.typed_dict import to_dict

    overrides = read_override_options(settings, hparams)
    checks = [check_config(file, overrides, config_override) for file in files]
    if as_json:
        click.echo(json.dumps([to_dict(each) for each in checks], indent=1, ensure_ascii=False))
    elif full or len(checks) == 1:
        click.echo("\n\n".join(format_check(each) for each in checks))
    else:
        click.echo(format_checks(checks))
    sys.exit(any(each.error for each in checks))


@config.command()
@click.argument("source")
@override_options
@_CONFIG_OVERRIDE
@_JSON
def show(source: str, settings: tuple[str, ...], hparams: str, config_override: str, as_json: bool) -> None:
    """Print all values of SOURCE that would be used, defaults filled in, as YAML that a run file takes."""
    import yaml

    from detloom.pipelines.config_check import read_effective

    plain = read_effective(source, read_override_options(settings, hparams), config_override)
    if as_json:
        click.echo(json.dumps(plain, indent=1, ensure_ascii=False))
    else:
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120), nl=False)


@config.command()
@click.argument("one")
@click.argument("other")
@override_options
@_JSON
def diff(one: str, other: str, settings: tuple[str, ...], hparams: str, as_json: bool) -> None:
    """Print the values in which ONE and OTHER differ; overrides go over OTHER.

    Exit code 0 if there are none, 1 if there are, 2 if one of the two does not load.
    """
    from detloom.pipelines.config_check import diff_configs, is_run_file, read_config, read_effective
    from detloom.pipelines.console import format_columns
    from detloom.schemas.typed_dict import to_dict

    try:
        overrides = read_override_options(settings, hparams)
        if is_run_file(one) and is_run_file(other):
            rows = diff_configs(read_effective(one), read_effective(other, overrides))
        else:  # of a run file only the detector's part can be compared with a configuration
            rows = diff_configs(to_dict(read_config(one)), to_dict(read_config(other, overrides)))
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps([dict(zip(("key", "one", "other"), row, strict=True)) for row in rows], indent=1))
    elif rows:
        click.echo("\n".join(format_columns([(key, left, "->", right) for key, left, right in rows])))
    else:
        click.echo("no difference")
    sys.exit(bool(rows))


@config.command("to-text")
@click.argument("source")
@override_options
@_CONFIG_OVERRIDE
def to_text(source: str, settings: tuple[str, ...], hparams: str, config_override: str) -> None:
    """Write SOURCE as a pipeline.config of the Object Detection API.

    What that format cannot say stands in an extension, which the Object Detection API refuses instead of ignoring it.
    """
    from detloom.pipelines.config_check import read_config
    from detloom.schemas.pipeline_config import format_pipeline_config

    parsed = read_config(source, read_override_options(settings, hparams), config_override)
    click.echo(format_pipeline_config(parsed), nl=False)


@config.command()
def schema() -> None:
    """Print the JSON Schema of the run file, for editors."""
    from detloom.schemas.json_schema import run_file_schema

    click.echo(json.dumps(run_file_schema(), indent=1, ensure_ascii=False))


@click.command()
@_JSON
def presets(as_json: bool) -> None:
    """List the detectors that a run file can name, with parameters, input size and published AP on COCO."""
    from detloom.pipelines.preset_table import format_presets, preset_rows

    if as_json:
        click.echo(json.dumps(preset_rows(), indent=1))
    else:
        click.echo(format_presets())


@click.command()
@click.argument("run_file", required=False, type=click.Path(path_type=Path))
@_JSON
def doctor(run_file: Path | None, as_json: bool) -> None:
    """Look for what would stop a run: packages, Python, glibc, disk, memory, devices, and RUN_FILE's folders.

    Exit code 1 if something would.
    """
    from detloom.pipelines.doctor import examine, format_findings
    from detloom.schemas.read_run_file import read_run_file
    from detloom.schemas.typed_dict import to_dict

    findings = examine(read_run_file(run_file) if run_file else None)
    if as_json:
        click.echo(json.dumps([to_dict(finding) for finding in findings], indent=1))
    else:
        click.echo(format_findings(findings))
    sys.exit(any(finding.status == "error" for finding in findings))
