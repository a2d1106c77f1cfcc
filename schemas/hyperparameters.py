"""Hyperparameters laid over a configuration, what they are drawn from, and the short trainings of a search."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from detloom.schemas.augmentation_config import Augmentation, RandomAdjustHue
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.config_checks import rates_by_path
from detloom.schemas.errors import InputError
from detloom.schemas.model_config import MultiscaleAnchorGenerator, Ssd
from detloom.schemas.overrides import Located, merge, nest, split_key
from detloom.schemas.tuner_config import AUGMENTATION_STRENGTH, LEARNING_RATE_FACTOR, SearchRange, Tuner
from detloom.schemas.typed_dict import format_key_path, from_dict, to_dict

_ANCHOR_SCALE = "model.anchor_generator.anchor_scale"
# Amounts by their fields' names: factors around 1, each with the other end of its pair, and others with their limit.
_FACTORS = {"min_delta": "max_delta", "max_delta": "min_delta", "minval": "maxval", "maxval": "minval"}
_MOST = {"magnitude": 30.0}
_RATE = ("train", "optimizer", "learning_rate")


def apply_hyperparameters(config: TrainEvalConfig, values: Mapping[str, Any]) -> TrainEvalConfig:
    """The configuration with other values at key paths; what `SearchRange.key` names beside them is understood too.

    Raises:
        InputError: for a key that the configuration lacks or a value that it does not take.
    """
    plain = {key: value for key, value in values.items() if key not in (LEARNING_RATE_FACTOR, AUGMENTATION_STRENGTH)}
    config = _with_values(config, plain)
    if LEARNING_RATE_FACTOR in values:
        rates = rates_by_path(config.train.optimizer.learning_rate)
        config = _with_values(config, {path: rate * values[LEARNING_RATE_FACTOR] for path, rate in rates.items()})
    if AUGMENTATION_STRENGTH in values:
        strength = float(values[AUGMENTATION_STRENGTH])
        augmentations = tuple(
            _with_strength(each, strength, f"train.augmentations[{place}]")
            for place, each in enumerate(config.train.augmentations)
        )
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, augmentations=augmentations))
    return config


def search_space(tuner: Tuner, config: TrainEvalConfig) -> tuple[SearchRange, ...]:
    """What is searched, with every end of every range tried on the configuration.

    Raises:
        InputError: for a key that the configuration lacks or a value that it does not take.
    """
    space = tuner.space or tuple(_default_space(config))
    for search in space:
        for value in search.choices or (search.min, search.max):
            apply_hyperparameters(config, {search.key: value})
    return space


def shortened(config: TrainEvalConfig, num_steps: int) -> TrainEvalConfig:
    """The configuration trained for so many steps: its schedule and its evaluations keep their places in proportion.

    Raises:
        InputError: if so few steps leave no room for the schedule.
    """
    train = config.train
    if num_steps >= train.num_steps:
        return config
    ratio = num_steps / train.num_steps
    schedule = to_dict(train.optimizer.learning_rate)
    settings = {
        "train.num_steps": num_steps,
        "train.last_steps_without_mixing": round(train.last_steps_without_mixing * ratio),
        "eval.evaluate_every": max(1, round(config.eval.evaluate_every * ratio)),
        **{format_key_path((*_RATE, *path)): max(least, round(step * ratio)) for path, step, least in _steps(schedule)},
    }
    try:
        return _with_values(config, settings)
    except InputError as error:
        raise InputError(f"{num_steps} steps are too few for the schedule of {train.num_steps}: {error}") from None


def _default_space(config: TrainEvalConfig) -> Iterable[SearchRange]:
    yield SearchRange(key=LEARNING_RATE_FACTOR, min=0.2, max=5.0, log=True)
    if apply_hyperparameters(config, {AUGMENTATION_STRENGTH: 0.0}) != config:
        yield SearchRange(key=AUGMENTATION_STRENGTH, min=0.0, max=1.5)
    match config.model:
        case Ssd(anchor_generator=MultiscaleAnchorGenerator(anchor_scale=scale)):
            yield SearchRange(key=_ANCHOR_SCALE, min=0.5 * scale, max=1.5 * scale)


def _with_values(config: TrainEvalConfig, values: Mapping[str, Any]) -> TrainEvalConfig:
    tree = Located(to_dict(config), lambda path: f"hyperparameter {format_key_path(path)}")
    for key, value in values.items():
        where = f"hyperparameter {key}"
        path = split_key(key, where)
        if not tree.holds(path):
            raise InputError(f"{where}: the configuration has no such key; `detloom config show` lists them.")
        tree = merge(tree, Located(nest(path, value), lambda _, where=where: where))  # type: ignore[misc]
    return from_dict(TrainEvalConfig, tree.data, locate=tree.locate)


def _steps(schedule: Mapping[str, Any]) -> Iterable[tuple[tuple[str | int, ...], int, int]]:
    """Key path below the learning rate, step, and the least that it may become."""
    for field, value in schedule.items():
        if field.endswith(("_steps", "_step")):
            yield (field,), value, min(value, 1)
        elif field == "schedule":
            for place, jump in enumerate(value):
                yield (field, place, "step"), jump["step"], min(jump["step"], 1)


def _left_alone(share: float, strength: float) -> float:
    return min(1.0, max(0.0, 1 - (1 - share) * strength))


def _with_strength(augmentation: Augmentation, strength: float, where: str) -> Augmentation:
    """Its chance and its amounts times the strength; what has neither stays as it is."""
    if strength == 1:
        return augmentation
    fields = {field.name: getattr(augmentation, field.name) for field in dataclasses.fields(augmentation)}
    new: dict[str, Any] = {}
    for field, value in fields.items():
        if field.endswith("probability"):
            new[field] = min(1.0, value * strength)
        elif field == "random_coef":  # how often the picture is left as it is
            new[field] = _left_alone(value, strength)
        elif field == "operations":
            new[field] = tuple(
                dataclasses.replace(each, random_coef=_left_alone(each.random_coef, strength)) for each in value
            )
        elif field in _FACTORS and _FACTORS[field] in fields:  # of a pair around 1
            new[field] = max(0.0, 1 + (value - 1) * strength)
        elif field in _MOST:
            new[field] = min(_MOST[field], value * strength)
    if "max_delta" in fields and "min_delta" not in fields:
        limit = 0.5 if isinstance(augmentation, RandomAdjustHue) else 1.0
        new["max_delta"] = min(limit, fields["max_delta"] * strength)
    try:
        return dataclasses.replace(augmentation, **new)
    except InputError as error:
        raise InputError(f"hyperparameter {AUGMENTATION_STRENGTH}: {strength:g} makes of {where}: {error}") from None
