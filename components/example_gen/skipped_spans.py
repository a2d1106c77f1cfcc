"""Find folders of spans that are newer than the one that is read, because they have no files yet."""

import os
import re
from glob import glob

from detloom.components.storage.storage import is_address

PLACEHOLDER = re.compile(r"\{(?:SPAN|VERSION|YYYY|MM|DD)(?::\d+)?\}")
_ORDER = ("SPAN", "YYYY", "MM", "DD", "VERSION")  # of the numbers that decide which folder is newer
_SPAN = re.compile(r"\{(?:SPAN|YYYY|MM|DD)")


def numbers_of(path: str, folder: str) -> tuple[int, ...]:
    """Return the numbers of a folder that matches a path with placeholders; the newer folder has the larger tuple.

    It is empty for a folder that does not match.
    """
    match = re.fullmatch("([0-9]+)".join(map(re.escape, PLACEHOLDER.split(path))), folder)
    if match is None:
        return ()
    names = [placeholder.strip("{}").partition(":")[0] for placeholder in PLACEHOLDER.findall(path)]
    numbers = dict(zip(names, map(int, match.groups()), strict=True))
    return tuple(numbers[name] for name in _ORDER if name in numbers)


def describe_skipped_spans(path: str) -> str:
    """Return a sentence that names the folders without files that are newer than the newest one with files.

    It is empty for a path without placeholders such as {SPAN}, and in a bucket, which has no empty folders.
    """
    parts = path.rstrip("/").split("/")
    depth = max((number for number, part in enumerate(parts, 1) if _SPAN.search(part)), default=0)
    if is_address(path) or not depth:
        return ""
    span, rest = "/".join(parts[:depth]), "/".join(["", *parts[depth:], "*"])
    found = {numbers_of(span, folder): folder for folder in glob(PLACEHOLDER.sub("*", span)) if os.path.isdir(folder)}
    folders = {numbers: folder for numbers, folder in found.items() if numbers}
    filled = [numbers for numbers, folder in folders.items() if glob(folder + PLACEHOLDER.sub("*", rest))]
    skipped = sorted(folder for numbers, folder in folders.items() if filled and numbers > max(filled))
    if not skipped:
        return ""
    return (
        f"{', '.join(skipped[-3:])}: newer, but without files, so {folders[max(filled)]} is the newest span that is "
        "read. Write a span into a folder of another name and rename it when it is complete."
    )
