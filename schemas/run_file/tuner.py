"""Settings of the hyperparameter search, and functions that apply hyperparameters to a configuration."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from detloom.schemas.contracts.metric_names import check_metric
from detloom.schemas.errors import FieldError, InputError, check, check_fields, check_not_empty, check_unique
from detloom.schemas.model.augmentations import Augmentation, RandomAdjustHue
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.config_checks import rates_by_path
from detloom.schemas.model.detector import MultiscaleAnchorGenerator
from detloom.schemas.model.optimizers import with_scaled_steps
from detloom.schemas.reading.overrides import Located, merge, nest, split_key
from detloom.schemas.reading.typed_dict import format_key_path, from_dict, to_dict

_MAX_SEED = 2**32 - 1  # the search adds 1, and the algorithms take 32 bits
_MAX_COMBINATIONS = 256  # of the ends of ranges that are checked
LEARNING_RATE_FACTOR = "learning_rate_factor"
AUGMENTATION_STRENGTH = "augmentation_strength"


@dataclass(frozen=True, kw_only=True)
class SearchRange:
    """Range or choices of one hyperparameter."""

    key: str
    """Key path of the configuration, such as `model.anchor_generator.anchor_scale`; or `learning_rate_factor`, which
    multiplies every rate of the schedule; or `augmentation_strength`, which multiplies the probabilities and amounts of
    the augmentations."""
    min: float | None = None
    """Smallest value, with `max`."""
    max: float | None = None
    """Largest value, with `min`."""
    log: bool = False
    """Sample uniformly on a logarithmic scale: 0.001 to 0.01 is as likely as 0.01 to 0.1."""
    choices: tuple[float, ...] = ()
    """Values to choose from, instead of `min` and `max`."""

    def __post_init__(self) -> None:
        check_not_empty(self, "key")
        if self.choices:
            is_alone = self.min is None and self.max is None and not self.log
            check(is_alone, "choices", "both choices and min, max or log", "one of the two")
            check_unique("choices", self.choices)
            return
        if self.min is None or self.max is None:
            raise FieldError("min" if self.min is None else "max", "is missing; set it, or set choices.")
        check(self.min < self.max, "min", self.min, f"less than max ({self.max})", "max")
        check(not self.log or self.min > 0, "min", self.min, "above 0 with log", "log")


@dataclass(frozen=True, kw_only=True)
class TunerSettings:
    """Hyperparameter search before training; training then uses the best values."""

    algorithm: Literal["bayesian", "random"] = "bayesian"
    """Search algorithm: Bayesian optimization, or random search."""
    max_trials: int = 12
    """Number of trials."""
    steps_per_trial: int = 500
    """Number of training steps per trial; schedules are shortened in proportion."""
    objective: str = "AP"
    """Metric to optimize, by its best value among a trial's evaluations: a COCO metric, `AP/<class name>`, or `loss`
    (lower is better)."""
    space: tuple[SearchRange, ...] = ()
    """Search space; empty for the learning rate (0.2 to 5 times the configured rate), the strength of the augmentations
    and the scale of the anchors, if the detector has them."""
    seed: int = 0
    """Random seed of the search."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "max_trials", "steps_per_trial")
        check(0 <= self.seed < _MAX_SEED, "seed", self.seed, "0 up to 2**32 - 1")
        check_metric("objective", self.objective)
        check_unique("space", (search.key for search in self.space))


# --- applying hyperparameters -----------------------------------------------------------------------------------------


_ANCHOR_SCALE = "model.anchor_generator.anchor_scale"
# Fields that hold an amount: factors around 1, each with the other end of its range, and amounts with an upper limit.
_FACTORS = {"min_delta": "max_delta", "max_delta": "min_delta", "minval": "maxval", "maxval": "minval"}
_MOST = {"magnitude": 30.0}


def apply_hyperparameters(config: TrainEvalConfig, values: Mapping[str, Any]) -> TrainEvalConfig:
    """Return the configuration with other values at key paths, or at the special keys of `SearchRange.key`.

    Raises:
        InputError: for an unknown key or an invalid value.
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


def search_space(tuner: TunerSettings, config: TrainEvalConfig) -> tuple[SearchRange, ...]:
    """Return the search space, after checking values of every range, and the ends of all ranges together.

    Raises:
        InputError: for an unknown key, an invalid value, or values that exclude each other.
    """
    space = tuner.space or tuple(_default_space(config))
    for search in space:
        for value in search.choices or (search.min, search.max):
            apply_hyperparameters(config, {search.key: value})
        if search.min is not None and search.max is not None:
            _check_between(search, config)
    ends = []
    for search in space:
        choices = search.choices
        ends.append((min(choices), max(choices)) if choices else (search.min, search.max))
    for values in itertools.islice(itertools.product(*ends), _MAX_COMBINATIONS):
        together = {each.key: value for each, value in zip(space, values, strict=True)}
        try:
            apply_hyperparameters(config, together)
        except InputError as error:
            shown = ", ".join(f"{key} {value:g}" for key, value in together.items())
            raise InputError(f"a trial could have {shown}: {error}") from None
    return space


def _check_between(search: SearchRange, config: TrainEvalConfig) -> None:
    assert search.min is not None
    assert search.max is not None
    value = search.min + (search.max - search.min) / math.pi
    try:
        apply_hyperparameters(config, {search.key: value})
    except InputError as error:
        raise InputError(
            f"{search.key}: a value between min and max is not allowed: {error} Set choices instead."
        ) from None


def shortened(config: TrainEvalConfig, num_steps: int) -> TrainEvalConfig:
    """Return the configuration for `num_steps` steps, with schedule and evaluation interval shortened in proportion.

    Raises:
        InputError: if the schedule does not fit into so few steps.
    """
    train = config.train
    if num_steps >= train.num_steps:
        return config
    ratio = num_steps / train.num_steps
    optimizer = train.optimizer
    try:
        rate = with_scaled_steps(optimizer.learning_rate, ratio)
    except FieldError as error:
        raise InputError(f"{num_steps} steps are too few for the schedule of {train.num_steps}: {error}") from None
    train = dataclasses.replace(
        train,
        num_steps=num_steps,
        last_steps_without_mixing=round(train.last_steps_without_mixing * ratio),
        optimizer=dataclasses.replace(optimizer, learning_rate=rate),
    )
    evaluation = dataclasses.replace(config.eval, evaluate_every=max(1, round(config.evaluation_interval * ratio)))
    return dataclasses.replace(config, train=train, eval=evaluation)


def _default_space(config: TrainEvalConfig) -> Iterable[SearchRange]:
    yield SearchRange(key=LEARNING_RATE_FACTOR, min=0.2, max=5.0, log=True)
    if apply_hyperparameters(config, {AUGMENTATION_STRENGTH: 0.0}) != config:
        yield SearchRange(key=AUGMENTATION_STRENGTH, min=0.0, max=1.5)
    anchors = getattr(config.model, "anchor_generator", None)
    if isinstance(anchors, MultiscaleAnchorGenerator):
        yield SearchRange(key=_ANCHOR_SCALE, min=0.5 * anchors.anchor_scale, max=1.5 * anchors.anchor_scale)


def _with_values(config: TrainEvalConfig, values: Mapping[str, Any]) -> TrainEvalConfig:
    tree = Located(to_dict(config), lambda path: f"hyperparameter {format_key_path(path)}")
    for key, value in values.items():
        where = f"hyperparameter {key}"
        path = split_key(key, where)
        if not tree.holds(path):
            raise InputError(f"{where}: the configuration has no such key; `detloom config show` lists them.")
        tree = merge(tree, Located(nest(path, value), lambda _, where=where: where))  # type: ignore[misc]
    return from_dict(TrainEvalConfig, tree.data, locate=tree.locate)


def _scaled_unchanged_share(share: float, strength: float) -> float:
    return min(1.0, max(0.0, 1 - (1 - share) * strength))


def _with_strength(augmentation: Augmentation, strength: float, where: str) -> Augmentation:
    """Multiply probability and amounts of an augmentation by the strength; leave other fields unchanged."""
    if strength == 1:
        return augmentation
    fields = {field.name: getattr(augmentation, field.name) for field in dataclasses.fields(augmentation)}
    new: dict[str, Any] = {}
    for field, value in fields.items():
        if field.endswith("probability"):
            new[field] = min(1.0, value * strength)
        elif field == "random_coef":  # probability of leaving the image unchanged
            new[field] = _scaled_unchanged_share(value, strength)
        elif field == "operations":
            new[field] = tuple(
                dataclasses.replace(each, random_coef=_scaled_unchanged_share(each.random_coef, strength))
                for each in value
            )
        elif field in _FACTORS and _FACTORS[field] in fields:  # one end of a range around 1
            new[field] = max(0.0, 1 + (value - 1) * strength)
        elif field in _MOST:
            new[field] = min(_MOST[field], value * strength)
    if "max_delta" in fields and "min_delta" not in fields:
        limit = 0.5 if isinstance(augmentation, RandomAdjustHue) else 1.0
        new["max_delta"] = min(limit, fields["max_delta"] * strength)
    try:
        return dataclasses.replace(augmentation, **new)
    except InputError as error:
        message = f"hyperparameter {AUGMENTATION_STRENGTH}: {strength:g} makes {where} invalid: {error}"
        raise InputError(message) from None
