"""The code of docs/adding_a_detector.md runs, and its detector is one."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.weights.own_checkpoint import write_weights
from detloom.trainer_module.weights.restore import find_trained, restore
from detloom.trainer_module.weights.variable_names import part_of, variables_by_path

PAGE = Path(__file__).parents[3] / "docs" / "adding_a_detector.md"
LABEL_MAP = LabelMap.from_names(["red", "green"])


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's code as a module; in a file, because AutoGraph reads the source of what it compiles."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path_factory.mktemp("page") / "cell_net_of_the_docs.py"
    file.write_text("\n\n".join(blocks), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[file.stem]


@pytest.fixture
def detector(page):
    tf.keras.utils.set_random_seed(0)
    return page.CellNetFamily(page.CellNet()).build(LABEL_MAP)


@pytest.fixture
def batch():
    """A red square in the upper left and nothing in the second image."""
    images = np.full((2, 96, 96, 3), -1, np.float32)
    images[0, 10:38, 10:38, 0] = 1
    return {
        "image": tf.constant(images),
        "boxes_yxyx_rel": tf.constant([[[10 / 96, 10 / 96, 38 / 96, 38 / 96], [0, 0, 0, 0]], [[0.0] * 4] * 2]),
        "class_indices": tf.constant([[0, -1], [-1, -1]]),
    }


def gradients(detector, batch):
    variables = detector.network.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.add_n(list(detector.losses(detector.forward(batch, training=True), batch).values()))
    return loss, tape.gradient(loss, variables)


def test_only_the_cell_of_the_centre_learns_the_box(detector, batch):
    losses = {
        name: float(value) for name, value in detector.losses(detector.forward(batch, training=True), batch).items()
    }
    assert set(losses) == set(detector.loss_names)
    outputs = detector.network(batch["image"])
    expected = np.abs(outputs["boxes_BA4"][0, 1 * 6 + 1] - np.array([0.25, 0.25, 28 / 96, 28 / 96])).sum()
    assert losses["box_loss"] == pytest.approx(expected, rel=1e-5)  # centre at 24 / 96: row 1, column 1 of 6 x 6


@pytest.mark.nightly
def test_it_learns_to_detect_the_object(detector, batch):
    optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(3e-3, 300))
    step = tf.function(lambda: gradients(detector, batch))
    for _ in range(300):
        _, slopes = step()
        optimizer.apply_gradients(zip(slopes, detector.network.trainable_variables, strict=True))
    found = detector.detect(batch["image"])
    assert found[names.NUM_DETECTIONS].numpy().tolist() == [1, 0]
    assert int(found[names.CLASSES][0, 0]) == 1
    np.testing.assert_allclose(found[names.BOXES][0, 0], [10 / 96, 10 / 96, 38 / 96, 38 / 96], atol=0.06)


@pytest.mark.nightly
def test_its_training_step_compiles_under_xla(detector, batch):
    eager, _ = gradients(detector, batch)
    compiled, _ = tf.function(lambda: gradients(detector, batch), jit_compile=True)()
    assert float(compiled) == pytest.approx(float(eager), rel=1e-5)


def test_its_parts_can_be_frozen_and_only_its_own_weights_are_restored(page, detector, tmp_path):
    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    write_weights(detector, config, tmp_path)
    train = replace(config.train, fine_tune_checkpoint=str(tmp_path), freeze_variables=("^backbone/",))
    other = page.CellNetFamily(page.CellNet()).build(LABEL_MAP)
    trained = find_trained(train, other)
    assert {part_of(path) for path in trained.by_path} == {"head"}
    report = restore(train, other, trained)
    assert (report.mode, report.share) == ("full", 1.0)
    for path, variable in variables_by_path(detector.network).items():
        np.testing.assert_array_equal(variables_by_path(other.network)[path], variable)
    foreign = tf.train.Checkpoint(
        model=tf.train.Checkpoint(_box_predictor=tf.train.Checkpoint(kernel=tf.Variable(1.0)))
    )
    for path in (foreign.write(str(tmp_path / "foreign")), "imagenet"):
        with pytest.raises(InputError, match=r"train\.fine_tune_checkpoint: .*"):
            restore(replace(train, fine_tune_checkpoint=path), other, trained)
