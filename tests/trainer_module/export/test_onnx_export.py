import numpy as np
import onnx
import pytest
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, parse_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export import onnx_export
from detloom.trainer_module.export import servable as servable_module
from detloom.trainer_module.export.onnx_graph import convert_to_onnx
from detloom.trainer_module.export.onnx_operations import HANDLERS
from detloom.trainer_module.export.servable import Servable

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
IMAGE = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), np.uint8)
SOFT = {
    "model.post_processing.batch_non_max_suppression.soft_nms_sigma": 0.5,
    "model.image_resizer": KeepAspectRatioResizer(min_dimension=48, max_dimension=64, pad_to_max_dimension=True),
}


@pytest.mark.parametrize("changes", [{}, SOFT])
def test_the_file_takes_images_of_any_size_and_returns_the_detections_of_the_saved_model(
    changes, tiny_config, changed, make_spread_detector, assert_onnx_file_detects, tmp_path
):
    config = changed(tiny_config, changes)
    detector = make_spread_detector(config.model, LABEL_MAP)
    assert_onnx_file_detects(detector, tmp_path / "model.onnx", Export(onnx=True, box_units="pixels"))
    (metadata,) = onnx.load(tmp_path / "model.onnx").metadata_props
    assert parse_label_map(metadata.value) == LABEL_MAP


@pytest.mark.slow
def test_center_net_with_other_settings(center_net_configs, assert_onnx_file_detects, tmp_path):
    detector = build_detector(center_net_configs["mobilenet_v2"], LABEL_MAP)
    assert_onnx_file_detects(detector, tmp_path / "model.onnx", Export())


def test_raw_outputs(tiny_config, tmp_path):
    servable = Servable(build_detector(tiny_config.model, LABEL_MAP), Export(onnx=True, onnx_outputs="raw"))
    onnx_export.export_onnx(servable, IMAGE, {}, tmp_path / "model.onnx")
    outputs = onnx.load(tmp_path / "model.onnx").graph.output
    assert sorted(output.name for output in outputs) == sorted(names.RAW_OUTPUT_NAMES)


def test_a_file_with_other_outputs_is_not_written(tiny_config, make_spread_detector, tmp_path, monkeypatch):
    servable = Servable(make_spread_detector(tiny_config.model, LABEL_MAP), Export(onnx=True))
    images = IMAGE
    expected = servable.to_relative(servable.from_images(tf.constant(images)), (64, 64))
    other = {**expected, names.BOXES: expected[names.BOXES] / 2}
    monkeypatch.setattr(onnx_export, "run", lambda session, images: other)
    with pytest.raises(RuntimeError, match=r"model\.onnx returns .* of the detections of the model in memory"):
        onnx_export.export_onnx(servable, images, expected, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_detections_that_a_small_change_of_the_image_changes_are_not_compared(
    tiny_config, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(servable_module, "_NOISE", 1.0)
    servable = Servable(build_detector(tiny_config.model, LABEL_MAP), Export(onnx=True))
    expected = servable.to_relative(servable.from_images(tf.constant(IMAGE)), (64, 64))
    first_half = {**expected, names.NUM_DETECTIONS: expected[names.NUM_DETECTIONS] // 2}
    monkeypatch.setattr(onnx_export, "run", lambda session, images: first_half)
    onnx_export.export_onnx(servable, IMAGE, expected, tmp_path / "model.onnx")
    assert "rounding changes the detections" in caplog.text


def test_raw_outputs_that_are_not_finite_are_not_compared(tiny_config, tmp_path, caplog):
    detector = build_detector(tiny_config.model, LABEL_MAP)
    bias = detector.network.get_layer("head_offsets").bias
    bias.assign(tf.fill(bias.shape, float("inf")))
    servable = Servable(detector, Export(onnx=True, onnx_outputs="raw"))
    onnx_export.export_onnx(servable, IMAGE, {}, tmp_path / "model.onnx")
    assert "is not finite, because the training diverged" in caplog.text


def test_an_operation_that_cannot_be_converted_is_named():
    function = tf.function(lambda x: {"y": tf.linalg.inv(x)}).get_concrete_function(tf.TensorSpec([1, 1, 2, 2]))
    with pytest.raises(InputError, match=r"export\.onnx: TensorFlow's operation MatrixInverse"):
        convert_to_onnx(function, "x", HANDLERS)
