import re
from dataclasses import replace

import pytest

from detloom.schemas.model.config import Train
from detloom.schemas.model.config_checks import (
    placeholder_sentence,
    rates_by_path,
    warnings_before_run,
    with_rates_for_batch_size,
)
from detloom.schemas.model.optimizers import (
    AdamOptimizer,
    ConstantLearningRate,
    CosineDecayLearningRate,
    EfficientDetStepwiseLearningRate,
    ExponentialDecayLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    MomentumOptimizer,
    MovingAverage,
    Optimizer,
)
from detloom.schemas.presets.presets import find_preset, list_presets
from detloom.schemas.reading.overrides import parse_set

COSINE = CosineDecayLearningRate(learning_rate_base=0.08, total_steps=1000, warmup_learning_rate=0.02, warmup_steps=100)


def train(optimizer: Optimizer | None = None, **changes: object) -> Train:
    optimizer = optimizer or MomentumOptimizer(learning_rate=COSINE)
    return Train(**{"num_steps": 1000, "optimizer": optimizer, "batch_size": 128, **changes})


def warnings_of(config: Train) -> tuple[str, ...]:
    preset = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    return warnings_before_run(replace(preset, train=config))


@pytest.mark.parametrize("name", [preset.name for preset in list_presets()])
def test_presets_give_no_warning(name: str):
    assert warnings_before_run(find_preset(name).config) == ()


def test_smaller_batch_suggests_proportional_rates():
    # 8 / 128 = 1 / 16: 0.08 / 16 = 0.005, 0.02 / 16 = 0.00125
    (warning,) = warnings_of(train(batch_size=8, learning_rate_batch_size=128))
    assert re.findall(r"--set (\S+=[\w.]*\w)", warning) == [
        "train.optimizer.learning_rate.learning_rate_base=0.005",
        "train.optimizer.learning_rate.warmup_learning_rate=0.00125",
        "train.scale_learning_rate=true",
        "train.learning_rate_batch_size=8",
    ]


def scaled_rates(config):
    return rates_by_path(with_rates_for_batch_size(config).optimizer.learning_rate)


def test_adaptive_optimizers_scale_with_the_square_root():
    # 32 / 128 = 1 / 4, its root 1 / 2: 0.002 / 2 = 0.001
    adam = AdamOptimizer(learning_rate=ConstantLearningRate(learning_rate=0.002))
    config = train(adam, batch_size=32, learning_rate_batch_size=128)
    assert scaled_rates(config) == {"train.optimizer.learning_rate.learning_rate": pytest.approx(0.001)}
    assert "square root" in warnings_of(config)[0]


def test_each_rate_of_a_manual_schedule_is_scaled():
    schedule = (LearningRateStep(step=10, learning_rate=0.1), LearningRateStep(step=20, learning_rate=0.01))
    rate = ManualStepLearningRate(initial_learning_rate=0.4, schedule=schedule)
    config = train(MomentumOptimizer(learning_rate=rate), batch_size=64, learning_rate_batch_size=128)
    assert scaled_rates(config) == {
        "train.optimizer.learning_rate.initial_learning_rate": 0.2,
        "train.optimizer.learning_rate.schedule[0].learning_rate": 0.05,
        "train.optimizer.learning_rate.schedule[1].learning_rate": 0.005,
    }


def test_rate_of_0_is_not_in_the_warning():
    rate = ExponentialDecayLearningRate(initial_learning_rate=0.4, burnin_learning_rate=0.0)
    config = train(MomentumOptimizer(learning_rate=rate), batch_size=64, learning_rate_batch_size=128)
    warning = warnings_of(config)[0]
    assert "initial_learning_rate=0.2" in warning
    assert "burnin_learning_rate" not in warning


def test_scaled_rates_form_a_valid_configuration():
    """The cosine schedule rejects a warm-up rate above its base rate, so both must be scaled."""
    scaled = with_rates_for_batch_size(train(batch_size=8, learning_rate_batch_size=128))
    assert (scaled.optimizer.learning_rate.learning_rate_base, scaled.learning_rate_batch_size) == (0.005, 8)


def momentum(rate) -> Train:
    return train(MomentumOptimizer(learning_rate=rate))


MANUAL = ManualStepLearningRate(schedule=(LearningRateStep(step=2000),))


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        (train(num_steps=100), r"num_steps is 100: .*warmup_steps 100.* --set train\.optimizer\.\S+warmup_steps=10 "),
        (momentum(ExponentialDecayLearningRate(burnin_steps=2000)), "burnin_steps 2000"),
        (momentum(replace(MANUAL, warmup=True)), r"schedule\[0\]\.step 2000"),
        (train(num_steps=500), r"total_steps is 1000, .*num_steps is 500: .*--set train\.optimizer\.\S+steps=500\."),
        (train(num_steps=2000), "rate of 0 from step 1000"),
    ],
)
def test_a_schedule_that_does_not_fit_the_training_gives_a_warning(config, warning):
    assert re.search(warning, warnings_of(config)[0])


@pytest.mark.parametrize(
    "config",
    [
        train(learning_rate_batch_size=128),
        momentum(MANUAL),
        momentum(EfficientDetStepwiseLearningRate(first_drop_step=2000, second_drop_step=2500)),
    ],
    ids=["the batch size of the rate", "manual schedule without a warm-up", "schedule without total_steps"],
)
def test_no_warning(config):
    assert warnings_of(config) == ()


def test_settings_without_effect_give_a_warning():
    preset = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    config = replace(
        preset,
        train=replace(preset.train, moving_average=MovingAverage()),
        eval_input=replace(preset.eval_input, class_balance=0.1),
    )
    fields = [warning.split()[0] for warning in warnings_before_run(config)]
    assert fields == ["train.moving_average", "eval_input.class_balance"]
    used = replace(config, eval=replace(config.eval, use_moving_averages=True), eval_input=preset.eval_input)
    assert warnings_before_run(used) == ()


@pytest.mark.parametrize(("num_steps", "interval"), [(300, 500), (25_000, 1250), (300_000, 15_000)])
def test_without_a_setting_there_are_twenty_evaluations_at_least_500_steps_apart(num_steps, interval):
    preset = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    assert replace(preset, train=replace(preset.train, num_steps=num_steps)).evaluation_interval == interval


@pytest.mark.parametrize("hold", [0, 300])
@pytest.mark.parametrize("num_steps", [2, 100, 350])
def test_settings_for_a_shorter_schedule_are_accepted_together(num_steps, hold):
    config = train(MomentumOptimizer(learning_rate=replace(COSINE, hold_base_rate_steps=hold)), num_steps=num_steps)
    *_, warning = warnings_of(config)
    options = re.findall(r"--set train\.optimizer\.learning_rate\.(\w+)=(\d+)", warning)
    rate = replace(config.optimizer.learning_rate, **{name: int(value) for name, value in options})
    assert rate.total_steps == num_steps
    assert rate.warmup_steps + rate.hold_base_rate_steps <= num_steps


def test_placeholder_checkpoint_gives_a_warning_whose_setting_can_be_parsed():
    (warning,) = warnings_of(train(fine_tune_checkpoint="PATH_TO_BE_CONFIGURED/ckpt-0"))
    assert "train.fine_tune_checkpoint is PATH_TO_BE_CONFIGURED/ckpt-0" in warning
    assert "--set 'train.fine_tune_checkpoint=\"\"'" in placeholder_sentence("x")
    assert parse_set('train.fine_tune_checkpoint=""').data == {"train": {"fine_tune_checkpoint": ""}}
