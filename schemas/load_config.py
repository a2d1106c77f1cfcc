"""Load a configuration from a preset, a `pipeline.config` or an earlier run's JSON, and merge layers over it."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from detloom.schemas.errors import FieldError, InputError
from detloom.schemas.model.config import Train, TrainEvalConfig
from detloom.schemas.model.optimizers import with_scaled_steps
from detloom.schemas.odapi.pipeline_config import PipelineConfigReport, parse_pipeline_config
from detloom.schemas.presets.presets import find_preset, list_presets
from detloom.schemas.reading.overrides import Located, merge
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.reading.typed_dict import TYPE_KEY, KeyPath, from_dict, nearest_hint, show_value, to_dict

# Keys of schedules that contain a rate. The warm-up rate is excluded: alone, it does not fix a batch size.
_RATE_KEYS = ("learning_rate", "learning_rate_base", "initial_learning_rate", "schedule")


def load_tree(
    source: str, folder: Path, *, above: Located | None = None
) -> tuple[Located, PipelineConfigReport | None]:
    """Load the plain tree of a preset, a `pipeline.config` or a `config.json`.

    Args:
        source: a preset's name, or the path of a file.
        folder: base of a relative path.
        above: the layers that will be merged over the tree. The schedule of a preset is scaled to their
            `train.num_steps`, so that only a schedule that they write differs from it.

    Returns:
        The tree, and for a `pipeline.config` the report on its fields. With refused fields the tree is incomplete.

    Raises:
        InputError: if there is no such preset or file, or the file cannot be read.
    """
    path, names = folder / source, [preset.name for preset in list_presets()]
    is_preset, is_json = source in names, path.suffix == ".json"
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"{path}: this is a run file; allowed: a preset, a pipeline.config or a config.json.")
    if is_preset:
        return _load_preset(source, None if above is None else above.get(("train", "num_steps"))), None
    if not os.path.exists(path):  # unlike Path.exists, False without permission and for a name that is too long
        hint = nearest_hint(source, names)
        raise InputError(f"got '{redact(source)}', allowed: the name of a preset (detloom presets) or a file.{hint}")
    text = read_text_file(path)
    if is_json:
        return _parse_json(text, str(path)), None
    report = parse_pipeline_config(text, str(path))
    return report.located, report


def _load_preset(name: str, num_steps: Any) -> Located:
    """Return a preset with its schedule for `num_steps`; with its own schedule if these are invalid or too few."""
    config = find_preset(name).config
    if type(num_steps) is not int or num_steps < 1:  # the value's own check reports it
        return Located(to_dict(config), lambda _: f"preset {name}")
    optimizer = config.train.optimizer
    with contextlib.suppress(FieldError):
        rate = with_scaled_steps(optimizer.learning_rate, num_steps / config.train.num_steps)
        config = replace(config, train=replace(config.train, optimizer=replace(optimizer, learning_rate=rate)))
    schedule = ("train", "optimizer", "learning_rate")
    scaled = f"preset {name}, for {num_steps} steps"
    return Located(to_dict(config), lambda path: scaled if path[:3] == schedule else f"preset {name}")


def apply_layer(base: Located, over: Located) -> Located:
    """Merge `over` into the tree of a configuration.

    If `over` changes the batch size but not the learning rate, `train.learning_rate_batch_size` keeps the batch size
    that the rate was written for. If `over` changes the rate, the field is cleared.
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
        return f"derived from {merged.locate(('train', 'batch_size'))}" if path == key else merged.locate(path)

    return Located({**merged.data, "train": {**after, key[1]: written_for}}, locate)


def build_config(tree: Located) -> TrainEvalConfig:
    """Build and check the configuration; errors name the place where the wrong value was written."""
    return from_dict(TrainEvalConfig, tree.data, locate=tree.locate)


def _train(tree: Located) -> Mapping[str, Any]:
    """Return the section `train`, or an empty mapping."""
    train = tree.data.get("train") if isinstance(tree.data, Mapping) else None
    return train if isinstance(train, Mapping) else {}


def _batch_size(train: Mapping[str, Any]) -> Any:
    return train.get("batch_size", Train.batch_size)


def _rates(train: Mapping[str, Any]) -> Any:
    """Return the type of the schedule and its rates."""
    optimizer = train.get("optimizer")
    rate = optimizer.get("learning_rate") if isinstance(optimizer, Mapping) else None
    if not isinstance(rate, Mapping):
        return rate
    return [rate.get(key) for key in (TYPE_KEY, *_RATE_KEYS)]


def _parse_json(text: str, name: str) -> Located:
    """Parse a `config.json`, which the Trainer writes next to its checkpoints."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}:{getattr(error, 'lineno', 1)}: not valid JSON ({error}).") from None
    if not isinstance(data, Mapping):
        raise InputError(f"{name}:1: got {show_value((), data)}, allowed: a mapping.")
    return Located(data, lambda _: f"{name}:1")
