"""Names of the runtimes of exported models, and of the forms of a model that they run."""

from typing import Literal, get_args

ModelRuntime = Literal["tensorflow", "onnxruntime", "openvino"]
RuntimeName = Literal["auto", ModelRuntime]
"""What runs a model; `load_runtime` chooses for "auto"."""

RUNTIME_NAMES: tuple[RuntimeName, ...] = get_args(RuntimeName)

FORM_SAVED_MODEL, FORM_ONNX = "saved_model", "onnx"
FORM_TITLES = {FORM_SAVED_MODEL: "SavedModel", FORM_ONNX: "model.onnx"}


def form_of(runtime: ModelRuntime) -> str:
    """Return the form that a runtime runs; both runtimes of ONNX run the same file."""
    return FORM_SAVED_MODEL if runtime == "tensorflow" else FORM_ONNX
