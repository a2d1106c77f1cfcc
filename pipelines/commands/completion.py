"""`detloom completion`: print the script with which a shell completes commands, options, presets and paths."""

import click
from click.shell_completion import get_completion_class

from detloom.pipelines.command_line.command import command

PROGRAM = "detloom"
VARIABLE = "_DETLOOM_COMPLETE"  # set by the script when it asks this program for completions; the name is click's
_SHELLS = ("bash", "zsh", "fish")


@command(
    'eval "$(detloom completion bash)"     # in this shell; put the line into ~/.bashrc for all',
    "detloom completion fish > ~/.config/fish/completions/detloom.fish",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script for completion with Tab.

    `detloom` must be on the PATH. The script completes commands, options, names of presets, files and folders.
    """
    build = get_completion_class(shell)
    assert build is not None
    click.echo(build(context.find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)
