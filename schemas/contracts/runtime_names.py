"""Names of the runtimes of exported models."""

from typing import Literal, get_args

RuntimeName = Literal["auto", "tensorflow", "onnxruntime", "openvino"]
"""What runs a model; "auto" is the fastest that the model's files and the machine allow."""

RUNTIME_NAMES: tuple[RuntimeName, ...] = get_args(RuntimeName)
