from dataclasses import replace

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import RandAugment, RandomAdjustContrast, RandomAdjustHue, RandomHorizontalFlip
from detloom.schemas.model.crop_augmentations import RandomCropImage, SsdRandomCrop, SsdRandomCropOperation
from detloom.schemas.model.optimizers import (
    CosineDecayLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    MomentumOptimizer,
)
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.run_file.tuner import SearchRange, TunerSettings, apply_hyperparameters, search_space, shortened

RATE = CosineDecayLearningRate(learning_rate_base=0.04, total_steps=1000, warmup_learning_rate=0.01, warmup_steps=100)


def config_with(rate=RATE, augmentations=(), num_steps=1000):
    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    train = replace(
        config.train,
        optimizer=MomentumOptimizer(learning_rate=rate),
        augmentations=augmentations,
        num_steps=num_steps,
        last_steps_without_mixing=200,
    )
    return replace(config, train=train, eval=replace(config.eval, evaluate_every=250))


def test_values_are_set_at_their_key_paths():
    config = config_with(augmentations=(RandomHorizontalFlip(), RandomAdjustHue()))
    values = {"model.anchor_generator.anchor_scale": 3.0, "train.augmentations[1].max_delta": 0.1, "train.seed": 7.0}
    changed = apply_hyperparameters(config, values)
    assert changed.model.anchor_generator.anchor_scale == 3.0
    assert changed.train.augmentations == (RandomHorizontalFlip(), RandomAdjustHue(max_delta=0.1))
    assert changed.train.seed == 7  # KerasTuner returns all choices as floats
    assert apply_hyperparameters(config, {}) == config


def test_learning_rate_factor_scales_all_rates():
    changed = apply_hyperparameters(config_with(), {"learning_rate_factor": 0.5}).train.optimizer.learning_rate
    assert changed == replace(RATE, learning_rate_base=0.02, warmup_learning_rate=0.005)
    jumps = (LearningRateStep(step=10, learning_rate=0.4), LearningRateStep(step=20, learning_rate=0.2))
    config = config_with(ManualStepLearningRate(schedule=jumps, initial_learning_rate=0.8))
    changed = apply_hyperparameters(config, {"learning_rate_factor": 2.0}).train.optimizer.learning_rate
    assert changed.initial_learning_rate == 1.6
    assert [jump.learning_rate for jump in changed.schedule] == [0.8, 0.4]


def test_strength_scales_probabilities_and_amounts():
    augmentations = (
        RandomHorizontalFlip(probability=0.5),
        RandomAdjustContrast(min_delta=0.8, max_delta=1.2),
        RandomAdjustHue(max_delta=0.02),
        RandomCropImage(random_coef=0.25),
    )
    config = config_with(augmentations=augmentations)
    flip, contrast, hue, crop = apply_hyperparameters(config, {"augmentation_strength": 0.5}).train.augmentations
    assert flip.probability == 0.25
    assert (contrast.min_delta, contrast.max_delta) == pytest.approx((0.9, 1.1))
    assert hue.max_delta == pytest.approx(0.01)
    assert crop.random_coef == pytest.approx(0.625)  # share of cropped images: 0.75 before, 0.375 now
    strong = apply_hyperparameters(config, {"augmentation_strength": 3.0}).train.augmentations
    assert (strong[0].probability, strong[3].random_coef) == (1.0, 0.0)
    assert apply_hyperparameters(config, {"augmentation_strength": 1.0}) == config
    off = apply_hyperparameters(config, {"augmentation_strength": 0.0}).train.augmentations
    assert (off[0].probability, off[1].min_delta, off[2].max_delta, off[3].random_coef) == (0.0, 1.0, 0.0, 1.0)


def test_strength_scales_each_crop_operation():
    kinds = tuple(
        SsdRandomCropOperation(min_aspect_ratio=0.5, max_aspect_ratio=2.0, max_area=1.0, random_coef=chance)
        for chance in (0.15, 0.0)
    )
    config = config_with(augmentations=(SsdRandomCrop(operations=kinds), RandAugment(magnitude=20.0)))
    crop, policy = apply_hyperparameters(config, {"augmentation_strength": 0.5}).train.augmentations
    assert [kind.random_coef for kind in crop.operations] == pytest.approx([0.575, 0.5])  # 1 - 0.85 / 2, 1 - 1 / 2
    assert policy.magnitude == 10.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train.learning_rat": 1.0}, r"^hyperparameter train\.learning_rat: .*no such key"),
        ({"model.anchor_generator.anchor_scale": -1.0}, r"^hyperparameter model\.anchor.*got -1\.0, allowed: above 0"),
        ({"train.seed": 1.5}, r"^hyperparameter train\.seed: .*got 1\.5, allowed: a whole number"),
    ],
)
def test_invalid_value_is_named(values, message):
    with pytest.raises(InputError, match=message):
        apply_hyperparameters(config_with(), values)


def test_shortened_run_scales_its_schedule():
    short = shortened(config_with(), 100)
    assert short.train.num_steps == 100
    assert short.train.last_steps_without_mixing == 20
    assert short.eval.evaluate_every == 25
    assert short.train.optimizer.learning_rate == replace(RATE, total_steps=100, warmup_steps=10)
    assert shortened(config_with(), 1000) == config_with()


def test_too_few_steps_for_the_schedule_are_rejected():
    jumps = (LearningRateStep(step=500), LearningRateStep(step=510))
    with pytest.raises(InputError, match=r"^10 steps .* 1000: .*schedule: got steps"):
        shortened(config_with(ManualStepLearningRate(schedule=jumps)), 10)


def test_default_space_is_rate_augmentation_and_anchors():
    config = config_with(augmentations=(RandomHorizontalFlip(),))
    expected = (
        SearchRange(key="learning_rate_factor", min=0.2, max=5.0, log=True),
        SearchRange(key="augmentation_strength", min=0.0, max=1.5),
        SearchRange(key="model.anchor_generator.anchor_scale", min=2.0, max=6.0),  # the preset's is 4
    )
    assert search_space(TunerSettings(), config) == expected
    assert [search.key for search in search_space(TunerSettings(), config_with())] == [expected[0].key, expected[2].key]


def test_ends_of_ranges_are_checked_and_whole_numbers_need_choices():
    choices = (SearchRange(key="train.batch_size", choices=(2.0, 4.0)),)
    assert search_space(TunerSettings(space=choices), config_with()) == choices
    for key, ends, message in (
        ("train.optimizer.momentum", (0.5, 1.5), r"hyperparameter train\.optimizer\.momentum"),
        ("train.batch_size", (2, 4), r"^train\.batch_size: .*2\.6\d*, .* Set choices instead\.$"),
    ):
        space = (SearchRange(key=key, min=ends[0], max=ends[1]),)
        with pytest.raises(InputError, match=message):
            search_space(TunerSettings(space=space), config_with())


def test_ends_of_ranges_are_checked_together():
    rate = "train.optimizer.learning_rate"
    space = (
        SearchRange(key=f"{rate}.warmup_learning_rate", min=0.001, max=0.02),
        SearchRange(key=f"{rate}.learning_rate_base", choices=(0.01, 0.04, 0.05)),
    )
    message = rf"^a trial could have {rate}\.warmup_learning_rate 0\.02, .*base 0\.01: "
    with pytest.raises(InputError, match=message):
        search_space(TunerSettings(space=space), config_with())
    assert search_space(TunerSettings(space=space[:1]), config_with()) == space[:1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": ""}, r"^key: must not be empty"),
        ({"key": "a", "min": 1.0}, r"^max: is missing.*choices"),
        ({"key": "a", "min": 1.0, "max": 1.0}, r"^min: got 1\.0, allowed: less than max"),
        ({"key": "a", "min": 0.0, "max": 1.0, "log": True}, r"^min: got 0\.0, allowed: above 0 with log"),
        ({"key": "a", "min": 0.0, "choices": (1.0,)}, r"^choices: got both"),
        ({"key": "a", "choices": (1.0, 1.0)}, r"^choices: .*1.0 appears twice"),
    ],
)
def test_invalid_range_is_rejected(settings, message):
    with pytest.raises(InputError, match=message):
        SearchRange(**settings)


def test_duplicate_keys_and_a_seed_that_the_algorithms_cannot_use_are_rejected():
    assert TunerSettings(seed=2**32 - 2)
    with pytest.raises(InputError, match=r"^seed: got 4294967295, allowed: 0 up to 2\*\*32 - 1"):
        TunerSettings(seed=2**32 - 1)
    with pytest.raises(InputError, match=r"^space: .*'train.seed' appears twice"):
        TunerSettings(space=(SearchRange(key="train.seed", choices=(1.0,)),) * 2)
