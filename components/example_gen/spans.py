"""Data that arrives over time: which folders an `input_base` with placeholders means, and what changes their content.

An `input_base` may hold `{SPAN}`, `{VERSION}` or `{YYYY}`/`{MM}`/`{DD}` (with a width as in `{SPAN:3}`). TFX resolves
them in patterns of files only, so the base is cut in front of the first of them and the pattern carries the rest.
"""

import hashlib
import re
from collections.abc import Sequence

from tfx.components.example_gen import utils
from tfx.dsl.io import fileio
from tfx.proto import example_gen_pb2, range_config_pb2

from detloom.components.example_gen.data_folder import DataFolder
from detloom.schemas.errors import InputError

ANY_FILE = "/*"  # the data folder's own entries: TFX wants to see a file, and the whole folder is fingerprinted by us
_PLACEHOLDER = re.compile(r"\{(?:SPAN|VERSION)(?::\d+)?\}|\{YYYY\}|\{MM\}|\{DD\}")
_WILD = ("*", "?", "[", "]", "\\")  # have a meaning in a pattern


def split_input_base(input_base: str) -> tuple[str, str]:
    """The literal folder in front of the first placeholder, and the rest ("" where there is none).

    Raises:
        InputError: for a rest that cannot stand in a pattern.
    """
    parts = input_base.rstrip("/").split("/")
    for index, part in enumerate(parts):
        if _PLACEHOLDER.search(part):
            rest = "/".join(parts[index:])
            if any(char in input_base for char in _WILD):
                raise InputError(f"{input_base}: in a path with placeholders none of {' '.join(_WILD)} is allowed.")
            return "/".join(parts[:index]) or "/", rest
    return "/".join(parts) or "/", ""


def file_pattern(rest: str) -> str:
    """What TFX watches, relative to the literal folder."""
    return f"{rest}{ANY_FILE}" if rest else ANY_FILE.removeprefix("/")


def subfolder_of(resolved_pattern: str) -> str:
    """The data folder relative to the literal folder, from a pattern whose placeholders are filled in."""
    return resolved_pattern.removesuffix(ANY_FILE.removeprefix("/")).rstrip("/")


def find_earlier_spans(base: str, pattern: str, before: int, num_spans: int) -> list[str]:
    """Data folders of the newest `num_spans` spans below span `before`, oldest first, each in its latest version.

    Args:
        pattern: with its placeholders.
    """
    numbers = sorted({span for span in _list_spans(base, pattern) if span < before}, reverse=True)
    folders = []
    for span in numbers[:num_spans]:
        split = example_gen_pb2.Input.Split(name="data", pattern=pattern)
        one_span = range_config_pb2.RangeConfig(
            static_range=range_config_pb2.StaticRange(start_span_number=span, end_span_number=span)
        )
        utils.calculate_splits_fingerprint_span_and_version(base, [split], one_span)  # fills in the split's pattern
        folders.append(subfolder_of(split.pattern))
    return folders[::-1]


def find_odd_entries(base: str, pattern: str) -> list[str]:
    """What lies where a span or version is expected and is not numbered, relative to the literal folder; a few."""
    wanted = _expression(base, pattern)
    odd = (path for path in fileio.glob(f"{base}/{_PLACEHOLDER.sub('*', pattern)}") if not wanted.fullmatch(path))
    folders = sorted({subfolder_of(path[len(base) + 1 :].rpartition("/")[0] + ANY_FILE) for path in odd})
    return folders[:5]


def _list_spans(base: str, pattern: str) -> list[int]:
    wanted = _expression(base, pattern)
    spans = []
    for path in fileio.glob(f"{base}/{_PLACEHOLDER.sub('*', pattern)}"):
        match = wanted.fullmatch(path)
        if match is None:
            continue
        found_here = match.groupdict()
        if "SPAN" in found_here:
            spans.append(int(found_here["SPAN"]))
        else:
            spans.append(utils.date_to_span_number(*(int(found_here[part]) for part in ("YYYY", "MM", "DD"))))
    return spans


def _expression(base: str, pattern: str) -> re.Pattern[str]:
    """What a path looks like whose placeholders are filled in with numbers."""
    expression = re.escape(f"{base}/{pattern}").replace(r"\*", "[^/]+")
    for name, found in (
        ("SPAN", r"\\\{SPAN(?::(\d+))?\\\}"),
        ("VERSION", r"\\\{VERSION(?::(\d+))?\\\}"),
        ("YYYY", r"\\\{YYYY\\\}"),
        ("MM", r"\\\{MM\\\}"),
        ("DD", r"\\\{DD\\\}"),
    ):
        expression = re.sub(found, rf"(?P<{name}>[0-9]+)", expression)
    return re.compile(expression)


def fingerprint_folders(base: str, subfolders: Sequence[str]) -> str:
    """A digest of names, sizes and times of all files of the data folders, links followed; contents are not read."""
    digest = hashlib.sha256()
    num_files = 0
    for subfolder in subfolders:
        for file in DataFolder(f"{base}/{subfolder}" if subfolder else base).walk():
            digest.update(f"{subfolder}/{file.path}\0{file.size}\0{file.mtime_ns}\n".encode(errors="surrogateescape"))
            num_files += 1
    return f"files:{num_files},sha256:{digest.hexdigest()}"
