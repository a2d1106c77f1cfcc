import logging

import pytest

from detloom.schemas.errors import InputError
from detloom.trainer_module.inference import choose_runtime


@pytest.mark.parametrize(
    ("has_file", "has_gpu", "installed", "chosen"),
    [
        (True, False, ("onnxruntime",), "onnxruntime"),
        (True, True, ("openvino", "onnxruntime"), "tensorflow"),
        (False, False, ("openvino", "onnxruntime"), "tensorflow"),
    ],
)
def test_auto_takes_the_fastest_and_says_which(has_file, has_gpu, installed, chosen, tmp_path, monkeypatch, caplog):
    loaded = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(choose_runtime, "_is_installed", installed.__contains__)
    monkeypatch.setattr(choose_runtime, "has_nvidia_gpu", lambda: has_gpu)
    for module, kind in (("saved_model_runtime", "SavedModelRuntime"), ("choose_runtime", "OnnxFileRuntime")):
        monkeypatch.setattr(
            f"detloom.trainer_module.inference.{module}.{kind}", lambda folder, name="tensorflow": loaded.append(name)
        )
    if has_file:
        (tmp_path / "model.onnx").touch()
    with caplog.at_level(logging.INFO, "detloom"):
        choose_runtime.load_runtime(tmp_path)
    assert loaded == [chosen]
    assert caplog.messages == [f"Runtime: {chosen}."]


def test_a_named_runtime_that_cannot_run_is_refused_with_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(choose_runtime, "_is_installed", lambda name: False)
    with pytest.raises(InputError, match="pip install openvino"):
        choose_runtime.load_runtime(tmp_path, "openvino")
    monkeypatch.setattr(choose_runtime, "_is_installed", lambda name: True)
    with pytest.raises(InputError, match=r"has no model\.onnx, which onnxruntime needs"):
        choose_runtime.load_runtime(tmp_path, "onnxruntime")
