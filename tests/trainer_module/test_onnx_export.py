import json

import pytest

from detloom.schemas import detections as names
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module import onnx_export
from detloom.trainer_module.detector import build_detector

LABEL_MAP = LabelMap.from_names(["cat", "dog"])


@pytest.fixture
def with_packages():
    for package in ("tf2onnx", "onnxruntime"):
        pytest.importorskip(package, reason="pip install 'detloom[onnx]'")


def test_the_file_gives_what_the_model_in_memory_gives(with_packages, tiny_config, tmp_path):
    path = onnx_export.export_onnx(build_detector(tiny_config.model, LABEL_MAP), tiny_config, tmp_path / "onnx")
    assert sorted(each.name for each in path.parent.iterdir()) == ["contract.json", "label_map.pbtxt", "model.onnx"]
    contract = json.loads((path.parent / "contract.json").read_text())
    assert sorted(contract["outputs"]) == sorted(names.RAW_OUTPUT_NAMES)


def test_center_net_answers_with_detections(with_packages, center_net_configs, tiny_config, tmp_path):
    model = center_net_configs["mobilenet_v2"]
    path = onnx_export.export_onnx(build_detector(model, LABEL_MAP), tiny_config, tmp_path / "onnx")
    assert sorted(json.loads((path.parent / "contract.json").read_text())["outputs"]) == sorted(names.OUTPUT_NAMES)


def test_a_file_that_answers_otherwise_is_not_written(with_packages, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_TOLERANCE", -1.0)
    with pytest.raises(RuntimeError, match="differs from the model in memory by"):
        onnx_export.export_onnx(build_detector(tiny_config.model, LABEL_MAP), tiny_config, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named_before_anything_is_done(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"export.onnx: needs tf2onnx and onnxruntime .*detloom\[onnx\]"):
        onnx_export.check_onnx()
