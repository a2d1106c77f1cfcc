"""How data sets are usually laid out: words for splits in names, and where the images lie."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from detloom.components.example_gen.data_folder import DataFolder

SAMPLE = 20  # images looked for, to tell which of several folders is theirs
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
_LABEL_DIRS = ("annotations", "annotation", "labels")  # name no split, the folder above them may
_WORD = re.compile(r"[a-z]+")


def find_split_word(name: str) -> str:
    """ "train", "val" or "test" where the last word for a split in the name says so, else ""."""
    found = [_SPLIT_WORDS[word] for word in _WORD.findall(name.lower()) if word in _SPLIT_WORDS]
    return found[-1] if found else ""


def name_splits(sources: Sequence[str]) -> dict[str, str]:
    """Source by split: the word for it in the file's name, or its folder's, else the file's stem.

    A single source without such a word is no split. Of several of one name all go by their path.
    """
    if len(sources) == 1 and not _find_word_in_path(sources[0]):
        return {}
    return name_sources(sources, [_find_word_in_path(source) or _stem(source) for source in sources])


def name_sources(sources: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Source by split, called by `names` as far as a split may be; of several of one name all go by their path."""
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
    """Folders at the top that are called like splits and hold files of that kind, by split."""
    wanted = tuple(suffixes)
    return name_splits(
        [
            part
            for part in folder.list_folders()
            if find_split_word(part) and any(file.path.lower().endswith(wanted) for file in folder.walk(part))
        ]
    )


def choose_images_dir(folder: DataFolder, candidates: Iterable[str], names: Sequence[str], default: str) -> str:
    """The first folder that holds most of the images named; `default` where none holds any."""
    best, most = default, 0
    for candidate in dict.fromkeys(candidates):
        num_found = sum(folder.is_file(posixpath.join(candidate, name)) for name in names[:SAMPLE])
        if num_found > most:
            best, most = candidate, num_found
        if names and most == len(names[:SAMPLE]):
            break
    return best


def _find_word_in_path(path: str) -> str:
    """In the file's name, else its folder's; in train/labels/detections.csv that is train."""
    parent = posixpath.dirname(path)
    if posixpath.basename(parent) in _LABEL_DIRS:
        parent = posixpath.dirname(parent)
    return find_split_word(_stem(path)) or find_split_word(posixpath.basename(parent))


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def _make_split_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:63] or "all"
