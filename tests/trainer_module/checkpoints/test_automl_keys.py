from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import Ssd
from detloom.schemas.presets import find_preset
from detloom.trainer_module.checkpoints.automl_keys import automl_values, automl_variables, is_training_state
from detloom.trainer_module.checkpoints.restore import find_trained, plan_restore
from detloom.trainer_module.checkpoints.restore_report import format_report
from detloom.trainer_module.ssd import SsdDetector, build_ssd


@pytest.fixture(scope="module")
def config() -> Ssd:
    return find_preset("efficientdet_d0").config.model


@pytest.fixture(scope="module")
def network(config) -> keras.Model:
    return build_ssd(config, 90)


@pytest.fixture(scope="module")
def folder(reference_dir) -> Path:
    return reference_dir / "automl_efficientdet_d0"


@pytest.mark.parametrize("half_pixel_centers", [False, True])
def test_the_report_says_where_pictures_are_sampled_otherwise_than_in_its_training(
    folder, config, network, half_pixel_centers
):
    resizer = replace(config.image_resizer, half_pixel_centers=half_pixel_centers)
    label_map = LabelMap.from_names([f"class {i}" for i in range(90)])
    detector = SsdDetector(replace(config, image_resizer=resizer), label_map, network, tf.zeros([0, 4]))
    train = replace(find_preset("efficientdet_d0").config.train, fine_tune_checkpoint=str(folder / "model"))
    report = plan_restore(train, detector, find_trained(train, detector)).report
    assert (report.refusal, report.mode) == ("", "full")
    sentence = "set model.image_resizer.half_pixel_centers to true"
    assert (sentence in report.note) == (sentence in format_report(report)) == (not half_pixel_centers)


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


@pytest.mark.parametrize("shape", [(24,), (64, 24), (810,), ()])  # 6 anchors, and 9 of other things than boxes
def test_what_does_not_fit_the_anchors_stays_as_it_is(config, network, shape):
    value = np.ones(shape)
    assert automl_variables(config, network)["head_offsets/bias"].transform(value) is value


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
