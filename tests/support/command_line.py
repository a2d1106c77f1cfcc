"""Run `detloom` in this process."""

from click.testing import CliRunner, Result

from detloom.pipelines.cli import cli
from detloom.schemas.errors import InputError


def detloom_command(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def sentence(result: Result) -> str:
    """Return the message of a user's mistake."""
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)
