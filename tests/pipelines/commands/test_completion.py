import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from detloom.pipelines.cli import cli


def complete(*arguments):
    """Return the suggestions for the last word of a command line, as (type, text)."""
    items = ShellComplete(cli, {}, "detloom", "_DETLOOM_COMPLETE").get_completions(list(arguments[:-1]), arguments[-1])
    return [(item.type, item.value) for item in items]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_a_shell_asks_detloom_for_completions(shell):
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert f"_DETLOOM_COMPLETE={shell}_complete" in result.output


def test_names_of_commands_are_completed():
    assert complete("exp") == [("plain", "export"), ("plain", "export-coco"), ("plain", "export-yolo")]


@pytest.mark.parametrize(
    "arguments",
    [("train",), ("config", "show"), ("restore-report", "--config"), ("validate", "--config")],
    ids=" ".join,
)
def test_a_configuration_is_completed_by_presets_or_by_files(arguments):
    presets = ["efficientdet_lite0", "efficientdet_lite1", "efficientdet_lite2"]
    found = complete(*arguments, "efficientdet_l")
    assert found[0] == ("file", "efficientdet_l")
    assert [name for kind, name in found if kind == "plain"][:3] == presets


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [(("run",), "file"), (("doctor",), "file"), (("versions",), "dir"), (("ingest", "--input"), "dir")],
    ids=str,
)
def test_paths_are_completed_by_the_shell(arguments, kind):
    assert complete(*arguments, "cel") == [(kind, "cel")]
