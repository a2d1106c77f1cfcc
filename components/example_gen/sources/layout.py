"""Recognize common layouts of data sets: split names, image folders, lists of names, and label files of lines."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources.image_groups import MAX_OBJECTS_PER_IMAGE
from detloom.components.example_gen.sources.source_record import MAX_ANNOTATION_BYTES, Chunk
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError

SAMPLE = 20  # images that are searched to choose between folders
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
_LABEL_DIRS = ("annotations", "annotation", "labels")  # these name no split, but the folder above may
_WORD = re.compile(r"[a-z]+")
_MAX_LIST_BYTES = 256 * 2**20  # about ten million names
_FIRST_BYTES = 4096
_HEAD_BYTES = 64 * 1024
_MAX_SAMPLES = 20  # label files that are read to detect their format
_MAX_OPENED = 200  # files that are opened for it; most may be blank
_LINE = re.compile(r"[^\r\n]+")  # unlike str.splitlines, which also splits at form feeds and U+2028
# Includes unsupported formats: an image that no reader lists would be lost silently.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def find_split_word(name: str) -> str:
    """Return "train", "val" or "test" for the last word in the name that denotes a split, else ""."""
    found = [_SPLIT_WORDS[word] for word in _WORD.findall(name.lower()) if word in _SPLIT_WORDS]
    return found[-1] if found else ""


def name_splits(sources: Sequence[str]) -> dict[str, str]:
    """Return source by split, named by the split word in the file's name or its folder's, else by the file's stem.

    A single source without such a word is not a split. Sources with equal names are named by their paths.
    """
    if len(sources) == 1 and not _find_word_in_path(sources[0]):
        return {}
    return name_sources(sources, [_find_word_in_path(source) or _stem(source) for source in sources])


def name_sources(sources: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return source by split, named by `names` made valid; sources with equal names are named by their paths."""
    names = [_make_split_name(name) for name in names]
    num_sources = Counter(names)
    splits: dict[str, str] = {}
    for name, source in zip(names, sources, strict=True):
        if num_sources[name] > 1:
            name = _make_split_name(posixpath.splitext(source)[0])
        while name in splits:
            name = f"{name[:60]}_{len(splits)}"
        splits[name] = source
    return splits


def find_split_folders(folder: DataFolder, suffixes: Sequence[str]) -> dict[str, str]:
    """Return the top-level folders with names of splits that contain files with these suffixes, by split."""
    return name_splits(
        [
            part
            for part in folder.list_folders()
            if find_split_word(part) and any(True for _ in folder.iter_files(part, suffixes))
        ]
    )


def choose_images_dir(folder: DataFolder, candidates: Iterable[str], names: Sequence[str], default: str) -> str:
    """Return the first folder with the largest number of the named images; `default` if none has any."""
    best, most = default, 0
    for candidate in dict.fromkeys(candidates):
        num_found = sum(folder.is_file(posixpath.join(candidate, name)) for name in names[:SAMPLE])
        if num_found > most:
            best, most = candidate, num_found
        if names and most == len(names[:SAMPLE]):
            break
    return best


def _find_word_in_path(path: str) -> str:
    """Return the split word of the file's name, else its folder's: train for train/labels/detections.csv."""
    parent = posixpath.dirname(path)
    if posixpath.basename(parent) in _LABEL_DIRS:
        parent = posixpath.dirname(parent)
    return find_split_word(_stem(path)) or find_split_word(posixpath.basename(parent))


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def _make_split_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:63] or "all"


def split_lines(text: str) -> list[str]:
    """Split at LF, CR LF and CR only."""
    return _with_line_feeds(text).split("\n")


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def list_file_chunks(folder: DataFolder, split: str, paths: Sequence[str], description: str) -> Iterator[Chunk]:
    """Yield one chunk for each annotation file.

    Raises:
        InputError: if a file cannot be read; or if there is none, with the description of what was looked for.
    """
    if not paths:
        of_split = f" for the split {split!r}" if split else ""
        raise InputError(f"{folder.root}: no labels found{of_split}; looked for {description}.")
    for path in paths:
        with folder.refuse(path):
            folder.open(path).close()
        yield Chunk(split, path)


def read_label_lines(folder: DataFolder, chunk: Chunk, path: str, key: str) -> list[tuple[str, str]] | Reject:
    """Return place and text of each non-blank line of an image's label file, or the reject of its record."""
    try:
        text = _with_line_feeds(folder.read_text(path, MAX_ANNOTATION_BYTES)).removesuffix("\n")
    except SourceError as error:
        return chunk.reject_record(error.reason, key, error.detail, file=path)
    num_lines = text.count("\n") + 1
    if num_lines > MAX_OBJECTS_PER_IMAGE:
        detail = f"more than {MAX_OBJECTS_PER_IMAGE} lines of labels"
        return chunk.reject_record(Reason.TOO_MANY_BOXES, key, detail, file=path, num_boxes=num_lines)
    return [(f"line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def read_head(folder: DataFolder, path: str) -> bytes:
    """Return the first 64 KiB of a file without byte order mark and spaces before them; b"" if it cannot be read."""
    try:
        with folder.open(path) as file:
            return file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    except (OSError, SourceError):
        return b""


def first_fields(folder: DataFolder, paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield path and fields of the first non-blank line, for the first twenty files that have one."""
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
            del fields[-1:]  # may be truncated
        if fields:
            num_found += 1
            yield path, fields


def read_names(folder: DataFolder, path: str, split: str) -> Iterator[str]:
    """Yield the non-blank lines of a list, stripped; one at a time, because existing may be millions.

    Raises:
        InputError: if the list is unreadable or empty; the message names the lists beside it.
    """
    try:
        text = folder.read_text(path, _MAX_LIST_BYTES)
    except SourceError as error:
        existing = list_stems(folder, posixpath.dirname(path))
        raise InputError(
            f"{folder.root}/{path}: the list of split {split!r} cannot be read ({error.detail}); "
            f"existing lists: {existing}."
        ) from None
    if not text or text.isspace():
        raise InputError(f"{folder.root}/{path}: the list of split {split!r} is empty; name at least one image in it.")
    return (name for match in _LINE.finditer(text) if (name := match.group().strip()))


def list_stems(folder: DataFolder, lists_dir: str) -> list[str]:
    """Return the names of the lists in a folder, without .txt."""
    return [posixpath.basename(path)[: -len(".txt")] for path in folder.list_files(lists_dir, (".txt",))]


def find_image(folder: DataFolder, path_without_suffix: str, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> str | None:
    """Return the first existing image with this path, its suffix in lower or upper case."""
    paths = (path_without_suffix + suffix for suffix in (*suffixes, *map(str.upper, suffixes)))
    return next((path for path in paths if folder.is_file(path)), None)
