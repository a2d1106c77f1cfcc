import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from detloom.pipelines.cli import cli, main
from detloom.pipelines.commands.options import LocalPath

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"
HEAVY = {"tensorflow", "keras", "tfx", "apache_beam", "kfp", "kfp_server_api", "grpc", "google.cloud.aiplatform_v1"}


def paths_of(command, path=()):
    """Yield the words of a command and of its subcommands."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths_of(inner, (*path, name))


@pytest.mark.parametrize("command", list(paths_of(cli)), ids=" ".join)
def test_every_command_has_help(command):
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Usage: {' '.join(('cli', *command))} [" in result.output


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["run", "none.yaml"], "none.yaml"),
        (["config", "show", PRESET, "--set", "train.bach_size=3"], "batch_size"),
        (["ingest", "--input", "nowhere", "--output", "out"], "nowhere"),
        (["predict", "image.png", "--model", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(arguments, name, tmp_path, monkeypatch, capsys):
    (tmp_path / "image.png").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["detloom", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert name in line


def test_importing_the_commands_and_checking_a_configuration_import_nothing_heavy():
    code = (
        "import sys; import detloom.pipelines.cli; from detloom.pipelines.commands.config_check import check_config; "
        f"assert check_config({PRESET!r}).verdict == 'loads'; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def parameters_of(command):
    """Yield the parameters of a command and of its subcommands."""
    yield from command.params
    for inner in getattr(command, "commands", {}).values():
        yield from parameters_of(inner)


def test_paths_of_all_commands_refuse_addresses():
    paths = [each for each in parameters_of(cli) if isinstance(each.type, click.Path)]
    assert len(paths) > 40
    assert all(isinstance(each.type, LocalPath) for each in paths)


def test_address_in_place_of_a_local_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["train", PRESET, "--out", "gs://ann:pw@bucket/run"])
    assert result.exit_code == 2
    assert "'--out': got the address 'gs://(hidden)@bucket/run', allowed: a path on this machine." in result.output
    assert list(tmp_path.iterdir()) == []
