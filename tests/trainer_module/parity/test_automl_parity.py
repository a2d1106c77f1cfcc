"""EfficientDet-D0 against google/automl's, in the table beside the others; errors of boxes and classes are in units of
each tensor's standard deviation, because theirs are large (10 to 20)."""

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.detectors.ssd.automl_keys import automl_sources
from detloom.trainer_module.weights.restore import find_trained, restore
from detloom.trainer_module.weights.stored_weights import automl_values

CELLS = {3: 64 * 64, 4: 32 * 32, 5: 16 * 16, 6: 8 * 8, 7: 4 * 4}  # places of each level in 512 pixels
BOX_FACTORS = [10, 10, 5, 5]
MODEL, SOURCE = "automl_efficientdet_d0 ‡", "whole"


@pytest.fixture(scope="module")
def folder(reference_dir) -> Path:
    return reference_dir / "automl_efficientdet_d0"


@pytest.fixture(scope="module")
def detector() -> Detector:
    config = find_preset("efficientdet_d0").config.model
    config = replace(config, image_resizer=replace(config.image_resizer, half_pixel_centers=True), num_classes=90)
    return build_detector(config, LabelMap.from_names(str(each) for each in range(90)))


def restore_averages(detector: Detector, path: str) -> None:
    """Restore as in training."""
    train = replace(
        find_preset("efficientdet_d0").config.train, fine_tune_checkpoint=path, fine_tune_checkpoint_type="full"
    )
    report = restore(train, detector, find_trained(train, detector))
    assert report.share == 1.0


def assign_raw(detector: Detector, path: str) -> None:
    """The weights beside the averages, which no released model uses."""
    reader = tf.train.load_checkpoint(path)
    stored = set(reader.get_variable_to_shape_map())
    sources = automl_sources(detector.config, detector.network)
    values = automl_values(sources, reader.get_tensor, stored, use_moving_average=False)
    variables = {f"{layer.name}/{v.name}": v for layer in detector.network.layers for v in layer.weights}
    assert set(values) == set(variables)
    for name, value in values.items():
        variables[name].assign(value)


def by_level(values: np.ndarray) -> dict[int, np.ndarray]:
    """[B, A, depth] of all levels in google/automl's order: of its anchors at one place, scale before aspect ratio."""
    levels, start = {}, 0
    for level, cells in CELLS.items():
        part = values[:, start : start + 9 * cells]
        start += 9 * cells
        levels[level] = np.swapaxes(part.reshape(len(part), cells, 3, 3, -1), 2, 3)
    return levels


def test_preprocessing_matches_reference(folder, detector, record_of):
    images, _ = family_of(detector.config).preprocessing.prepare(
        tf.constant(np.load(folder.parent / "input_images_uint8.npy"))
    )
    error = float(np.abs(images - np.load(folder / "preprocessed.npz")["preprocessed"]).max())
    record_of(MODEL, SOURCE, "preprocessed", error)
    assert error < 2e-3


def test_anchors_match_reference_in_another_order(folder, detector, record_of):
    anchors = by_level(detector.anchors_yxyx_rel_A4.numpy()[None] * 512)
    theirs = np.concatenate([level.reshape(-1, 4) for level in anchors.values()])
    with np.load(folder / "anchors.npz") as file:
        error = np.abs(theirs[::5] - file["boxes_yxyx_px_stride5"]).max() / 512
    record_of(MODEL, SOURCE, "anchors", error)
    assert error < 1e-6


@pytest.mark.parametrize(("weights", "load"), [("raw", assign_raw), ("ema", restore_averages)])
def test_outputs_match_reference(weights, load, folder, detector, record_of):
    load(detector, str(folder / "model"))
    images = np.load(folder / "preprocessed.npz")["preprocessed"]
    outputs = detector.network(images, training=False)
    boxes = by_level(outputs["offsets_BA4"].numpy() / BOX_FACTORS)
    classes = by_level(outputs["class_logits_BAC"].numpy())
    for kind, ours, stride in (("box", boxes, 3), ("class", classes, 11)):
        column = "boxes, inference" if kind == "box" else "classes, inference"
        with np.load(folder / f"outputs_{weights}.npz") as stored:
            for level in CELLS:
                theirs = stored[f"{kind}_level{level}_stride{stride}"]
                error = np.abs(ours[level].ravel()[::stride] - theirs).max() / theirs.std()
                record_of(MODEL, SOURCE, column, error)
                assert error < 1e-3
    keras.backend.clear_session()
