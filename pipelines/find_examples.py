"""Find examples: in a folder that `detloom ingest` or ExampleGen wrote, or by patterns of TFRecord shards."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detloom.components.examples_folder import SPLIT_PREFIX, ExamplesFolder, list_shards
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import PLACEHOLDER, TrainEvalConfig

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


def examples_of_config(config: TrainEvalConfig, label_map: Path | None = None) -> Examples:
    """Return the shard patterns and the label map that a configuration names; `label_map` replaces the latter.

    Raises:
        InputError: if it does not name all of them.
    """
    train_files = _without_placeholders(config.train_input.input_path)
    eval_files = _without_placeholders(config.eval_input.input_path)
    label_map = label_map or label_map_of_config(config)
    if not train_files or not eval_files or label_map is None:
        raise InputError(
            "detloom train: the configuration does not name the data; set --examples, or train_input.input_path, "
            "eval_input.input_path and --label-map."
        )
    return Examples(train_files, eval_files, label_map)


def label_map_of_config(config: TrainEvalConfig) -> Path | None:
    """Return the label map that a configuration names, if any."""
    paths = _without_placeholders((config.train_input.label_map_path, config.eval_input.label_map_path))
    return Path(paths[0]) if paths else None


def _without_placeholders(paths: Iterable[str]) -> tuple[str, ...]:
    """Drop empty paths and the placeholders of zoo configurations."""
    return tuple(path for path in paths if path and PLACEHOLDER not in path)


def parse_eval_set(text: str) -> "EvalSet":
    """Parse an evaluation set: `[NAME=]` and a split's folder, a folder of splits (its eval split), or a pattern.

    Raises:
        InputError: if nothing matches.
    """
    from detloom.trainer_module.data.records import list_shards as match_pattern
    from detloom.trainer_module.training.follow_checkpoints import EvalSet

    name, where = split_name(text)
    path = Path(where)
    if not path.is_dir():
        return EvalSet(name or _tidy_name(path.parent if "*" in path.name else path), tuple(match_pattern([where])))
    if files := list_shards(path):
        return EvalSet(name or _tidy_name(path), tuple(files))
    examples = ExamplesFolder(path)
    split = _eval_split(examples)
    return EvalSet(name or split, tuple(examples.check_shards(split)))


def split_name(text: str) -> tuple[str, str]:
    """Return the name, empty without one, and the rest of `[NAME=]WHERE`."""
    name, equals, where = text.partition("=")
    if not equals or "/" in name or Path(text).exists():  # the path itself may contain an equals sign
        return "", text
    return name, where


def wanted_splits(*splits: str) -> Callable[[str], bool]:
    """Return a function that says for each path in a folder of examples whether it belongs to these splits or to none.

    An empty name stands for the evaluation split, however it is named.
    """
    names = {f"{SPLIT_PREFIX}{split}" for each in splits for split in ([each] if each else _EVAL_SPLITS)}

    def is_wanted(path: str) -> bool:
        top, slash, _ = path.partition("/")
        return top in names if slash else not top.startswith(SPLIT_PREFIX)

    return is_wanted


def parse_eval_sets(texts: Iterable[str]) -> "tuple[EvalSet, ...]":
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
