import ast
import re
from pathlib import Path

import pytest

from detloom.pipelines.cli import cli
from detloom.pipelines.command_line.command import end_of_help
from detloom.pipelines.command_line.exit_codes import OF_COMMANDS
from detloom.pipelines.local.retries import RunInterruptedError
from detloom.schemas.errors import ExitCode, InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.runtime.preemption import Preempted

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/command_line.md"


def test_every_exit_code_is_documented():
    table = PAGE.read_text(encoding="utf-8").partition("## Exit codes\n")[2]
    assert re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE) == [str(int(code)) for code in ExitCode]


def test_documented_commands_with_json_are_those_that_have_the_option():
    def commands_with_json(command, path=()):
        if any("--json" in parameter.opts and parameter.is_flag for parameter in command.params):
            yield " ".join(path)
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands_with_json(inner, (*path, name))

    text = (
        (ROOT / "docs/command_line.md").read_text(encoding="utf-8").partition("## JSON\n")[2].partition("Only the")[0]
    )
    documented = re.findall(r"`([a-z -]+)`", text.replace("`--json`", ""))
    assert sorted(documented) == sorted(commands_with_json(cli))


def test_exit_codes_are_documented_of_existing_commands():
    for words in OF_COMMANDS:
        command = cli
        for word in words.split():
            command = command.commands[word]
        assert "Exit codes:" in command.epilog


@pytest.mark.parametrize("file", sorted((ROOT / "pipelines/commands").glob("*.py")), ids=lambda file: file.stem)
def test_no_command_ends_with_a_number_of_its_own(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "exit"):
            numbers = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            assert not [each for each in numbers if type(each) is int and each not in (0, 128)], ast.unparse(node)


def test_errors_know_the_exit_code_of_their_command():
    assert InputError("x").exit_code == 1
    assert FolderBusyError("x").exit_code == 75
    assert RunInterruptedError("Trainer", Preempted(2, 40, "run")).exit_code == 130
    assert RunInterruptedError("Trainer", Preempted(15, 40, "run")).exit_code == 143


def test_help_shows_the_exit_codes_of_the_command():
    text = end_of_help("verify", "detloom verify models")
    assert "\n  1    a file is missing, changed" in text
    assert text.endswith("Example:\n  detloom verify models")
