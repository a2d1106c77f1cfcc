import csv
import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import Ssd
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.one_stage.automl_keys import automl_sources
from detloom.trainer_module.detectors.one_stage.detector import SsdDetector
from detloom.trainer_module.detectors.one_stage.family import SsdFamily
from detloom.trainer_module.detectors.one_stage.network import build_ssd
from detloom.trainer_module.weights.restore import find_trained, plan_restore
from detloom.trainer_module.weights.restore_report import format_report
from detloom.trainer_module.weights.stored_weights import automl_values, is_training_state


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
def test_report_notes_a_different_image_sampling(folder, config, network, half_pixel_centers):
    resizer = replace(config.image_resizer, half_pixel_centers=half_pixel_centers)
    label_map = LabelMap.from_names([f"class {i}" for i in range(90)])
    detector = SsdDetector(SsdFamily(replace(config, image_resizer=resizer)), label_map, network, tf.zeros([0, 4]))
    train = replace(find_preset("efficientdet_d0").config.train, fine_tune_checkpoint=str(folder / "model"))
    report = plan_restore(train, detector, find_trained(train, detector)).report
    assert (report.refusal, report.mode) == ("", "full")
    sentence = "set model.image_resizer.half_pixel_centers to true"
    assert (sentence in report.note) == (sentence in format_report(report)) == (not half_pixel_centers)


def test_every_variable_of_a_checkpoint_is_used_or_training_state(folder, config, network):
    stored = set(tf.train.load_checkpoint(str(folder / "model")).get_variable_to_shape_map())
    used = {name for source in automl_sources(config, network).values() for name in source.names}
    assert used <= stored
    assert {name for name in stored if not is_training_state(name)} == used


@pytest.mark.slow
def test_every_key_of_lite0_is_used_with_its_shape(reference_dir):
    lite = find_preset("efficientdet_lite0").config.model
    network = build_ssd(
        replace(lite, image_resizer=replace(lite.image_resizer, min_dimension=64, max_dimension=64)), 90
    )
    with (reference_dir / "automl_efficientdet_lite0/checkpoint_keys.tsv").open(encoding="utf-8") as file:
        stored = {key: tuple(json.loads(shape)) for key, shape in csv.reader(file, delimiter="\t")}
    weights = {key: shape for key, shape in stored.items() if not is_training_state(key)}
    ours = {f"{layer.name}/{v.name}": tuple(v.shape) for layer in network.layers for v in layer.weights}
    sources = automl_sources(lite, network)
    assert sources.keys() == ours.keys()
    assert {source.names[0]: ours[name] for name, source in sources.items()} == weights


def test_value_with_missing_sources_is_left_out(config, network):
    sources = automl_sources(config, network)
    stored = {"fpn_cells/cell_0/fnode0/WSM", "box_net/box-0/bias", "box_net/box-0/bias/ExponentialMovingAverage"}
    read = {name: np.array(len(name), np.float32) for name in stored}
    values = automl_values(sources, read.__getitem__, stored)
    assert values == {"head_box_conv_0/bias": len("box_net/box-0/bias/ExponentialMovingAverage")}


def test_channels_of_boxes_are_reordered_and_scaled(config, network):
    # Nine anchors of four values, 0 to 35. Our second anchor is aspect ratio 0 of scale 1, which is their number 3.
    ours = automl_sources(config, network)["head_offsets/bias"].transform(np.arange(36.0))
    assert ours[:8].tolist() == [0, 1 * 10, 2 * 5, 3 * 5, 12 * 10, 13 * 10, 14 * 5, 15 * 5]


@pytest.mark.parametrize("shape", [(24,), (64, 24), (810,), ()])  # 6 anchors; 9 anchors with other values than boxes
def test_value_that_does_not_match_the_anchors_is_unchanged(config, network, shape):
    value = np.ones(shape)
    assert automl_sources(config, network)["head_offsets/bias"].transform(value) is value


def test_scalar_weights_of_a_node_are_combined(config, network):
    source = automl_sources(config, network)["neck_1_up_4_combine/bifpn_combine_weights"]
    assert source.names == tuple(f"fpn_cells/cell_0/fnode4/WSM{suffix}" for suffix in ("", "_1", "_2"))
    assert source.transform(*map(np.float32, (1, 2, 3))).tolist() == [[1], [2], [3]]


def test_configuration_without_an_equivalent_is_refused(config):
    nothing = keras.Model()
    with pytest.raises(InputError, match=r"model\.add_background_class: got true, .* false"):
        automl_sources(replace(config, add_background_class=True), nothing)
    larger = find_preset("efficientdet_d1").config.model
    with pytest.raises(InputError, match=r"features_of_last_blocks: got false, .* true with efficientnet-b1"):
        automl_sources(larger, nothing)
    other = find_preset("ssd_mobilenet_v2_320x320").config.model
    with pytest.raises(InputError, match=r"model\.feature_extractor\.neck: got ExtraFeatureLayers"):
        automl_sources(other, nothing)
