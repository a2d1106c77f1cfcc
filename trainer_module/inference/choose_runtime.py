"""Choose the runtime of an exported model, and load it. Imports no TensorFlow unless it is chosen."""

import importlib.util
import logging
import os
from pathlib import Path

from detloom.schemas.contracts.detections import ONNX_FILE
from detloom.schemas.contracts.runtime_names import FORM_ONNX, ModelRuntime, RuntimeName
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.model_files import read_evaluated_forms
from detloom.trainer_module.inference.onnx_file_runtime import OnnxFileRuntime, RawOutputsError
from detloom.trainer_module.inference.runtime import ContractRuntime
from detloom.trainer_module.runtime.host_devices import has_nvidia_gpu

_LOGGER = logging.getLogger("detloom")


def load_runtime(model_dir: Path, runtime: RuntimeName = "auto") -> ContractRuntime:
    """Load a model from the folder of its SavedModel, which may contain `model.onnx`.

    Args:
        runtime: "auto" takes TensorFlow with a GPU of NVIDIA, or without an ONNX file that returns detections and was
            evaluated, if an evaluation is recorded; else ONNX Runtime. It logs which.

    Raises:
        InputError: the runtime is not installed, its file is missing, or the model cannot be loaded.
    """
    if runtime != "auto":
        return load_named_runtime(str(model_dir), runtime)
    name, remark = _choose(model_dir)
    try:
        loaded = load_named_runtime(str(model_dir), name)
    except RawOutputsError:
        name, remark, loaded = "tensorflow", "", load_named_runtime(str(model_dir), "tensorflow")
    _LOGGER.info("Runtime: %s%s.", name, remark)
    return loaded


def load_named_runtime(model_dir: str, name: ModelRuntime) -> ContractRuntime:
    """Load a model from the folder of its SavedModel, or from its address; see `load_runtime` for errors."""
    check_installed(name)
    if name == "tensorflow":
        from detloom.trainer_module.inference.saved_model_runtime import SavedModelRuntime

        return SavedModelRuntime(model_dir)
    return OnnxFileRuntime(model_dir, name)


def check_installed(name: ModelRuntime) -> None:
    """Raise InputError if the package of a runtime is not installed."""
    if importlib.util.find_spec(name) is None:
        raise InputError(f"runtime: {name} is not installed; run pip install {name}, or choose another runtime.")


def _choose(model_dir: Path) -> tuple[ModelRuntime, str]:
    """Return the runtime, and what the log says about the evaluation, as the end of a sentence."""
    has_gpu = has_nvidia_gpu() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    if has_gpu or not (model_dir / ONNX_FILE).is_file():
        return "tensorflow", ""
    forms = read_evaluated_forms(str(model_dir))
    if forms is not None and FORM_ONNX not in forms:
        return "tensorflow", f"; {ONNX_FILE} was not evaluated, and is not used"
    # OpenVINO takes longer for the loops of suppression.
    return "onnxruntime", "; no evaluation of this model is recorded" if forms is None else ""
