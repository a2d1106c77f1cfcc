"""Push, list, verify and roll back by hand: what the commands do with the folder or address that a person gave.

Every problem, such as a full disk or an unreachable storage, is an InputError.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from detloom.components.pusher.destination import Destination
from detloom.components.pusher.manifest import Origin
from detloom.components.pusher.push import PushResult, push_model, roll_back
from detloom.components.pusher.versions import VersionState, describe_versions, open_destination, verify_version
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.model_card import CARD_JSON
from detloom.schemas.run_file.push import is_remote


def push_by_hand(
    model_dir: Path,
    push_dir: str,
    *,
    model_uri: str,
    reason: str,
    card_dir: Path | None,
    keep_versions: int,
    allow_class_change: bool,
    lock_seconds: float,
) -> PushResult:
    """Push a SavedModel without an evaluation; the push record names the user and the reason."""
    if card_dir is not None and not card_dir.is_dir():
        raise InputError(f"{card_dir}: no such folder; give one with model_card.md, .html or .json.")
    with _os_errors_reported(push_dir, "nothing was changed"):
        return push_model(
            model_dir,
            _checked(push_dir),
            origin=Origin(
                model_uri=model_uri,
                reason=f"by hand: {reason.strip()}",
                metrics=_metrics_of_card(card_dir) if card_dir else {},
            ),
            card_dir=card_dir,
            keep_versions=keep_versions,
            allow_class_change="any" if allow_class_change else "none",
            lock_seconds=lock_seconds,
        )


def _metrics_of_card(card_dir: Path) -> dict[str, float]:
    """Return AP and AP50 of a model card; empty without an evaluation in it."""
    try:
        metrics = json.loads((card_dir / CARD_JSON).read_bytes())["evaluation"]["metrics"]
        return {name: float(metrics[name]["value"]) for name in ("AP", "AP50")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # no card, or not one of this format
        return {}


def roll_back_by_hand(
    push_dir: str, *, to: int | None, remove_replaced: bool, reason: str, lock_seconds: float
) -> PushResult:
    """Serve an earlier version of an existing push folder again."""
    address = _existing(push_dir)
    with _os_errors_reported(push_dir, "nothing was changed"):
        return roll_back(address, reason=reason, to=to, remove_replaced=remove_replaced, lock_seconds=lock_seconds)


def list_states(push_dir: str) -> list[VersionState]:
    """Return the state of each version in an existing push folder."""
    with _os_errors_reported(push_dir, "cannot be read"):
        destination = open_destination(_existing(push_dir))
        states = describe_versions(destination)
        if not states and is_remote(push_dir) and not destination.names():  # storage has no empty folders
            raise InputError(f"{redact(push_dir)}: no such folder or bucket.")
    return states


def verify(address: str) -> dict[int, list[str]]:
    """Return the problems of each version at the address of a version or of a folder of versions."""
    with _os_errors_reported(address, "cannot be read"):
        destination, numbers = _find_versions(_existing(address).rstrip("/") or "/")
        if not numbers:
            raise InputError(f"{redact(address)}: neither a version nor a folder of versions.")
        return {number: verify_version(destination, number) for number in numbers}


def _find_versions(address: str) -> tuple[Destination, list[int]]:
    destination = open_destination(address)
    if numbers := destination.versions():
        return destination, numbers
    parent, _, name = (address if is_remote(address) else str(Path(address).resolve())).rpartition("/")
    return open_destination(parent or "/"), parse_versions([name])


@contextlib.contextmanager
def _os_errors_reported(push_dir: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = redact(error.strerror or str(error))
        raise InputError(f"{redact(push_dir)}: {what} ({reason}); fix this and try again.") from None


def _checked(text: str) -> str:
    """Check that the text is not empty, which would be the current folder, and that its scheme is supported."""
    if not text:
        raise InputError("DIR: got an empty text, allowed: a folder or its address.")
    return text


def _existing(text: str) -> str:
    """Check that the folder exists, or that its address is supported."""
    if "://" not in _checked(text) and not Path(text).is_dir():
        raise InputError(f"{redact(text)}: no such folder.")
    return text
