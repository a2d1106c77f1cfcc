"""Find examples: in a folder that `detloom ingest` or ExampleGen wrote, or by patterns of TFRecord shards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detloom.components.example_gen.exported_folder import SPLIT_PREFIX
from detloom.components.record_files import list_shards
from detloom.components.storage.storage import is_address
from detloom.pipelines.commands.options import copied
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.trainer_module.training.follow_checkpoints import EvalSet

# names of evaluation splits in common data sets, in order of preference
_EVAL_SPLITS = ("eval", "val", "valid", "validation")


@dataclass(frozen=True)
class Examples:
    """Shards (or shard patterns) of two splits, and the label map they were written with."""

    train_files: tuple[str, ...]
    eval_files: tuple[str, ...]
    label_map_file: Path


def find_examples(folder: Path, train_split: str = "train", eval_split: str = "") -> Examples:
    """Find the shards of the training split and the evaluation split.

    Args:
        eval_split: defaults to the first split named eval, val, valid or validation.

    Raises:
        InputError: if the folder or a split does not exist.
    """
    return Examples(
        list_split(folder, train_split), list_split(folder, eval_split or _eval_split(folder)), folder / LABEL_MAP_FILE
    )


def list_split(folder: Path, split: str) -> tuple[str, ...]:
    """Return the shards of a split.

    Raises:
        InputError: if the folder or the split does not exist.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: this folder does not exist; use a folder that detloom ingest wrote.")
    files = tuple(list_shards(folder / f"{SPLIT_PREFIX}{split}"))
    if not files:
        there = ", ".join(_list_splits(folder))
        if not there:
            raise InputError(
                f"{folder}: no folder {SPLIT_PREFIX}{split}; `detloom ingest` makes such folders from labelled images "
                "or TFRecord files."
            )
        raise InputError(f"{folder}: got the split {split!r}, allowed: {there}.")
    return files


def parse_eval_set(text: str) -> "EvalSet":
    """Parse an evaluation set: `[NAME=]` and a split's folder, a folder of splits (its eval split), or a pattern.

    Raises:
        InputError: if nothing matches.
    """
    from detloom.trainer_module.data.records import list_shards as match_pattern
    from detloom.trainer_module.training.follow_checkpoints import EvalSet

    name, equals, where = text.partition("=")
    if not equals or "/" in name or Path(text).exists():  # the path itself may contain an equals sign
        name, where = "", text
    if is_address(where) and "*" not in where:
        where = str(_copied_set(where.rstrip("/")))
    path = Path(where)
    if not path.is_dir():
        return EvalSet(name or _tidy_name(path.parent if "*" in path.name else path), tuple(match_pattern([where])))
    if files := list_shards(path):
        return EvalSet(name or _tidy_name(path), tuple(files))
    split = _eval_split(path)
    return EvalSet(name or split, list_split(path, split))


def wanted_splits(*splits: str) -> Callable[[str], bool]:
    """Return a function that says for each path in a folder of examples whether it belongs to these splits or to none.

    An empty name stands for the evaluation split, however it is named.
    """
    names = {f"{SPLIT_PREFIX}{split}" for each in splits for split in ([each] if each else _EVAL_SPLITS)}

    def is_wanted(path: str) -> bool:
        top, slash, _ = path.partition("/")
        return top in names if slash else not top.startswith(SPLIT_PREFIX)

    return is_wanted


def _copied_set(address: str) -> Path:
    """Return a copy of a split at an address, or of a folder of splits, with the label map beside the split."""
    parent, _, name = address.rpartition("/")
    if name.startswith(SPLIT_PREFIX):
        return copied(parent, wanted_splits(name.removeprefix(SPLIT_PREFIX))) / name
    return copied(address, wanted_splits(""))


def parse_eval_sets(texts: Sequence[str]) -> "tuple[EvalSet, ...]":
    """Parse several evaluation sets; raise InputError for a repeated name, because their results would mix."""
    sets = tuple(parse_eval_set(text) for text in texts)
    names = [each.name for each in sets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--examples: the set name {twice!r} is used twice; name the sets: --examples NAME=FOLDER.")
    return sets


def _eval_split(folder: Path) -> str:
    splits = _list_splits(folder)
    return next((name for name in _EVAL_SPLITS if name in splits), _EVAL_SPLITS[0])


def _list_splits(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix(SPLIT_PREFIX) for path in folder.glob(f"{SPLIT_PREFIX}*") if path.is_dir())


def _tidy_name(path: Path) -> str:
    return path.name.removeprefix(SPLIT_PREFIX).removesuffix(".tfrecord") or "eval"
