"""Fenced code blocks of Markdown pages."""

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from detloom.pipelines.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("", "sh", "bash", "console")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_OPERATORS = re.compile(r"[|&;<>()]+")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: line number of the opening fence, from 1.
    """

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages; "" is a block that names none."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"], match["text"])
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def detloom_commands(block: Block) -> list[list[str]]:
    """Return the arguments of each `detloom` command in a block of shell commands.

    A line may start with a prompt, variables and the folder of the program. Arguments end at a pipe or a redirection.
    """
    commands = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if not re.match(r"(\$ )?(\w+=\S+ )*(\S*/)?detloom( |$)", line):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        words = words[next(i for i, word in enumerate(words) if word.split("/")[-1] == "detloom") + 1 :]
        end = next((i for i, word in enumerate(words) if _OPERATORS.fullmatch(word)), len(words))
        commands.append(words[:end])
    return commands


def parse_command(arguments: list[str], monkeypatch) -> None:
    """Parse the arguments as `detloom` does, without looking at files and without running the command.

    Raises:
        click.UsageError: for an unknown command, an unknown option or a wrong value.
    """
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: self.coerce_path_result(value))
    command, name, rest = cli, "detloom", arguments
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, *rest = rest
        if name not in command.commands:
            raise click.UsageError(f"no such command: {' '.join(arguments)}")
        command = command.commands[name]
    with contextlib.suppress(click.exceptions.Exit):  # --help, --version
        command.make_context(name, rest)
