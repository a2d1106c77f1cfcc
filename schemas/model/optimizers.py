"""Optimizers, learning rate schedules, gradient clipping and moving averages. Steps are counted from 0."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from detloom.schemas.errors import NotNegative, NotNegativeInt, Positive, PositiveInt, Ranged, check, check_fields

# --- learning rates -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConstantLearningRate(Ranged):
    """Constant learning rate."""

    learning_rate: Positive = 0.002
    """Learning rate."""


@dataclass(frozen=True, kw_only=True)
class ExponentialDecayLearningRate(Ranged):
    """Exponential decay: the rate is multiplied by `decay_factor` every `decay_steps` steps after the burn-in."""

    initial_learning_rate: Positive = 0.002
    """Rate after the burn-in."""
    decay_steps: PositiveInt = 4_000_000
    """Number of steps between two decays."""
    decay_factor: Positive = 0.95
    """Factor of the rate at each decay."""
    staircase: bool = True
    """Decay in jumps; false decays a little at every step."""
    burnin_learning_rate: NotNegative = 0.0
    """Rate during the burn-in; 0 uses `initial_learning_rate`."""
    burnin_steps: NotNegativeInt = 0
    """Number of steps of the burn-in."""
    min_learning_rate: NotNegative = 0.0
    """Lower limit of the rate."""


@dataclass(frozen=True, kw_only=True)
class LearningRateStep(Ranged):
    """A learning rate and the first step at which it applies."""

    step: NotNegativeInt
    """First step with this rate."""
    learning_rate: NotNegative = 0.002
    """Learning rate."""


@dataclass(frozen=True, kw_only=True)
class ManualStepLearningRate:
    """Learning rate that changes at given steps."""

    schedule: tuple[LearningRateStep, ...]
    """Changes of the rate, in order."""
    initial_learning_rate: float = 0.002
    """Rate before the first change."""
    warmup: bool = False
    """Rise linearly from `initial_learning_rate` to the rate of the first change."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "initial_learning_rate")
        steps = [jump.step for jump in self.schedule]
        check(bool(steps), "schedule", "nothing", "at least one step")
        check(steps == sorted(set(steps)), "schedule", f"steps {steps}", "rising steps")
        check(not self.warmup or steps[0] > 0, "schedule", "step 0", "1 or more with warmup")


@dataclass(frozen=True, kw_only=True)
class CosineDecayLearningRate(Ranged):
    """Linear warm-up, an optional hold, then cosine decay to 0 at `total_steps` (arXiv:1608.03983)."""

    learning_rate_base: Positive = 0.002
    """Highest rate."""
    total_steps: PositiveInt = 4_000_000
    """Step from which the rate is 0."""
    warmup_learning_rate: float = 0.0002
    """Rate at step 0."""
    warmup_steps: NotNegativeInt = 10_000
    """Number of steps of the warm-up."""
    hold_base_rate_steps: NotNegativeInt = 0
    """Number of steps at `learning_rate_base` before the decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, base = self.warmup_learning_rate, self.learning_rate_base
        allowed = f"0 to learning_rate_base ({base})"
        check(self.warmup_steps == 0 or 0 <= rate <= base, "warmup_learning_rate", rate, allowed, "learning_rate_base")
        before_decay = self.warmup_steps + self.hold_base_rate_steps
        allowed = f"at least warmup_steps + hold_base_rate_steps ({before_decay})"
        check(self.total_steps >= before_decay, "total_steps", self.total_steps, allowed)


@dataclass(frozen=True, kw_only=True)
class _EfficientDetRate(Ranged):
    learning_rate: Positive = 0.08
    """Highest rate; EfficientDet uses 0.08 for every 64 images in the batch."""
    warmup_learning_rate: NotNegative = 0.008
    """Rate at step 0."""
    warmup_steps: NotNegativeInt = 0
    """Number of steps of the warm-up."""

    def check_total_steps(self, total_steps: int) -> None:
        allowed = f"more than warmup_steps ({self.warmup_steps})"
        check(total_steps > self.warmup_steps, "total_steps", total_steps, allowed, "warmup_steps")


@dataclass(frozen=True, kw_only=True)
class EfficientDetCosineLearningRate(_EfficientDetRate):
    """Cosine decay of google/automl's EfficientDet: the decay starts at step 0, not at the end of the warm-up."""

    total_steps: int
    """Total number of training steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_total_steps(self.total_steps)


@dataclass(frozen=True, kw_only=True)
class EfficientDetStepwiseLearningRate(_EfficientDetRate):
    """Linear warm-up, then drops to 1/10 and 1/100 of the rate, as in google/automl's EfficientDet."""

    first_drop_step: int
    """First step with 1/10 of the rate."""
    second_drop_step: int
    """First step with 1/100 of the rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        drops = (self.first_drop_step, self.second_drop_step)
        check(self.warmup_steps <= drops[0], "first_drop_step", drops[0], "warmup_steps or later")
        check(drops[0] < drops[1], "second_drop_step", drops[1], "later than first_drop_step")


@dataclass(frozen=True, kw_only=True)
class PolynomialLearningRate(_EfficientDetRate):
    """Linear warm-up, then rate * (1 - step / total_steps) ** power, as in google/automl's EfficientDet."""

    total_steps: int
    """Step at which the rate is 0."""
    power: Positive = 0.9
    """Exponent of the decay; 1 is linear."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_total_steps(self.total_steps)


LearningRate = (
    ConstantLearningRate
    | ExponentialDecayLearningRate
    | ManualStepLearningRate
    | CosineDecayLearningRate
    | EfficientDetCosineLearningRate
    | EfficientDetStepwiseLearningRate
    | PolynomialLearningRate
)


def with_scaled_steps(rate: LearningRate, ratio: float) -> LearningRate:
    """Return the schedule with all numbers of steps multiplied by `ratio`; 1 or more do not become 0.

    Raises:
        FieldError: if the schedule does not fit into so few steps.
    """

    def scale(num_steps: int) -> int:
        return max(min(num_steps, 1), round(num_steps * ratio))

    if isinstance(rate, ManualStepLearningRate):
        return replace(rate, schedule=tuple(replace(jump, step=scale(jump.step)) for jump in rate.schedule))
    names = [field.name for field in fields(rate) if field.name.endswith(("_steps", "_step"))]
    return replace(rate, **{name: scale(getattr(rate, name)) for name in names})  # type: ignore[arg-type]


def with_scaled_rates(rate: LearningRate, factor: float) -> LearningRate:
    """Return the schedule with all rates multiplied by `factor`."""
    scaled: dict[str, Any] = {name: factor * getattr(rate, name) for name in rate_fields(rate)}
    if isinstance(rate, ManualStepLearningRate):
        jumps = (replace(jump, learning_rate=factor * jump.learning_rate) for jump in rate.schedule)
        scaled["schedule"] = tuple(jumps)
    return replace(rate, **scaled)


def rate_fields(rate: LearningRate) -> list[str]:
    """Return the names of the fields that are rates."""
    return [field.name for field in fields(rate) if "learning_rate" in field.name]


# --- optimizers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MomentumOptimizer(Ranged):
    """Stochastic gradient descent with momentum."""

    learning_rate: LearningRate
    """Learning rate schedule."""
    momentum: Annotated[float, "0 up to 1"] = 0.9
    """Decay of the accumulated update per step; 0 is plain gradient descent."""
    nesterov: bool = False
    """Use Nesterov momentum."""


@dataclass(frozen=True, kw_only=True)
class RmsPropOptimizer(Ranged):
    """RMSProp: gradients are divided by the root of their mean square."""

    learning_rate: LearningRate
    """Learning rate schedule."""
    momentum: Annotated[float, "0 up to 1"] = 0.9
    """Decay of the accumulated update per step."""
    decay: Annotated[float, "0 up to 1"] = 0.9
    """Decay of the mean square per step."""
    epsilon: Positive = 1.0
    """Added to the mean square to avoid division by zero."""


@dataclass(frozen=True, kw_only=True)
class AdamOptimizer(Ranged):
    """Adam (arXiv:1412.6980)."""

    learning_rate: LearningRate
    """Learning rate schedule."""
    epsilon: Positive = 1e-8
    """Added to the root of the mean square to avoid division by zero."""


@dataclass(frozen=True, kw_only=True)
class AdamWOptimizer(Ranged):
    """Adam with decoupled weight decay (arXiv:1711.05101); biases and batch-norm variables are not decayed."""

    learning_rate: LearningRate
    """Learning rate schedule."""
    weight_decay: NotNegative = 1e-4
    """Weight decay: each step subtracts this share of a weight, times the learning rate."""
    epsilon: Positive = 1e-7
    """Added to the root of the mean square to avoid division by zero."""


Optimizer = MomentumOptimizer | RmsPropOptimizer | AdamOptimizer | AdamWOptimizer

# --- gradient clipping and moving averages --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClipByGlobalNorm(Ranged):
    """Scale down all gradients together if their global norm is larger than `norm`."""

    norm: Positive
    """Largest global norm."""


@dataclass(frozen=True, kw_only=True)
class ClipEachThenGlobalNorm(Ranged):
    """Clip each gradient by its own norm, then all by their global norm, as in google/automl's EfficientDet."""

    norm: Positive
    """Largest norm of each gradient, and of all gradients together."""


GradientClipping = ClipByGlobalNorm | ClipEachThenGlobalNorm


@dataclass(frozen=True, kw_only=True)
class MovingAverage(Ranged):
    """Exponential moving average of the weights."""

    decay: Annotated[float, "between 0 and 1"] = 0.9999
    """Decay of the average per step."""
    dynamic: bool = True
    """Limit the decay at step t to (1 + t) / (10 + t), so that the average follows early training."""
    statistics: bool = False
    """Average the means and variances of batch norm too, as google/automl does; the Object Detection API does not."""
