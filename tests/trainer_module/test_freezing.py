import logging
from dataclasses import replace

import keras
import pytest

from detloom.schemas.config import Train
from detloom.schemas.errors import InputError
from detloom.trainer_module.freezing import choose_trained
from detloom.trainer_module.gradients import scale_bias_gradients


@pytest.fixture(scope="module")
def network():
    image = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(2, 3, name="Conv1", use_bias=False)(image)
    x = keras.layers.BatchNormalization(name="bn_Conv1")(x)
    x = keras.layers.Conv2D(2, 1, name="neck_lateral_3")(x)
    return keras.Model(image, keras.layers.Conv2D(4, 1, name="head_offsets")(x))


def trained(network, tiny_config, names=None, **settings):
    return set(choose_trained(replace(tiny_config.train, **settings), network, names).by_path)


ALL = {"backbone/Conv1/kernel", "backbone/bn_Conv1/gamma", "backbone/bn_Conv1/beta"}
ALL |= {f"{layer}/{variable}" for layer in ("neck/lateral_3", "head/offsets") for variable in ("kernel", "bias")}


def test_without_patterns_everything_trains_but_moving_statistics(network, tiny_config):
    assert trained(network, tiny_config) == ALL


def test_freezing_comes_after_choosing(network, tiny_config):
    found = trained(network, tiny_config, update_trainable_variables=("Conv1", "head"), freeze_variables=("kernel",))
    assert found == {"backbone/bn_Conv1/gamma", "backbone/bn_Conv1/beta", "head/offsets/bias"}


def test_the_lists_search_and_the_expression_matches_from_the_start(network, tiny_config):
    assert trained(network, tiny_config, freeze_variables=("bias",)) == {p for p in ALL if not p.endswith("bias")}
    with pytest.raises(InputError, match=r"train\.var_freeze_expr: got 'bias'"):
        trained(network, tiny_config, var_freeze_expr="bias")
    assert trained(network, tiny_config, var_freeze_expr="(backbone|neck)") == {p for p in ALL if p.startswith("head")}


def test_a_layer_may_be_called_by_its_own_name_or_another_systems(network, tiny_config):
    assert trained(network, tiny_config, freeze_variables=("^neck_lateral_3/",)) == {p for p in ALL if "neck" not in p}
    names = {path: ("model/_feature_extractor/x",) for path in ALL if path.startswith("backbone")}
    found = trained(network, tiny_config, names, freeze_variables=("_feature_extractor",))
    assert found == {path for path in ALL if not path.startswith("backbone")}


def test_what_our_paths_are_called_is_not_looked_for_in_other_systems_names(network, tiny_config):
    names = {"backbone/Conv1/kernel": ("model/_feature_extractor/classification_backbone/offsets",)}
    assert trained(network, tiny_config, names, update_trainable_variables=("offsets",)) == {
        "head/offsets/kernel",
        "head/offsets/bias",
    }
    without_backbone = {path for path in ALL if not path.startswith("backbone")}
    assert trained(network, tiny_config, names, update_trainable_variables=("^(?!backbone/)",)) == without_backbone


def test_what_is_found_in_other_names_alone_is_logged(network, tiny_config, caplog):
    names = {path: (f"model/_box_predictor/{path}",) for path in ALL if path.startswith("head")}
    with caplog.at_level(logging.INFO, "detloom"):
        trained(network, tiny_config, names, freeze_variables=("box",))
    assert "'box' is found in no path, but in 2 other names, such as model/_box_predictor/head" in caplog.text


def test_moving_statistics_are_no_trainable_variables(network, tiny_config):
    with pytest.raises(InputError, match="'moving_mean', which is found in no trainable variable's name"):
        trained(network, tiny_config, freeze_variables=("moving_mean",))


def test_a_pattern_that_is_found_nowhere_is_refused_with_the_names_here(network, tiny_config):
    with pytest.raises(InputError, match=r"freeze_variables: got 'FeatureExtractor'.*\^\(backbone\|neck\)/ here"):
        trained(network, tiny_config, freeze_variables=("FeatureExtractor",))


def test_freezing_everything_is_refused(network, tiny_config):
    with pytest.raises(InputError, match="leave no variable to train"):
        trained(network, tiny_config, freeze_variables=(".*",))


def test_the_log_counts_by_part(network, tiny_config):
    found = choose_trained(replace(tiny_config.train, freeze_variables=("^backbone",)), network)
    # Conv1 has 3 * 3 * 3 * 2 = 54 weights, batch norm 2 + 2
    assert found.sentence().startswith("Trained: backbone 0 of 3 variables (0 of 58 parameters), neck 2 of 2")


def test_only_gradients_of_biases_are_multiplied(network):
    variables = network.get_layer("neck_lateral_3").weights
    assert scale_bias_gradients([1.0, 1.0], variables, 2.0) == [1.0, 2.0]
    assert scale_bias_gradients([1.0, 1.0], variables, 1.0) == [1.0, 1.0]


def test_a_pattern_that_is_no_regular_expression_is_refused(tiny_config):
    with pytest.raises(InputError, match=r"freeze_variables: got '\(' \(.*\), allowed: a regular expression"):
        Train(num_steps=1, optimizer=tiny_config.train.optimizer, freeze_variables=("(",))
