"""Commands `detloom push`, `versions`, `rollback` and `verify`. Imports are late to keep the CLI fast."""

import contextlib
import json
import sys
from collections.abc import Iterator
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
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.push import LOCK_SECONDS, REMOTE_SCHEMES, is_remote

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
    from detloom.components.pusher.atomic_push import push_model
    from detloom.components.pusher.manifest import Origin
    from detloom.pipelines.local.console import format_next, show_log
    from detloom.trainer_module.export.predict import find_saved_model

    show_log()
    if not reason.strip():
        raise InputError("--reason: got an empty text, needed: why this model is pushed.")
    model = find_saved_model(copied_model(model_dir))
    model_uri = redact(str(model_dir)) if is_remote(str(model_dir)) else str(model.absolute())
    if card_dir is not None and not card_dir.is_dir():
        raise InputError(f"{card_dir}: no such folder; give one with model_card.md, .html or .json.")
    with _os_errors_reported(push_dir):
        result = push_model(
            model,
            _address(push_dir),
            origin=Origin(model_uri=model_uri, reason=f"by hand: {reason.strip()}"),
            card_dir=card_dir,
            keep_versions=keep_versions,
            allow_class_change=allow_class_change,
            lock_seconds=lock_seconds,
        )
    if result.is_new:
        click.echo(f"Pushed version {result.version}: {result.address}")
        if card_dir is None:
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
    from detloom.components.pusher.versions import describe_versions, open_destination

    with _os_errors_reported(push_dir, "cannot be read"):
        destination = open_destination(_existing(push_dir))
        states = describe_versions(destination)
        if not states and is_remote(push_dir) and not destination.names():  # storage has no empty folders
            raise InputError(f"{redact(push_dir)}: no such folder or bucket.")
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
            click.echo(f"version {state.version}: {problem}", err=True)


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
    from detloom.components.pusher.atomic_push import roll_back
    from detloom.pipelines.local.console import format_next, show_log

    show_log()
    address = _existing(push_dir)
    with _os_errors_reported(push_dir):
        result = roll_back(address, reason=reason, to=to, remove_replaced=remove_bad, lock_seconds=lock_seconds)
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
    from detloom.components.pusher.destination import version_numbers
    from detloom.components.pusher.versions import open_destination, verify_version

    address = _existing(folder).rstrip("/") or "/"
    with _os_errors_reported(folder, "cannot be read"):
        destination = open_destination(address)
        numbers = destination.versions()
        if not numbers:
            parent, _, name = str(address if is_remote(address) else Path(address).resolve()).rpartition("/")
            numbers = version_numbers([name])
            if not numbers:
                raise InputError(f"{redact(folder)}: neither a version nor a folder of versions.")
            destination = open_destination(parent or "/")
        wrong = {number: verify_version(destination, number) for number in numbers}
    if as_json:
        rows = [{"version": number, "intact": not problems, "problems": problems} for number, problems in wrong.items()]
        click.echo(json.dumps(rows, indent=1))
    else:
        for number, problems in wrong.items():
            for problem in problems or ("intact",):
                click.echo(f"version {number}: {problem}")
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


@contextlib.contextmanager
def _os_errors_reported(push_dir: str, what: str = "nothing was changed") -> Iterator[None]:
    """Convert an OSError, such as a full disk or an unreachable storage, to an InputError."""
    try:
        yield
    except OSError as error:
        reason = redact(error.strerror or str(error))
        raise InputError(f"{redact(push_dir)}: {what} ({reason}); fix this and try again.") from None


def _address(text: str) -> str:
    """Check that the text is not empty, which would be the current folder, and that its scheme is supported."""
    if not text:
        raise InputError("DIR: got an empty text, allowed: a folder or its address.")
    if "://" in text and not is_remote(text):
        raise InputError(f"{redact(text)}: allowed: a folder, or an address of {', '.join(REMOTE_SCHEMES)}.")
    return text


def _existing(text: str) -> str:
    """Check that the folder exists, or that its address is supported."""
    if "://" not in _address(text) and not Path(text).is_dir():
        raise InputError(f"{redact(text)}: no such folder.")
    return text
