"""Find folders of spans that are newer than the one that is read, because they have no files yet."""

import os
import re
from glob import glob

from detloom.components.storage.storage import is_address

_PLACEHOLDER = re.compile(r"\{(?:SPAN|VERSION|YYYY|MM|DD)(?::\d+)?\}")
_SPAN = re.compile(r"\{(?:SPAN|YYYY|MM|DD)")


def describe_skipped_spans(path: str) -> str:
    """Return a sentence that names the folders without files that are newer than the newest one with files.

    It is empty for a path without placeholders such as {SPAN}, and in a bucket, which has no empty folders.
    """
    parts = path.rstrip("/").split("/")
    depth = max((number for number, part in enumerate(parts, 1) if _SPAN.search(part)), default=0)
    if is_address(path) or not depth:
        return ""
    span, rest = "/".join(parts[:depth]), "/".join(["", *parts[depth:], "*"])
    expression = re.compile("([0-9]+)".join(map(re.escape, _PLACEHOLDER.split(span))))
    found = (expression.fullmatch(folder) for folder in glob(_PLACEHOLDER.sub("*", span)) if os.path.isdir(folder))
    folders = {tuple(map(int, match.groups())): match.string for match in found if match}
    filled = [numbers for numbers, folder in folders.items() if glob(folder + _PLACEHOLDER.sub("*", rest))]
    skipped = sorted(folder for numbers, folder in folders.items() if filled and numbers > max(filled))
    if not skipped:
        return ""
    return (
        f"{', '.join(skipped[-3:])}: newer, but without files, so {folders[max(filled)]} is the newest span that is "
        "read. Write a span into a folder of another name and rename it when it is complete."
    )
