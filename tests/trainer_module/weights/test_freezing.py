import logging
from dataclasses import replace

import keras
import pytest

from detloom.schemas.errors import InputError
from detloom.trainer_module.training.gradients import scale_bias_gradients
from detloom.trainer_module.weights.freezing import choose_trained


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


def test_all_but_moving_statistics_train_without_patterns(network, tiny_config):
    assert trained(network, tiny_config) == ALL


def test_freezing_is_applied_after_selection(network, tiny_config):
    found = trained(network, tiny_config, update_trainable_variables=("Conv1", "head"), freeze_variables=("kernel",))
    assert found == {"backbone/bn_Conv1/gamma", "backbone/bn_Conv1/beta", "head/offsets/bias"}


def test_patterns_match_anywhere_unless_anchored(network, tiny_config):
    assert trained(network, tiny_config, freeze_variables=("bias",)) == {p for p in ALL if not p.endswith("bias")}
    with pytest.raises(InputError, match=r"train\.freeze_variables: got '\^\(\?:bias\)'"):
        trained(network, tiny_config, freeze_variables=("^(?:bias)",))
    heads = {path for path in ALL if path.startswith("head")}
    assert trained(network, tiny_config, freeze_variables=("^(?:(backbone|neck))",)) == heads


def test_patterns_may_use_keras_names_or_names_of_other_systems(network, tiny_config):
    assert trained(network, tiny_config, freeze_variables=("^neck_lateral_3/",)) == {p for p in ALL if "neck" not in p}
    names = {path: ("model/_feature_extractor/x",) for path in ALL if path.startswith("backbone")}
    found = trained(network, tiny_config, names, freeze_variables=("_feature_extractor",))
    assert found == {path for path in ALL if not path.startswith("backbone")}


def test_patterns_that_match_our_paths_ignore_other_names(network, tiny_config):
    names = {"backbone/Conv1/kernel": ("model/_feature_extractor/classification_backbone/offsets",)}
    assert trained(network, tiny_config, names, update_trainable_variables=("offsets",)) == {
        "head/offsets/kernel",
        "head/offsets/bias",
    }
    without_backbone = {path for path in ALL if not path.startswith("backbone")}
    assert trained(network, tiny_config, names, update_trainable_variables=("^(?!backbone/)",)) == without_backbone


def test_match_in_other_names_is_logged(network, tiny_config, caplog):
    names = {path: (f"model/_box_predictor/{path}",) for path in ALL if path.startswith("head")}
    with caplog.at_level(logging.INFO, "detloom"):
        trained(network, tiny_config, names, freeze_variables=("box",))
    assert "2 other names, such as model/_box_predictor/head" in caplog.text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("FeatureExtractor", r"freeze_variables: got 'FeatureExtractor'.* backbone/Conv1/kernel"),
        ("moving_mean", "'moving_mean'"),  # is not trainable
        (".*", "freeze_variables"),
        ("(", r"freeze_variables: '\('"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(network, tiny_config, pattern, message):
    with pytest.raises(InputError, match=message):
        trained(network, tiny_config, freeze_variables=(pattern,))


def test_log_counts_variables_by_part(network, tiny_config):
    found = choose_trained(replace(tiny_config.train, freeze_variables=("^backbone",)), network)
    # Conv1 has 3 * 3 * 3 * 2 = 54 weights, batch norm 2 + 2
    assert found.sentence().startswith("Trained: backbone 0 of 3 variables (0 of 58 parameters), neck 2 of 2")


def test_bias_factor_scales_only_gradients_of_biases(network):
    variables = network.get_layer("neck_lateral_3").weights
    assert scale_bias_gradients([1.0, 1.0], variables, 2.0) == [1.0, 2.0]
    assert scale_bias_gradients([1.0, 1.0], variables, 1.0) == [1.0, 1.0]
