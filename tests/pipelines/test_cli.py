import subprocess
import sys

import pytest
from click.testing import CliRunner

from detloom.pipelines.cli import cli, main

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
