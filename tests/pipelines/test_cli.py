import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from detloom.pipelines.cli import SECTIONS, cli, main
from detloom.pipelines.command_line.options import LocalPath

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"
HEAVY = {"tensorflow", "keras", "tfx", "apache_beam", "kfp", "kfp_server_api", "grpc", "google.cloud.aiplatform_v1"}


def paths_of(command, path=()):
    """Yield the words of a command and of its subcommands."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths_of(inner, (*path, name))


def find_command(words):
    command = cli
    for word in words:
        command = command.commands[word]
    return command


def examples_of(command):
    """Return the lines of the examples at the end of a command's help, without the continuation of lines."""
    assert command.epilog
    *_, title, text = re.split(r"^(Examples?:)$", command.epilog, flags=re.MULTILINE)
    assert title in ("Example:", "Examples:")
    return text.replace("\\\n", "").strip().splitlines()


def words_of(example):
    """Return the arguments of the detloom command in a line of shell; empty if it has none."""
    lexer = shlex.shlex(example.strip(), posix=True, punctuation_chars="<>|&")
    lexer.whitespace_split = True
    words = list(lexer)
    if words[0] == "eval":  # eval "$(detloom ...)"
        words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
    ends = [number for number, word in enumerate(words) if word in (">", "|", "&&")]
    words = words[: min(ends, default=len(words))]
    return words[1:] if words[0] == "detloom" else []


@pytest.mark.parametrize("path", list(paths_of(cli)), ids=" ".join)
def test_help_ends_with_examples_that_are_valid_command_lines(path):
    output = CliRunner().invoke(cli, [*path, "--help"]).output
    assert f"Usage: {' '.join(('cli', *path))} [" in output
    examples = examples_of(find_command(path))
    shown = output.replace("\\\n", "").splitlines()[-len(examples) :]
    assert [line.split() for line in shown] == [line.split() for line in examples]
    parsed = [words for words in map(words_of, examples) if words]
    assert parsed
    for words in parsed:
        context, rest = cli.make_context("detloom", list(words)), words
        while isinstance(context.command, click.Group):
            name, inner, rest = context.command.resolve_command(context, list(rest))
            context = inner.make_context(name, list(rest), parent=context)
        assert context.command_path.split()[1:][: len(path)] == list(path)


def test_each_command_is_in_one_section_of_the_help():
    listed = [command.name for commands in SECTIONS.values() for command in commands]
    assert sorted(listed) == sorted(set(cli.commands))
    output = CliRunner().invoke(cli, ["--help"]).output
    titles = re.findall(r"^(\w+):$", output, flags=re.MULTILINE)
    assert titles == ["Options", *SECTIONS]


def test_ctrl_c_ends_a_command_with_130(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("detloom.pipelines.commands.presets.preset_rows", interrupt)
    result = CliRunner().invoke(cli, ["presets"])
    assert result.exit_code == 130


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


def test_names_in_a_mistake_do_not_control_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["detloom", "verify", f"{tmp_path}/\x1b[2J\nerror: fake"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().err
    assert "fake" in text
    assert "\x1b" not in text
    assert "\nerror" not in text


def test_importing_the_commands_and_checking_a_configuration_import_nothing_heavy():
    code = (
        "import sys; import detloom.pipelines.cli; from detloom.pipelines.check_config import check_config; "
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
