from dataclasses import replace

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.load_config import apply_layer, build_config, load_tree
from detloom.schemas.model.config import content_hash
from detloom.schemas.odapi.pipeline_config import format_pipeline_config
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.overrides import Located, merge, parse_set
from detloom.schemas.reading.typed_dict import to_canonical_json

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"  # its learning rate was written for batches of 128


def load(*settings, source=PRESET, folder=None):
    tree, _ = load_tree(source, folder)
    for text in settings:
        tree = apply_layer(tree, parse_set(text))
    return build_config(tree)


@pytest.fixture
def load_here(tmp_path):
    return lambda *settings, source=PRESET: load(*settings, source=source, folder=tmp_path)


def test_preset_pipeline_config_and_json_are_equivalent(tmp_path, load_here):
    config = find_preset(PRESET).config
    (tmp_path / "pipeline.config").write_text(format_pipeline_config(config))
    (tmp_path / "config.json").write_text(to_canonical_json(config))
    assert load_here() == load_here(source="pipeline.config") == load_here(source="config.json") == config


def test_hash_depends_on_content_only(load_here):
    config = load_here("train.batch_size=64")
    assert content_hash(config) != content_hash(load_here())
    assert content_hash(config) == content_hash(replace(config, train=replace(config.train)))


@pytest.mark.parametrize(
    ("setting", "written_for"),
    [
        ("train.batch_size=4", 128),
        ("train.optimizer.learning_rate.learning_rate_base=0.04", None),
        ("train.optimizer.learning_rate.warmup_steps=10", 128),  # leaves the rate as it is
        ("train.optimizer.learning_rate={type: CosineDecayLearningRate, total_steps: 1500}", 128),  # the same type
    ],
)
def test_a_new_rate_clears_its_batch_size_and_a_new_batch_size_keeps_it(load_here, setting, written_for):
    assert load_here("train.batch_size=8", setting).train.learning_rate_batch_size == written_for
    assert load_here("train.batch_size=8").train.learning_rate_batch_size == 128
    assert load_here("train.batch_size=128") == load_here()


RATE = "train.optimizer.learning_rate.learning_rate_base"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.batchsize=8", r"^--set train\.batchsize: unknown key, allowed: .*'batch_size'\?$"),
        ("train.batch_size=0", r"^--set train\.batch_size: got 0, allowed: 1 or more"),
        # the coarsest level, not the finest
        ("model.anchor_generator.max_level=99", r"max_level: got 99, allowed: 3 \(min_level\) to 9"),
        ("model.feature_extractor.neck.max_level=99", r"max_level: got 99, allowed: 3 \(min_level\) to 9"),
        (
            "model.anchor_generator.aspect_ratios=[0]",
            r"aspect_ratios: got \[0\.0\], allowed: at least one, all above 0",
        ),
        (  # both contradicting settings are located
            f"{RATE}=0.01",
            r"^preset .*warmup_learning_rate: got 0\.026666, allowed: 0 to learning_rate_base \(0\.01\)\. "
            r"\(.*learning_rate_base: --set .*learning_rate_base\)$",
        ),
    ],
)
def test_a_wrong_setting_is_located(load_here, setting, message):
    with pytest.raises(InputError, match=message):
        load_here(setting)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"config\.json:\d+: ") for text in ("{", "[" * 100_000, "\x00")),
        ("[1]", r"config\.json:1: got \[1\], allowed: a mapping"),
        ('{"train": [1]}', r"config\.json:1: key 'model' is missing"),
    ],
)
def test_invalid_json_is_rejected_with_its_line(tmp_path, load_here, text, message):
    (tmp_path / "config.json").write_text(text)
    for settings in ((), ("train.batch_size=8",)):
        with pytest.raises(InputError, match=message):
            load_here(*settings, source="config.json")


def test_schedule_of_a_preset_follows_num_steps_unless_it_is_written(tmp_path):
    def rate(*texts):
        over = merge(Located({}, str), *map(parse_set, texts))
        tree, _ = load_tree(PRESET, tmp_path, above=over)
        return build_config(apply_layer(tree, over)).train.optimizer.learning_rate

    key = "train.optimizer.learning_rate"
    written = find_preset(PRESET).config.train.optimizer.learning_rate
    assert (written.total_steps, written.warmup_steps) == (50_000, 1000)
    fitted = replace(written, total_steps=2000, warmup_steps=40)  # 2,000 of 50,000 steps: 4 %
    assert rate() == rate("train.num_steps=50000") == written
    assert rate("train.num_steps=2000") == fitted
    assert rate("train.num_steps=2000", f"{key}.warmup_steps=1000") == replace(fitted, warmup_steps=1000)
    assert rate("train.num_steps=2000", f"{key}.total_steps=50000") == replace(fitted, total_steps=50_000)


def test_pipeline_config_keeps_its_schedule(tmp_path):
    config = find_preset(PRESET).config
    (tmp_path / "pipeline.config").write_text(format_pipeline_config(config))
    over = parse_set("train.num_steps=2000")
    tree, _ = load_tree("pipeline.config", tmp_path, above=over)
    assert build_config(apply_layer(tree, over)).train.optimizer == config.train.optimizer


def test_preset_keeps_a_schedule_that_does_not_fit(tmp_path):
    over, name = parse_set("train.num_steps=1"), "centernet_resnet101_v1_fpn_512x512"
    tree, _ = load_tree(name, tmp_path, above=over)
    assert build_config(tree).train.optimizer == find_preset(name).config.train.optimizer
