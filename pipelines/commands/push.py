"""Commands `detloom push`, `versions`, `rollback` and `verify`. Imports are late to keep the CLI fast."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import (
    PATH,
    STORED_PATH,
    NumberRange,
    complete_folder,
    copied_model,
    json_option,
)
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import escape, hide_secrets, redact
from detloom.schemas.run_file.push import LOCK_SECONDS, is_remote

if TYPE_CHECKING:
    from detloom.components.pusher.versions import VersionState

_LOCK = click.option(
    "--wait",
    "lock_seconds",
    type=NumberRange(min=0),
    default=LOCK_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for another push into the same folder.",
)
_REASON = click.option("--reason", required=True, metavar="TEXT", help="Reason, for the push record.")
_UNKNOWN = "-"


@command('detloom push runs/cells/model --to /models/cells --reason "first model, checked by hand"')
@click.argument("model_dir", type=STORED_PATH)
@click.option(
    "--to",
    "push_dir",
    required=True,
    metavar="DIR",
    shell_complete=complete_folder,
    help="Push folder, or its address (gs://...).",
)
@click.option("--card", "card_dir", type=PATH, metavar="DIR", help="Folder with a model card.")
@click.option(
    "--keep-versions",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Remove the oldest versions beyond N (2 or more). Default: keep all.",
)
@click.option("--allow-class-change", is_flag=True, help="Replace a model that has other classes.")
@_REASON
@_LOCK
def push(
    model_dir: Path | str,
    push_dir: str,
    card_dir: Path | None,
    keep_versions: int,
    allow_class_change: bool,
    reason: str,
    lock_seconds: float,
) -> None:
    """Push an exported model without an evaluation.

    The push record names the user and the reason. MODEL_DIR is a SavedModel, a Model artifact, or a folder of versions,
    of which the highest is taken. The copy is compared byte by byte, loaded and tested with one image before a server
    can see it. If the served version already is this model, nothing is pushed.
    """
    from detloom.components.pusher.manifest import has_card
    from detloom.components.pusher.manual_push import push_by_hand
    from detloom.pipelines.local.console import format_next, show_log
    from detloom.trainer_module.inference.model_files import find_saved_model

    show_log()
    if not reason.strip():  # before a model in a bucket is copied
        raise InputError("--reason: got an empty text, needed: why this model is pushed.")
    model = find_saved_model(copied_model(model_dir))
    result = push_by_hand(
        model,
        push_dir,
        model_uri=redact(str(model_dir)) if is_remote(str(model_dir)) else str(model.absolute()),
        reason=hide_secrets(reason),
        card_dir=card_dir,
        keep_versions=keep_versions,
        allow_class_change=allow_class_change,
        lock_seconds=lock_seconds,
    )
    if result.is_new:
        click.echo(f"Pushed version {result.version}: {result.address}")
        if card_dir is None and not has_card(model):
            click.echo(
                "It has no model card, from which `detloom predict` and `serve` take their minimum score: they use "
                "0.5. --card FOLDER adds the card of a pipeline run.",
                err=True,
            )
    else:
        click.echo(f"Nothing to do: version {result.version} already is this model ({result.address})")
    click.echo(format_next("detloom", "versions" if is_remote(push_dir) else "serve", redact(push_dir)))


@command("detloom versions /models/cells")
@click.argument("push_dir", metavar="DIR", shell_complete=complete_folder)
@json_option
def versions(push_dir: str, as_json: bool) -> None:
    """List the versions in a push folder.

    The list has push time, user, blessing, AP and state, and marks the served version. Every file is read and compared
    with the manifest of its version.
    """
    from detloom.components.pusher.manual_push import list_states

    states = list_states(push_dir)
    if as_json:
        click.echo(json.dumps([state.to_dict() for state in states], indent=1))
        return
    if not states:
        click.echo(f"{redact(push_dir)}: no versions.")
        return
    from detloom.pipelines.local.console import format_table

    click.echo(format_table([_HEADINGS, *(_row(state) for state in states)]))
    for state in states:
        for problem in (state.problems or ())[:3]:
            click.echo(escape(f"version {state.version}: {problem}"), err=True)


@command('detloom rollback /models/cells --reason "misses small cells since Tuesday"')
@click.argument("push_dir", metavar="DIR", shell_complete=complete_folder)
@click.option("--to", type=click.IntRange(min=0), metavar="VERSION", help="Default: the newest intact one.")
@click.option("--remove-bad", is_flag=True, help="Afterwards delete the version that is served now.")
@_REASON
@_LOCK
def rollback(push_dir: str, to: int | None, remove_bad: bool, reason: str, lock_seconds: float) -> None:
    """Serve an earlier version of a push folder again.

    Servers take the highest number, so the earlier version is copied under a new number, and verified and loaded like
    any push. The default is the newest version that is intact, was never rolled back, and has another model than the
    served one.
    """
    from detloom.components.pusher.manual_push import roll_back_by_hand
    from detloom.pipelines.local.console import format_next, show_log

    show_log()
    result = roll_back_by_hand(
        push_dir, to=to, remove_replaced=remove_bad, reason=hide_secrets(reason), lock_seconds=lock_seconds
    )
    if result.is_new:
        click.echo(f"Version {result.version} replaces {result.previous_version}: {result.address}")
        click.echo("A running `detloom serve` keeps its model until it is restarted.", err=True)
    else:
        click.echo(f"Nothing to do: version {result.version} already is that model ({result.address})")
    click.echo(format_next("detloom", "versions", redact(push_dir)))


@command("detloom verify /models/cells", "detloom verify /models/cells/3 --json")
@click.argument("folder", metavar="DIR", shell_complete=complete_folder)
@json_option
def verify(folder: str, as_json: bool) -> None:
    """Compare pushed files with their manifests.

    DIR is a version or a folder of versions.
    """
    from detloom.components.pusher import manual_push

    wrong = manual_push.verify(folder)
    if as_json:
        rows = [{"version": number, "intact": not problems, "problems": problems} for number, problems in wrong.items()]
        click.echo(json.dumps(rows, indent=1))
    else:
        for number, problems in wrong.items():
            for problem in problems or ("intact",):
                click.echo(escape(f"version {number}: {problem}"))
    if any(wrong.values()):
        sys.exit(ExitCode.FAILED)


_HEADINGS = ("version", "pushed", "by", "action", "blessed", "AP", "files", "")


def _row(state: "VersionState") -> tuple[str, ...]:
    push, value = state.push, state.metric("AP")
    action = str(push.get("action") or _UNKNOWN)
    if push.get("of_version") is not None:
        action += f" to {push['of_version']}"
    files = "no manifest" if state.problems is None else "damaged" if state.problems else "intact"
    return (
        str(state.version),
        redact(str(push.get("time") or _UNKNOWN)),
        redact(str(push.get("by") or _UNKNOWN)),
        redact(action),
        {True: "yes", False: "no", None: "by hand" if push else _UNKNOWN}[state.is_blessed],
        _UNKNOWN if value is None else f"{value:.3f}",
        files,
        "served" if state.is_served else "",
    )
