"""Find examples: in a folder that `detloom ingest` or ExampleGen wrote, or by patterns of TFRecord shards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detloom.components.examples_folder import SPLIT_PREFIX, ExamplesFolder, list_shards
from detloom.components.storage.storage import is_address
from detloom.pipelines.commands.options import copied
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
    examples = ExamplesFolder(folder)
    train_files = examples.check_shards(train_split)
    eval_files = examples.check_shards(eval_split or _eval_split(examples))
    return Examples(tuple(train_files), tuple(eval_files), examples.label_map_file)


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
    examples = ExamplesFolder(path)
    split = _eval_split(examples)
    return EvalSet(name or split, tuple(examples.check_shards(split)))


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


def _eval_split(examples: ExamplesFolder) -> str:
    splits = examples.list_splits()
    return next((name for name in _EVAL_SPLITS if name in splits), _EVAL_SPLITS[0])


def _tidy_name(path: Path) -> str:
    return path.name.removeprefix(SPLIT_PREFIX).removesuffix(".tfrecord") or "eval"
