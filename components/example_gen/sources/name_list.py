"""Text files of lines: lists of names, as VOC, KITTI and YOLO keep for their splits, and label files."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.schemas.errors import InputError

_MAX_LIST_BYTES = 256 * 2**20  # some ten million names
_FIRST_BYTES = 4096
_MAX_SAMPLES = 20  # label files, to tell their format
_MAX_OPENED = 200  # of which most may be blank
_LINE = re.compile(r"[^\r\n]+")  # not str.splitlines, which also ends lines at form feeds and U+2028

# More than are taken: an image that no reader lists would be lost without a word.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def count_lines(text: str) -> int:
    """How many `split_lines` would give, without making them."""
    return text.count("\n") + text.count("\r") - text.count("\r\n") + 1


def split_lines(text: str) -> list[str]:
    """Lines as they are counted: ended by LF, CR LF or CR, and by nothing else."""
    return (text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text).split("\n")


def first_fields(folder: DataFolder, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Paths with the fields of their first line that is not blank, of the first twenty files that have one."""
    num_found = 0
    for num_opened, path in enumerate(paths):
        if num_found == _MAX_SAMPLES or num_opened == _MAX_OPENED:
            return
        try:
            with folder.open(path) as file:
                data = file.read(_FIRST_BYTES)
        except (OSError, SourceError):
            continue
        lines = split_lines(data.decode("utf-8-sig", "replace"))
        fields = next((fields for line in lines if (fields := line.split())), [])
        if len(lines) == 1 and len(data) == _FIRST_BYTES:
            del fields[-1:]  # cut off
        if fields:
            num_found += 1
            yield path, fields


def read_names(folder: DataFolder, path: str, split: str) -> Iterator[str]:
    """The lines of a list that are not blank, without the space around them; one at a time, as there may be millions.

    Raises:
        InputError: if the list cannot be read or names nothing; with the lists that lie beside it.
    """
    try:
        text = folder.read_text(path, _MAX_LIST_BYTES)
    except SourceError as error:
        there = list_stems(folder, posixpath.dirname(path))
        raise InputError(
            f"{folder.root}/{path}: the list of split {split!r} cannot be read ({error.detail}); lists there: {there}."
        ) from None
    if not text or text.isspace():
        raise InputError(f"{folder.root}/{path}: the list of split {split!r} is empty; name at least one image in it.")
    return (name for match in _LINE.finditer(text) if (name := match.group().strip()))


def list_stems(folder: DataFolder, lists_dir: str) -> list[str]:
    """Names of the lists in a folder, without .txt."""
    return [posixpath.basename(path)[: -len(".txt")] for path in folder.list_files(lists_dir, (".txt",))]


def find_image(folder: DataFolder, path_without_suffix: str, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> str | None:
    """The first image of that name that is there, its suffix in small or capital letters."""
    paths = (path_without_suffix + suffix for suffix in (*suffixes, *map(str.upper, suffixes)))
    return next((path for path in paths if folder.is_file(path)), None)
