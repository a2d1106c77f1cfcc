"""Records of the code that nodes ran: the digests of the modules behind each fingerprint, in a workspace.

With them, `detloom run --explain` names the modules that have changed.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfx.dsl.components.base.base_node import BaseNode

from detloom.components.fingerprints import digests_of
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.tree_diff import leaves


def unpack(value: Any) -> Any:
    """Return a value with the JSON in its texts, at any depth, as trees."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return unpack(json.loads(value))
        except ValueError:
            return value
    if isinstance(value, dict):
        return {key: unpack(each) for key, each in value.items()}
    return [unpack(each) for each in value] if isinstance(value, list) else value


def record_code(folder: Path, nodes: Iterable[BaseNode]) -> None:
    """Write a file for each fingerprint in the parameters of these nodes, unless it exists."""
    for node in nodes:
        for _, value in leaves(unpack(dict(node.exec_properties))):
            digests = digests_of(value) if isinstance(value, str) else None
            file = folder / f"{value}.json"
            if digests is not None and not file.exists():
                folder.mkdir(exist_ok=True)
                write_text_file(file, json.dumps(digests, indent=1, sort_keys=True))


def find_changed_modules(folder: Path, before: str, now: str) -> list[str] | None:
    """Return the names of the modules and data files that differ between two fingerprints, the second of this process.

    Returns:
        None if the earlier fingerprint has no readable record.
    """
    new = digests_of(now)
    try:
        old = json.loads((folder / f"{Path(before).name}.json").read_text(encoding="utf-8"))
        changed = {name for name, _ in old.items() ^ new.items()} if new is not None else None
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return None if changed is None else sorted(changed)
