from dataclasses import replace

import pytest

from detloom.schemas.config import Train, TrainEvalConfig
from detloom.schemas.config_checks import placeholder_sentence, scaled_learning_rates, warnings_before_run
from detloom.schemas.optimizer_config import (
    AdamOptimizer,
    ConstantLearningRate,
    CosineDecayLearningRate,
    EfficientDetStepwiseLearningRate,
    ExponentialDecayLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    MomentumOptimizer,
    Optimizer,
)
from detloom.schemas.overrides import parse_set
from detloom.schemas.presets import find_preset, list_presets

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


def test_a_smaller_batch_names_the_rates_in_proportion():
    # 8 / 128 = 1 / 16: 0.08 / 16 = 0.005, 0.02 / 16 = 0.00125
    (warning,) = warnings_of(train(batch_size=8, learning_rate_batch_size=128))
    assert warning == (
        "train.batch_size is 8, but the learning rate was written for 128; "
        "in proportion to the batch size it would be: "
        "--set train.optimizer.learning_rate.learning_rate_base=0.005 "
        "--set train.optimizer.learning_rate.warmup_learning_rate=0.00125 "
        "(or --set train.scale_learning_rate=true; or, if the rate is meant, --set train.learning_rate_batch_size=8)."
    )


def test_the_batch_size_that_the_rate_was_written_for_gives_no_warning():
    assert warnings_of(train(learning_rate_batch_size=128)) == ()


def test_adaptive_optimizers_scale_with_the_square_root():
    # 32 / 128 = 1 / 4, its root 1 / 2: 0.002 / 2 = 0.001
    adam = AdamOptimizer(learning_rate=ConstantLearningRate(learning_rate=0.002))
    config = train(adam, batch_size=32, learning_rate_batch_size=128)
    assert scaled_learning_rates(config) == {"train.optimizer.learning_rate.learning_rate": pytest.approx(0.001)}
    assert "with the square root of the batch size" in warnings_of(config)[0]


def test_each_jump_of_a_manual_schedule_is_named():
    schedule = (LearningRateStep(step=10, learning_rate=0.1), LearningRateStep(step=20, learning_rate=0.01))
    rate = ManualStepLearningRate(initial_learning_rate=0.4, schedule=schedule)
    config = train(MomentumOptimizer(learning_rate=rate), batch_size=64, learning_rate_batch_size=128)
    assert scaled_learning_rates(config) == {
        "train.optimizer.learning_rate.initial_learning_rate": 0.2,
        "train.optimizer.learning_rate.schedule[0].learning_rate": 0.05,
        "train.optimizer.learning_rate.schedule[1].learning_rate": 0.005,
    }


def test_a_rate_of_0_is_not_named():
    rate = ExponentialDecayLearningRate(initial_learning_rate=0.4, burnin_learning_rate=0.0)
    config = train(MomentumOptimizer(learning_rate=rate), batch_size=64, learning_rate_batch_size=128)
    assert list(scaled_learning_rates(config)) == ["train.optimizer.learning_rate.initial_learning_rate"]


def test_the_scaled_rates_make_a_valid_configuration():
    """The cosine refuses a warm-up above its base, so that both have to be named."""
    scaled = scaled_learning_rates(train(batch_size=8, learning_rate_batch_size=128))
    fields = {path.rpartition(".")[2]: rate for path, rate in scaled.items()}
    assert replace(COSINE, **fields).learning_rate_base == 0.005


def test_training_that_ends_within_the_warm_up_is_warned_of():
    warnings = warnings_of(train(num_steps=100))
    assert warnings[0] == (
        "train.num_steps is 100: training ends within the warm-up (train.optimizer.learning_rate.warmup_steps 100); "
        "--set train.optimizer.learning_rate.warmup_steps=10 would be a tenth."
    )


def test_training_that_ends_within_the_burn_in_is_warned_of():
    rate = ExponentialDecayLearningRate(burnin_steps=2000)
    assert "burnin_steps 2000" in warnings_of(train(MomentumOptimizer(learning_rate=rate)))[0]


def test_manual_steps_without_warm_up_have_none():
    rate = ManualStepLearningRate(schedule=(LearningRateStep(step=2000),))
    assert warnings_of(train(MomentumOptimizer(learning_rate=rate))) == ()
    assert "schedule[0].step 2000" in warnings_of(train(MomentumOptimizer(learning_rate=replace(rate, warmup=True))))[0]


def test_a_cosine_longer_than_training_is_warned_of():
    assert warnings_of(train(num_steps=500)) == (
        "train.optimizer.learning_rate.total_steps is 1000, but train.num_steps is 500: training ends before the rate "
        "is down; --set train.optimizer.learning_rate.total_steps=500.",
    )


def test_a_cosine_shorter_than_training_is_warned_of():
    assert "training ends with a rate of 0 from step 1000 on" in warnings_of(train(num_steps=2000))[0]


def test_a_schedule_without_a_length_is_not_compared():
    rate = EfficientDetStepwiseLearningRate(first_drop_step=2000, second_drop_step=2500)
    assert warnings_of(train(MomentumOptimizer(learning_rate=rate))) == ()


def test_the_zoos_placeholder_gets_its_own_sentence():
    (warning,) = warnings_of(train(fine_tune_checkpoint="PATH_TO_BE_CONFIGURED/ckpt-0"))
    assert "PATH_TO_BE_CONFIGURED/ckpt-0, the detection zoo's placeholder" in warning


def test_the_setting_that_the_placeholders_sentence_names_can_be_parsed():
    setting = parse_set('train.fine_tune_checkpoint=""')
    assert setting.data == {"train": {"fine_tune_checkpoint": ""}}
    assert "--set 'train.fine_tune_checkpoint=\"\"'" in placeholder_sentence("x")


def test_paths_of_the_data_need_no_warning():
    config: TrainEvalConfig = find_preset("efficientdet_d0").config
    reader = replace(config.train_input, input_path=("PATH_TO_BE_CONFIGURED/train.tfrecord",))
    assert warnings_before_run(replace(config, train_input=reader)) == ()
