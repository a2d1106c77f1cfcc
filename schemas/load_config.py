"""A configuration from where it stands (a preset, a `pipeline.config`, an earlier run's JSON), and layers over it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.overrides import Located, merge
from detloom.schemas.pipeline_config import parse_pipeline_config, read_config_text, refusal
from detloom.schemas.presets import find_preset, list_presets
from detloom.schemas.typed_dict import TYPE_KEY, from_dict, nearest_hint, to_dict

_RATE_KEYS = {TYPE_KEY, "learning_rate", "learning_rate_base", "initial_learning_rate", "schedule"}


def load_tree(source: str, folder: Path, *, where: str = "", override_text: str = "") -> Located:
    """The plain tree of a preset's name, or of the path of a `pipeline.config` or a `config.json`.

    Args:
        folder: what a relative path is relative to.
        where: "file:line" that the source was named at, for messages.
        override_text: in the format of `pipeline.config`, merged over such a file.

    Raises:
        InputError: no such preset or file, a file that cannot be read, or one with a refused field.
    """
    prefix = f"{where}: " if where else ""
    if source in {preset.name for preset in list_presets()}:
        if override_text:
            raise InputError(f"{prefix}{source}: an override text goes over a pipeline.config, not over a preset.")
        return Located(to_dict(find_preset(source).config), lambda _: f"preset {source}")
    path = folder / source
    if not path.exists():
        hint = nearest_hint(source, (preset.name for preset in list_presets()))
        raise InputError(f"{prefix}got {source!r}, allowed: a preset's name (detloom presets) or a file.{hint}")
    if path.suffix == ".json":
        return _read_json(path)
    report = parse_pipeline_config(read_config_text(path), str(path), override_text)
    if report.refused:
        raise refusal(report)
    return report.located


def lay_over(base: Located, over: Located) -> Located:
    """`over` laid over the tree of a configuration.

    With another batch size and the old learning rate, `train.learning_rate_batch_size` keeps what the rate was written
    for.
    """
    merged = merge(base, over)
    train = over.data.get("train") if isinstance(over.data, Mapping) else None
    if not isinstance(train, Mapping) or not isinstance(merged.data.get("train"), Mapping):
        return merged
    if "learning_rate_batch_size" in train:
        return merged
    before = base.data.get("train", {})
    if _sets_rate(train):
        written_for = None
    elif "batch_size" in train:
        written_for = before.get("learning_rate_batch_size") or before.get("batch_size", 32)
    else:
        return merged
    data = {**merged.data, "train": {**merged.data["train"], "learning_rate_batch_size": written_for}}
    return Located(data, merged.locate)


def build_config(tree: Located) -> TrainEvalConfig:
    """The checked configuration; errors say where the wrong value was written."""
    return from_dict(TrainEvalConfig, tree.data, locate=tree.locate)


def _sets_rate(train: Mapping[str, Any]) -> bool:
    optimizer = train.get("optimizer")
    rate = optimizer.get("learning_rate") if isinstance(optimizer, Mapping) else None
    return isinstance(rate, Mapping) and bool(_RATE_KEYS & set(rate))


def _read_json(path: Path) -> Located:
    """A `config.json` as the Trainer writes it beside its checkpoints."""
    try:
        data = json.loads(read_config_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}:{getattr(error, 'lineno', 1)}: not valid JSON ({error}).") from None
    return Located(data, lambda _: f"{path}:1")
