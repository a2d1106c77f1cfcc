"""The search for hyperparameters that may precede training."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.metric_names import check_metric

LEARNING_RATE_FACTOR = "learning_rate_factor"
AUGMENTATION_STRENGTH = "augmentation_strength"


@dataclass(frozen=True, kw_only=True)
class SearchRange:
    """What one hyperparameter is drawn from."""

    key: str
    """A key path of the configuration, such as `model.anchor_generator.anchor_scale`; `learning_rate_factor`, which
    multiplies every rate of the schedule; or `augmentation_strength`, which multiplies the chances and the amounts of
    the augmentations that have some."""
    min: float | None = None
    """Smallest value, with `max`."""
    max: float | None = None
    """Largest value, with `min`."""
    log: bool = False
    """Draw from the logarithm of the range: as often between 0.001 and 0.01 as between 0.01 and 0.1."""
    choices: tuple[float, ...] = ()
    """The values, instead of `min` and `max`."""

    def __post_init__(self) -> None:
        check(bool(self.key), "key", "nothing", "a key path of the configuration")
        if self.choices:
            is_alone = self.min is None and self.max is None and not self.log
            check(is_alone, "choices", "them beside min, max or log", "one of the two")
            check(len(set(self.choices)) == len(self.choices), "choices", list(self.choices), "each once")
            return
        if self.min is None or self.max is None:
            check(False, "min" if self.min is None else "max", "nothing", "a number, or choices")
            return
        check(self.min < self.max, "min", self.min, f"less than max ({self.max})", "max")
        check(not self.log or self.min > 0, "min", self.min, "above 0 with log", "log")


@dataclass(frozen=True, kw_only=True)
class Tuner:
    """A search for hyperparameters before training; the best are trained with."""

    algorithm: Literal["bayesian", "random"] = "bayesian"
    """How values are drawn: by a model of what the trials before gave, or at random."""
    max_trials: int = 12
    """Trainings that are compared."""
    steps_per_trial: int = 500
    """Steps of each; schedules are shortened in proportion."""
    objective: str = "AP"
    """The best number of a trial's evaluations counts: a COCO number, `AP/<class name>`, or `loss`, which has to
    fall."""
    space: tuple[SearchRange, ...] = ()
    """What is searched; empty for the learning rate (a fifth to five times the configured), the strength of the
    augmentations, and the scale of the anchors, as far as the detector has them."""
    seed: int = 0
    """Of the draws."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "max_trials", "steps_per_trial")
        check_fields(self, "0 or more", "seed")
        check_metric("objective", self.objective)
        keys = [search.key for search in self.space]
        check(len(set(keys)) == len(keys), "space", f"the keys {keys}", "each key once")
