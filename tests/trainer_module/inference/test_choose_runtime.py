import importlib.util
import json
import logging

import pytest

from detloom.schemas.contracts.detections import MANIFEST_FILE
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference import choose_runtime

UNKNOWN = "no evaluation of this model is recorded"
LEFT_OUT = "model.onnx was not evaluated, and is not used"


@pytest.mark.parametrize(
    ("has_file", "has_gpu", "push", "message"),
    [
        (True, False, None, f"Runtime: onnxruntime; {UNKNOWN}."),
        (True, False, {"blessing": {}}, f"Runtime: onnxruntime; {UNKNOWN}."),
        (True, False, {"blessing": {"forms": ["saved_model", "onnx"]}}, "Runtime: onnxruntime."),
        (True, False, {"blessing": {"forms": ["saved_model"]}}, f"Runtime: tensorflow; {LEFT_OUT}."),
        (True, False, {"blessing": {"blessed": True}}, f"Runtime: tensorflow; {LEFT_OUT}."),
        (True, True, None, "Runtime: tensorflow."),
        (False, False, None, "Runtime: tensorflow."),
    ],
)
def test_auto_takes_a_form_that_was_evaluated_and_says_which(
    has_file, has_gpu, push, message, tmp_path, monkeypatch, caplog
):
    loaded = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(choose_runtime, "has_nvidia_gpu", lambda: has_gpu)
    for module, kind in (("saved_model_runtime", "SavedModelRuntime"), ("choose_runtime", "OnnxFileRuntime")):
        monkeypatch.setattr(
            f"detloom.trainer_module.inference.{module}.{kind}", lambda folder, name="tensorflow": loaded.append(name)
        )
    if has_file:
        (tmp_path / "model.onnx").touch()
    if push is not None:
        (tmp_path / MANIFEST_FILE).parent.mkdir()
        (tmp_path / MANIFEST_FILE).write_text(json.dumps({"push": push, "files": {}}))
    with caplog.at_level(logging.INFO, "detloom"):
        choose_runtime.load_runtime(tmp_path)
    assert caplog.messages == [message]
    assert message.removeprefix("Runtime: ").startswith(loaded[0])


def test_a_named_runtime_that_cannot_run_is_refused_with_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"has no model\.onnx, which onnxruntime needs"):
        choose_runtime.load_runtime(tmp_path, "onnxruntime")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install openvino"):
        choose_runtime.load_runtime(tmp_path, "openvino")
