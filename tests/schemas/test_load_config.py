import json
from dataclasses import replace

import pytest

from detloom.schemas.config import content_hash
from detloom.schemas.errors import InputError
from detloom.schemas.load_config import build_config, lay_over, load_tree
from detloom.schemas.overrides import parse_set
from detloom.schemas.pipeline_config import format_pipeline_config
from detloom.schemas.presets import find_preset
from detloom.schemas.typed_dict import to_canonical_json

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"  # its learning rate was written for batches of 128


def load(*settings, source=PRESET, folder=None):
    tree, _ = load_tree(source, folder)
    for text in settings:
        tree = lay_over(tree, parse_set(text))
    return build_config(tree)


@pytest.fixture
def load_here(tmp_path):
    return lambda *settings, source=PRESET: load(*settings, source=source, folder=tmp_path)


def test_a_preset_a_pipeline_config_and_a_json_say_the_same(tmp_path, load_here):
    config = find_preset(PRESET).config
    (tmp_path / "pipeline.config").write_text(format_pipeline_config(config))
    (tmp_path / "config.json").write_text(to_canonical_json(config))
    assert load_here() == load_here(source="pipeline.config") == load_here(source="config.json") == config


def test_the_hash_changes_with_the_content_alone(load_here):
    config = load_here("train.batch_size=64")
    assert content_hash(config) != content_hash(load_here())
    assert content_hash(config) == content_hash(replace(config, train=replace(config.train)))


def test_another_batch_size_keeps_what_the_learning_rate_was_written_for(load_here):
    assert load_here("train.batch_size=8").train.learning_rate_batch_size == 128
    assert load_here("train.batch_size=8", "train.batch_size=4").train.learning_rate_batch_size == 128


def test_a_learning_rate_that_is_set_is_for_the_batch_size_in_effect(load_here):
    rate = "train.optimizer.learning_rate.learning_rate_base=0.04"
    assert load_here("train.batch_size=8", rate).train.learning_rate_batch_size is None
    warmup = "train.optimizer.learning_rate.warmup_steps=10"  # leaves the rate as it is
    assert load_here("train.batch_size=8", warmup).train.learning_rate_batch_size == 128


def test_an_unknown_key_is_named_with_the_nearest(load_here):
    message = r"^--set train\.batchsize: train\.batchsize: unknown key, allowed: .* Did you mean 'batch_size'\?$"
    with pytest.raises(InputError, match=message):
        load_here("train.batchsize=8")


def test_a_value_out_of_range_names_its_setting(load_here):
    with pytest.raises(InputError, match=r"^--set train\.batch_size: train\.batch_size: got 0, allowed: 1 or more"):
        load_here("train.batch_size=0")


def test_an_unknown_preset_gets_the_nearest(load_here):
    with pytest.raises(InputError, match=r"got 'eficientdet_d0', allowed: .*Did you mean 'efficientdet_d0'\?"):
        load_here(source="eficientdet_d0")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\x00"])
def test_a_json_that_is_none_is_one_sentence(tmp_path, load_here, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json:\d+: "):
        load_here(source="config.json")


def test_a_json_that_is_no_config_is_one_sentence(tmp_path, load_here):
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match=r"config\.json:1: got \[1\], allowed: a mapping"):
        load_here(source="config.json")


def test_a_config_json_that_is_overridden_where_it_is_no_mapping_is_one_sentence(tmp_path, load_here):
    (tmp_path / "config.json").write_text('{"train": [1]}')
    with pytest.raises(InputError, match=r"config\.json:1: key 'model' is missing"):
        load_here("train.batch_size=8", source="config.json")


def test_a_learning_rate_whose_type_is_restated_is_the_same_rate(load_here):
    same = "train.optimizer.learning_rate={type: CosineDecayLearningRate, total_steps: 1500}"
    assert load_here("train.batch_size=8", same).train.learning_rate_batch_size == 128


def test_the_batch_size_that_the_rate_was_written_for_needs_no_word(load_here):
    assert load_here("train.batch_size=128") == load_here()


def test_two_settings_that_contradict_each_other_are_both_named(load_here):
    setting = "train.optimizer.learning_rate.learning_rate_base=0.01"
    message = (
        r"^preset .*warmup_learning_rate: got 0\.026666, allowed: 0 to learning_rate_base \(0\.01\)\. "
        r"\(.*learning_rate_base: --set .*learning_rate_base\)$"
    )
    with pytest.raises(InputError, match=message):
        load_here(setting)
