"""Lists of names, one a line, as VOC, KITTI and YOLO keep for their splits."""

import posixpath
from collections.abc import Sequence

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.schemas.errors import InputError

_MAX_LIST_BYTES = 256 * 2**20  # some ten million names

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def read_names(folder: DataFolder, path: str, split: str) -> list[str]:
    """The lines of a list that are not blank, without the space around them.

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
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        raise InputError(f"{folder.root}/{path}: the list of split {split!r} is empty; name at least one image in it.")
    return names


def list_stems(folder: DataFolder, lists_dir: str) -> list[str]:
    """Names of the lists in a folder, without .txt."""
    return [posixpath.basename(path)[: -len(".txt")] for path in folder.list_files(lists_dir, (".txt",))]


def find_image(folder: DataFolder, path_without_suffix: str, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> str | None:
    """The first image of that name that is there, its suffix in small or capital letters."""
    paths = (path_without_suffix + suffix for suffix in (*suffixes, *map(str.upper, suffixes)))
    return next((path for path in paths if folder.is_file(path)), None)
