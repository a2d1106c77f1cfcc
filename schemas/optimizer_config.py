"""Optimizers, learning-rate schedules, gradient clipping and moving averages. Steps count from 0."""

from dataclasses import dataclass

from detloom.schemas.checks import check, check_fields

# --- learning rates -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConstantLearningRate:
    """The same at every step."""

    learning_rate: float = 0.002
    """The rate."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "learning_rate")


@dataclass(frozen=True, kw_only=True)
class ExponentialDecayLearningRate:
    """Multiplied by `decay_factor` every `decay_steps` steps, counted from the end of the burn-in."""

    initial_learning_rate: float = 0.002
    """Rate after the burn-in."""
    decay_steps: int = 4_000_000
    """Steps between two decays."""
    decay_factor: float = 0.95
    """What the rate is multiplied by."""
    staircase: bool = True
    """Decay in jumps; False decays a little at every step."""
    burnin_learning_rate: float = 0.0
    """Rate during the burn-in; 0 takes `initial_learning_rate`."""
    burnin_steps: int = 0
    """Length of the burn-in."""
    min_learning_rate: float = 0.0
    """The rate never falls below this."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "initial_learning_rate", "decay_factor")
        check_fields(self, "1 or more", "decay_steps")
        check_fields(self, "0 or more", "burnin_learning_rate", "burnin_steps", "min_learning_rate")


@dataclass(frozen=True, kw_only=True)
class LearningRateStep:
    """A rate and the step from which it holds."""

    step: int
    """First step with this rate."""
    learning_rate: float = 0.002
    """The rate."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "step", "learning_rate")


@dataclass(frozen=True, kw_only=True)
class ManualStepLearningRate:
    """Jumps at given steps."""

    schedule: tuple[LearningRateStep, ...]
    """The jumps, in order."""
    initial_learning_rate: float = 0.002
    """Rate before the first jump."""
    warmup: bool = False
    """Rise linearly from `initial_learning_rate` to the first jump's rate, instead of jumping."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "initial_learning_rate")
        steps = [jump.step for jump in self.schedule]
        check(bool(steps), "schedule", "nothing", "at least one step")
        check(steps == sorted(set(steps)), "schedule", f"steps {steps}", "rising steps")
        check(not self.warmup or steps[0] > 0, "schedule", "step 0", "1 or more with warmup")


@dataclass(frozen=True, kw_only=True)
class CosineDecayLearningRate:
    """Linear warm-up, then, after an optional hold, half a cosine down to 0 at `total_steps` (arXiv:1608.03983)."""

    learning_rate_base: float = 0.002
    """Highest rate."""
    total_steps: int = 4_000_000
    """Step at which the rate is 0; it stays there."""
    warmup_learning_rate: float = 0.0002
    """Rate at step 0."""
    warmup_steps: int = 10_000
    """Length of the warm-up."""
    hold_base_rate_steps: int = 0
    """Steps at `learning_rate_base` before the decay."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "learning_rate_base")
        check_fields(self, "1 or more", "total_steps")
        check_fields(self, "0 or more", "warmup_steps", "hold_base_rate_steps")
        rate, base = self.warmup_learning_rate, self.learning_rate_base
        allowed = f"0 to learning_rate_base ({base})"
        check(self.warmup_steps == 0 or 0 <= rate <= base, "warmup_learning_rate", rate, allowed, "learning_rate_base")
        before_decay = self.warmup_steps + self.hold_base_rate_steps
        allowed = f"at least warmup_steps + hold_base_rate_steps ({before_decay})"
        check(self.total_steps >= before_decay, "total_steps", self.total_steps, allowed)


@dataclass(frozen=True, kw_only=True)
class EfficientDetCosineLearningRate:
    """The cosine of google/automl's EfficientDet: its decay is counted from step 0, not from the warm-up's end."""

    learning_rate: float = 0.08
    """Highest rate; EfficientDet's own is 0.08 for each 64 pictures in the batch."""
    total_steps: int
    """Steps of the whole training."""
    warmup_learning_rate: float = 0.008
    """Rate at step 0."""
    warmup_steps: int = 0
    """Length of the warm-up."""

    def __post_init__(self) -> None:
        _check_efficientdet(self)


@dataclass(frozen=True, kw_only=True)
class EfficientDetStepwiseLearningRate:
    """Linear warm-up, then a tenth and a hundredth of the rate, as google/automl's EfficientDet."""

    learning_rate: float = 0.08
    """Highest rate; EfficientDet's own is 0.08 for each 64 pictures in the batch."""
    warmup_learning_rate: float = 0.008
    """Rate at step 0."""
    warmup_steps: int = 0
    """Length of the warm-up."""
    first_drop_step: int
    """First step with a tenth of the rate."""
    second_drop_step: int
    """First step with a hundredth of the rate."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "learning_rate")
        check_fields(self, "0 or more", "warmup_learning_rate", "warmup_steps")
        drops = (self.first_drop_step, self.second_drop_step)
        check(self.warmup_steps <= drops[0], "first_drop_step", drops[0], "warmup_steps or later")
        check(drops[0] < drops[1], "second_drop_step", drops[1], "later than first_drop_step")


@dataclass(frozen=True, kw_only=True)
class PolynomialLearningRate:
    """Linear warm-up, then rate * (1 - step / total_steps) ** power, as google/automl's EfficientDet."""

    learning_rate: float = 0.08
    """The rate that decays."""
    total_steps: int
    """Step at which the rate is 0."""
    power: float = 0.9
    """Exponent of the decay; 1 is linear."""
    warmup_learning_rate: float = 0.008
    """Rate at step 0."""
    warmup_steps: int = 0
    """Length of the warm-up."""

    def __post_init__(self) -> None:
        _check_efficientdet(self)
        check_fields(self, "above 0", "power")


def _check_efficientdet(rate: EfficientDetCosineLearningRate | PolynomialLearningRate) -> None:
    check_fields(rate, "above 0", "learning_rate")
    check_fields(rate, "0 or more", "warmup_learning_rate", "warmup_steps")
    allowed = f"more than warmup_steps ({rate.warmup_steps})"
    check(rate.total_steps > rate.warmup_steps, "total_steps", rate.total_steps, allowed, "warmup_steps")


LearningRate = (
    ConstantLearningRate
    | ExponentialDecayLearningRate
    | ManualStepLearningRate
    | CosineDecayLearningRate
    | EfficientDetCosineLearningRate
    | EfficientDetStepwiseLearningRate
    | PolynomialLearningRate
)

# --- optimizers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MomentumOptimizer:
    """Stochastic gradient descent with momentum."""

    learning_rate: LearningRate
    """The schedule."""
    momentum: float = 0.9
    """Share of the old update kept at each step; 0 is plain gradient descent."""
    nesterov: bool = False
    """Nesterov's momentum."""

    def __post_init__(self) -> None:
        check_fields(self, "0 up to 1", "momentum")


@dataclass(frozen=True, kw_only=True)
class RmsPropOptimizer:
    """RMSProp: gradients divided by the root of their mean square."""

    learning_rate: LearningRate
    """The schedule."""
    momentum: float = 0.9
    """Share of the old update kept at each step."""
    decay: float = 0.9
    """Share of the old mean square kept at each step."""
    epsilon: float = 1.0
    """Added to the mean square, against division by zero."""

    def __post_init__(self) -> None:
        check_fields(self, "0 up to 1", "momentum", "decay")
        check_fields(self, "above 0", "epsilon")


@dataclass(frozen=True, kw_only=True)
class AdamOptimizer:
    """Adam (arXiv:1412.6980)."""

    learning_rate: LearningRate
    """The schedule."""
    epsilon: float = 1e-8
    """Added to the root of the mean square, against division by zero."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "epsilon")


@dataclass(frozen=True, kw_only=True)
class AdamWOptimizer:
    """Adam with decoupled weight decay (arXiv:1711.05101); biases and batch norm are not decayed."""

    learning_rate: LearningRate
    """The schedule."""
    weight_decay: float = 1e-4
    """Share of a weight, times the learning rate, taken off at each step."""
    epsilon: float = 1e-7
    """Added to the root of the mean square, against division by zero."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "weight_decay")
        check_fields(self, "above 0", "epsilon")


Optimizer = MomentumOptimizer | RmsPropOptimizer | AdamOptimizer | AdamWOptimizer

# --- beside the optimizer -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClipByGlobalNorm:
    """Scale all gradients down together where their joint norm is larger."""

    norm: float
    """Largest norm."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "norm")


@dataclass(frozen=True, kw_only=True)
class ClipEachThenGlobalNorm:
    """First each gradient by its own norm, then all by their joint norm, as google/automl's EfficientDet."""

    norm: float
    """Largest norm, of each gradient and of all together."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "norm")


GradientClipping = ClipByGlobalNorm | ClipEachThenGlobalNorm


@dataclass(frozen=True, kw_only=True)
class MovingAverage:
    """A moving average of the weights, kept beside them."""

    decay: float = 0.9999
    """Share of the old average kept at each step."""
    dynamic: bool = True
    """At the t-th step keep at most (1 + t) / (10 + t), so that the average follows early training."""

    def __post_init__(self) -> None:
        check_fields(self, "between 0 and 1", "decay")
