"""Write `config.pbtxt`, with which NVIDIA Triton reads a push folder as a model: `model.onnx` in the highest version.

Format: https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto. There is no `name`,
because Triton then uses that of the folder.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from detloom.components.pusher.destination import Destination
from detloom.schemas.contracts.detections import ONNX_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

CONFIG_FILE = "config.pbtxt"
_MAX_CONFIG_BYTES = 1 << 20
_FIRST_LINE = "# Written by detloom push. Later pushes replace this file unless it was changed. SHA-256 of the rest: "
_SETTINGS = f"""\
backend: "onnxruntime"
default_model_filename: "{ONNX_FILE}"
max_batch_size: 16  # as many images as a request to `detloom serve` may have
version_policy {{ latest {{ num_versions: 1 }} }}
dynamic_batching {{ }}  # of waiting requests whose images have one size
parameters {{ key: "enable_mem_pattern" value {{ string_value: "0" }} }}  # else memory grows with each new image size
"""
_TYPES = {1: "TYPE_FP32", 2: "TYPE_UINT8"}  # by TensorProto.DataType of ONNX
_LOGGER = logging.getLogger("detloom")


def format_triton_config(sources: Mapping[str, Path]) -> bytes | None:
    """Return the configuration for the ONNX file among the files of a model; None without one.

    Raises:
        InputError: it is not an ONNX file, or an input or output has another type than float32 or uint8.
    """
    if ONNX_FILE not in sources:
        return None
    path = sources[ONNX_FILE]
    try:
        graph = onnx.load(path, load_external_data=False).graph
        inputs = [f"input {_format_tensor(value)}\n" for value in graph.input]
        outputs = [f"output {_format_tensor(value)}\n" for value in graph.output]
    except Exception as error:  # protobuf's DecodeError derives from Exception
        raise InputError(f"{path}: is not an ONNX file of a detector ({error}). Export the model again.") from None
    return _sign("".join((_SETTINGS, *inputs, *outputs)).encode())


def _format_tensor(value: onnx.ValueInfoProto) -> str:
    """Format name, type and shape without the batch. Triton has no empty shape; a number per image is [1], reshaped."""
    tensor = value.type.tensor_type
    if tensor.elem_type not in _TYPES:
        raise ValueError(f"{value.name} is neither float32 nor uint8")
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim[1:]]
    shape = f"dims: {sizes}" if sizes else "dims: [1] reshape { shape: [] }"
    return f"{{ name: {json.dumps(value.name)} data_type: {_TYPES[tensor.elem_type]} {shape} }}"


def write_triton_config(destination: Destination, config: bytes | None, check_held: Callable[[], None]) -> None:
    """Replace `config.pbtxt` of a push folder, unless a person has changed it. A failure is only logged."""
    where = f"{redact(destination.address)}/{CONFIG_FILE}"
    try:
        present = destination.read(CONFIG_FILE, _MAX_CONFIG_BYTES)
        if config is None:
            if present is not None:
                _LOGGER.warning("%s: this version has no %s, so Triton cannot load it.", where, ONNX_FILE)
        elif present is not None and present != _sign(present.partition(b"\n")[2]):
            _LOGGER.info("%s: was changed by a person, so it stays as it is.", where)
        elif present != config:
            check_held()
            destination.write(CONFIG_FILE, config)
    except (OSError, InputError) as error:  # the push itself has succeeded
        _LOGGER.warning("%s: could not be written (%s); the next push writes it.", where, str(error).rstrip("."))


def _sign(rest: bytes) -> bytes:
    """Put a line before the others by which a change of them is recognized."""
    return f"{_FIRST_LINE}{hashlib.sha256(rest).hexdigest()}\n".encode() + rest
