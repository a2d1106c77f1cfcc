import json

import pytest
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export import onnx_export

LABEL_MAP = LabelMap.from_names(["cat", "dog"])


@pytest.fixture
def with_packages():
    for package in ("tf2onnx", "onnxruntime"):
        pytest.importorskip(package, reason="pip install '.[onnx]'")


def test_the_file_equals_the_model_in_memory(with_packages, tiny_config, tmp_path):
    path = onnx_export.export_onnx(build_detector(tiny_config.model, LABEL_MAP), tmp_path / "onnx")
    assert sorted(each.name for each in path.parent.iterdir()) == ["contract.json", "label_map.pbtxt", "model.onnx"]
    contract = json.loads((path.parent / "contract.json").read_text())
    assert sorted(contract["outputs"]) == sorted(names.RAW_OUTPUT_NAMES)


def test_center_net_returns_detections(with_packages, center_net_configs, tiny_config, tmp_path):
    model = center_net_configs["mobilenet_v2"]
    path = onnx_export.export_onnx(build_detector(model, LABEL_MAP), tmp_path / "onnx")
    assert sorted(json.loads((path.parent / "contract.json").read_text())["outputs"]) == sorted(names.OUTPUT_NAMES)


def test_a_file_with_other_outputs_is_not_written(with_packages, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_TOLERANCE", -1.0)
    with pytest.raises(RuntimeError, match="differs from the model in memory by"):
        onnx_export.export_onnx(build_detector(tiny_config.model, LABEL_MAP), tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


def test_outputs_that_are_not_finite_are_not_compared(with_packages, tiny_config, tmp_path, caplog):
    detector = build_detector(tiny_config.model, LABEL_MAP)
    bias = detector.network.get_layer("head_offsets").bias
    bias.assign(tf.fill(bias.shape, float("inf")))
    assert onnx_export.export_onnx(detector, tmp_path / "onnx").is_file()
    assert "is not finite, because the training diverged" in caplog.text


def test_missing_packages_are_named_first(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"export.onnx: needs tf2onnx and onnxruntime .*\.\[onnx\]"):
        onnx_export.check_onnx()
