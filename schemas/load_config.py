"""A configuration from where it stands (a preset, a `pipeline.config`, an earlier run's JSON), and layers over it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detloom.schemas.config import Train, TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.overrides import Located, merge
from detloom.schemas.pipeline_config import PipelineConfigReport, parse_pipeline_config
from detloom.schemas.presets import find_preset, list_presets
from detloom.schemas.redact import redact
from detloom.schemas.text_file import read_text_file
from detloom.schemas.typed_dict import TYPE_KEY, KeyPath, from_dict, nearest_hint, show_value, to_dict

# Keys of schedules that hold a rate; a warm-up rate alone does not say what batch size it is for.
_RATE_KEYS = ("learning_rate", "learning_rate_base", "initial_learning_rate", "schedule")


def load_tree(source: str, folder: Path, *, override_text: str = "") -> tuple[Located, PipelineConfigReport | None]:
    """The plain tree of a preset's name, or of the path of a `pipeline.config` or a `config.json`.

    Args:
        folder: what a relative path is relative to.
        override_text: in the format of `pipeline.config`, merged over such a file.

    Returns:
        The tree, and for a `pipeline.config` what became of its fields; with refused ones the tree is not complete.

    Raises:
        InputError: no such preset or file, a file that cannot be read, or an override text over another kind.
    """
    path, names = folder / source, [preset.name for preset in list_presets()]
    is_preset, is_json = source in names, path.suffix == ".json"
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"{path}: is a run file; allowed: a preset, a pipeline.config or a config.json.")
    if override_text and (is_preset or is_json):
        raise InputError(f"{redact(source)}: an override text goes over a pipeline.config, not over this.")
    if is_preset:
        return Located(to_dict(find_preset(source).config), lambda _: f"preset {source}"), None
    if not _exists(path):
        hint = nearest_hint(source, names)
        raise InputError(f"got '{redact(source)}', allowed: a preset's name (detloom presets) or a file.{hint}")
    text = read_text_file(path)
    if is_json:
        return _parse_json(text, str(path)), None
    report = parse_pipeline_config(text, str(path), override_text)
    return report.located, report


def lay_over(base: Located, over: Located) -> Located:
    """`over` laid over the tree of a configuration.

    With another batch size and the old learning rate, `train.learning_rate_batch_size` keeps what the rate was written
    for; with another rate, it is the batch size in effect.
    """
    merged = merge(base, over)
    before, after = _train(base), _train(merged)
    if "learning_rate_batch_size" in _train(over) or not isinstance(merged.data, Mapping):
        return merged
    written_for = before.get("learning_rate_batch_size")
    if _rates(before) != _rates(after):
        written_for = None
    elif before and written_for is None and _batch_size(before) != _batch_size(after):
        written_for = _batch_size(before)
    if written_for == after.get("learning_rate_batch_size"):
        return merged
    key = ("train", "learning_rate_batch_size")

    def locate(path: KeyPath) -> str:
        return f"follows from {merged.locate(('train', 'batch_size'))}" if path == key else merged.locate(path)

    return Located({**merged.data, "train": {**after, key[1]: written_for}}, locate)


def build_config(tree: Located) -> TrainEvalConfig:
    """The checked configuration; errors say where the wrong value was written."""
    return from_dict(TrainEvalConfig, tree.data, locate=tree.locate)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no permission to look, a name that is too long or holds a NUL character
        return False


def _train(tree: Located) -> Mapping[str, Any]:
    """The section `train`; empty where there is none."""
    train = tree.data.get("train") if isinstance(tree.data, Mapping) else None
    return train if isinstance(train, Mapping) else {}


def _batch_size(train: Mapping[str, Any]) -> Any:
    return train.get("batch_size", Train.batch_size)


def _rates(train: Mapping[str, Any]) -> Any:
    """The kind of schedule and the rates in it."""
    optimizer = train.get("optimizer")
    rate = optimizer.get("learning_rate") if isinstance(optimizer, Mapping) else None
    return [rate.get(key) for key in (TYPE_KEY, *_RATE_KEYS)] if isinstance(rate, Mapping) else rate


def _parse_json(text: str, name: str) -> Located:
    """A `config.json` as the Trainer writes it beside its checkpoints."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}:{getattr(error, 'lineno', 1)}: not valid JSON ({error}).") from None
    if not isinstance(data, Mapping):
        raise InputError(f"{name}:1: got {show_value((), data)}, allowed: a mapping.")
    return Located(data, lambda _: f"{name}:1")
