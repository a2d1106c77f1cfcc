from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model_config import Ssd
from detloom.schemas.presets import find_preset
from detloom.trainer_module.anchors import build_anchors
from detloom.trainer_module.checkpoints.automl_keys import automl_values, automl_variables, is_training_state
from detloom.trainer_module.ssd import build_ssd

CELLS = {3: 64 * 64, 4: 32 * 32, 5: 16 * 16, 6: 8 * 8, 7: 4 * 4}  # places of each level in 512 pixels
BOX_FACTORS = [10, 10, 5, 5]


@pytest.fixture(scope="module")
def config() -> Ssd:
    return find_preset("efficientdet_d0").config.model


@pytest.fixture(scope="module")
def network(config) -> keras.Model:
    return build_ssd(config, 90)


@pytest.fixture(scope="module")
def folder(reference_dir) -> Path:
    return reference_dir / "automl_efficientdet_d0"


def by_level(values: np.ndarray) -> dict[int, np.ndarray]:
    """[B, A, depth] of all levels in google/automl's order: of its anchors at one place, scale before aspect ratio."""
    levels, start = {}, 0
    for level, cells in CELLS.items():
        part = values[:, start : start + 9 * cells]
        start += 9 * cells
        levels[level] = np.swapaxes(part.reshape(len(part), cells, 3, 3, -1), 2, 3)
    return levels


def test_anchors_are_equal_in_another_order(folder, config):
    anchors = (
        build_anchors(config.anchor_generator, (512, 512), [(512 >> level, 512 >> level) for level in CELLS])[None]
        * 512
    )
    theirs = np.concatenate([level.reshape(-1, 4) for level in by_level(anchors).values()])
    with np.load(folder / "anchors.npz") as file:
        np.testing.assert_allclose(theirs[::5], file["boxes_yxyx_px_stride5"], atol=1e-4)


@pytest.mark.parametrize(("use_moving_average", "file"), [(False, "outputs_raw.npz"), (True, "outputs_ema.npz")])
def test_outputs_are_the_references(folder, config, network, use_moving_average, file):
    reader = tf.train.load_checkpoint(str(folder / "model"))
    stored = set(reader.get_variable_to_shape_map())
    sources = automl_variables(config, network)
    values = automl_values(sources, reader.get_tensor, stored, use_moving_average=use_moving_average)
    variables = {f"{layer.name}/{v.name}": v for layer in network.layers for v in layer.weights}
    assert set(values) == set(variables)
    for name, value in values.items():
        variables[name].assign(value)
    outputs = network(np.load(folder / "preprocessed.npz")["preprocessed"], training=False)
    boxes = by_level(outputs["offsets_BA4"].numpy() / BOX_FACTORS)
    classes = by_level(outputs["class_logits_BAC"].numpy())
    with np.load(folder / file) as expected:
        for kind, ours, stride in (("box", boxes, 3), ("class", classes, 11)):
            for level in CELLS:
                theirs = expected[f"{kind}_level{level}_stride{stride}"]
                np.testing.assert_allclose(ours[level].ravel()[::stride], theirs, rtol=0, atol=1e-3 * theirs.std())


def test_every_variable_of_a_checkpoint_is_used_or_of_its_training(folder, config, network):
    stored = set(tf.train.load_checkpoint(str(folder / "model")).get_variable_to_shape_map())
    used = {name for source in automl_variables(config, network).values() for name in source.names}
    assert used <= stored
    assert {name for name in stored if not is_training_state(name)} == used


def test_a_value_whose_sources_are_not_all_there_is_left_out(config, network):
    sources = automl_variables(config, network)
    stored = {"fpn_cells/cell_0/fnode0/WSM", "box_net/box-0/bias", "box_net/box-0/bias/ExponentialMovingAverage"}
    read = {name: np.array(len(name), np.float32) for name in stored}
    values = automl_values(sources, read.__getitem__, stored, use_moving_average=True)
    assert values == {"head_box_conv_0/bias": len("box_net/box-0/bias/ExponentialMovingAverage")}


def test_channels_of_boxes_are_reordered_and_scaled(config, network):
    # Nine anchors of four numbers, 0 to 35. Ours after the first is aspect ratio 0 of scale 1: theirs is number 3.
    ours = automl_variables(config, network)["head_offsets/bias"].transform(np.arange(36.0))
    assert ours[:8].tolist() == [0, 1 * 10, 2 * 5, 3 * 5, 12 * 10, 13 * 10, 14 * 5, 15 * 5]


def test_weights_of_a_node_are_gathered(config, network):
    source = automl_variables(config, network)["neck_1_up_4_combine/bifpn_combine_weights"]
    assert source.names == tuple(f"fpn_cells/cell_0/fnode4/WSM{suffix}" for suffix in ("", "_1", "_2"))
    assert source.transform(*map(np.float32, (1, 2, 3))).tolist() == [[1], [2], [3]]


def test_a_configuration_that_means_something_else_is_refused(config):
    nothing = keras.Model()
    with pytest.raises(InputError, match=r"model\.add_background_class: got true, .* needs false"):
        automl_variables(replace(config, add_background_class=True), nothing)
    larger = find_preset("efficientdet_d1").config.model
    with pytest.raises(InputError, match=r"features_of_last_blocks: got false, .* needs true with efficientnet-b1"):
        automl_variables(larger, nothing)
    other = find_preset("ssd_mobilenet_v2_320x320").config.model
    with pytest.raises(InputError, match=r"model\.feature_extractor\.neck: got ExtraFeatureLayers"):
        automl_variables(other, nothing)
