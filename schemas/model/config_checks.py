"""Warnings about a configuration before training starts; each is one sentence with the settings to change."""

import math
from collections.abc import Iterator
from dataclasses import replace

from detloom.schemas.model.config import PLACEHOLDER, InputReader, Train, TrainEvalConfig
from detloom.schemas.model.optimizers import (
    ConstantLearningRate,
    ExponentialDecayLearningRate,
    LearningRate,
    ManualStepLearningRate,
    MomentumOptimizer,
    rate_fields,
    with_scaled_rates,
)

_RATE = "train.optimizer.learning_rate"


def warnings_before_run(config: TrainEvalConfig) -> tuple[str, ...]:
    """Return warnings about settings that are allowed but probably unintended."""
    return (
        *_batch_size(config.train),
        *_schedule(config.train),
        *_without_effect(config),
    )


def with_rates_for_batch_size(train: Train) -> Train:
    """Return `train` with learning rates scaled from `learning_rate_batch_size` to `batch_size`.

    Rates scale linearly with momentum (arXiv:1706.02677, 2.1), and with the square root of the batch size for
    optimizers that normalize gradients (arXiv:2205.10287). Nothing changes if the rates were written for `batch_size`.
    """
    written_for, optimizer = train.learning_rate_batch_size, train.optimizer
    if written_for in (None, train.batch_size):
        return train
    ratio = train.batch_size / written_for
    factor = ratio if isinstance(optimizer, MomentumOptimizer) else math.sqrt(ratio)
    scaled = replace(optimizer, learning_rate=with_scaled_rates(optimizer.learning_rate, factor))
    return replace(train, optimizer=scaled, learning_rate_batch_size=train.batch_size)


def _batch_size(train: Train) -> Iterator[str]:
    scaled = with_rates_for_batch_size(train)
    if scaled is train or train.scale_learning_rate:
        return
    rule = "in proportion to" if isinstance(train.optimizer, MomentumOptimizer) else "with the square root of"
    rates = rates_by_path(scaled.optimizer.learning_rate)
    settings = " ".join(f"--set {path}={rate:.4g}" for path, rate in rates.items() if rate)
    yield (
        f"train.batch_size is {train.batch_size}, but the learning rate was written for "
        f"{train.learning_rate_batch_size}; scaled {rule} the batch size: {settings} (or --set "
        "train.scale_learning_rate=true; or, to keep the rate, --set "
        f"train.learning_rate_batch_size={train.batch_size})."
    )


def rates_by_path(rate: LearningRate) -> dict[str, float]:
    """Map key paths to the rates of a schedule."""
    rates = {f"{_RATE}.{name}": getattr(rate, name) for name in rate_fields(rate)}
    if isinstance(rate, ManualStepLearningRate):
        rates |= {f"{_RATE}.schedule[{i}].learning_rate": jump.learning_rate for i, jump in enumerate(rate.schedule)}
    return rates


def _schedule(train: Train) -> Iterator[str]:
    rate, num_steps = train.optimizer.learning_rate, train.num_steps
    field, end = _warmup(rate)
    if num_steps <= end:
        advice = f"; --set {_RATE}.{field}={num_steps // 10} is a tenth of it" if field.endswith("_steps") else ""
        yield f"train.num_steps is {num_steps}: training ends during the warm-up ({_RATE}.{field} {end}){advice}."
    total_steps = getattr(rate, "total_steps", num_steps)
    if total_steps != num_steps:
        what = "before the rate reaches 0" if num_steps < total_steps else f"with a rate of 0 from step {total_steps}"
        yield (
            f"{_RATE}.total_steps is {total_steps}, but train.num_steps is {num_steps}: training ends {what}; "
            f"{_settings_to_end_at(rate, num_steps)}."
        )


def _settings_to_end_at(rate: LearningRate, num_steps: int) -> str:
    """Return the `--set` options that end a schedule at `num_steps`; phases that do not fit are shortened."""
    settings = {"total_steps": num_steps}
    before_decay = {name: getattr(rate, name, 0) for name in ("warmup_steps", "hold_base_rate_steps")}
    if sum(before_decay.values()) >= num_steps:
        settings |= {name: num_steps // 10 for name, steps in before_decay.items() if steps}
    return " ".join(f"--set {_RATE}.{name}={value}" for name, value in settings.items())


def _warmup(rate: LearningRate) -> tuple[str, int]:
    """Return the key of the warm-up's length below the learning rate, and its last step; 0 without a warm-up."""
    match rate:
        case ConstantLearningRate():
            return "", 0
        case ExponentialDecayLearningRate():
            return "burnin_steps", rate.burnin_steps
        case ManualStepLearningRate():
            return "schedule[0].step", rate.schedule[0].step if rate.warmup else 0
        case _:
            return "warmup_steps", rate.warmup_steps


def _without_effect(config: TrainEvalConfig) -> Iterator[str]:
    if PLACEHOLDER in config.train.fine_tune_checkpoint:  # in input paths it does not matter, a pipeline sets them
        yield placeholder_sentence(config.train.fine_tune_checkpoint)
    if config.train.moving_average is not None and not config.eval.use_moving_averages:
        yield (
            "train.moving_average has no effect: the averages take memory and time, but the weights themselves are "
            "evaluated and exported; --set eval.use_moving_averages=true uses them, --set train.moving_average=null "
            "keeps none."
        )
    for name in ("class_balance", "image_type", "max_number_of_boxes", "unknown_classes"):
        if getattr(config.eval_input, name) != getattr(InputReader(), name):
            yield f"eval_input.{name} has no effect: an evaluation reads all images once, with all their boxes."


def placeholder_sentence(path: str) -> str:
    """Explain how to replace a checkpoint path that is still the detection zoo's placeholder."""
    return (
        f"train.fine_tune_checkpoint is {path}, the detection zoo's placeholder: set it to the path of a checkpoint, "
        "or start from random weights with --set 'train.fine_tune_checkpoint=\"\"'."
    )
