"""Check that an ONNX file is self-contained, before a runtime reads it.

Runtimes read tensors from other files where the model says so. ONNX Runtime 1.23 does not check where these files are
(microsoft/onnxruntime#26776, #27430).
"""

import contextlib

import onnx
from google.protobuf.message import DecodeError, Message

_ALLOWED_DOMAINS = ("", "ai.onnx")  # the operators of ONNX itself; others may be code of the runtime's user


def check_onnx_file(content: bytes) -> None:
    """Check for tensors in other files, and for operators that are not those of ONNX.

    Raises:
        ValueError: with the reason.
    """
    model = onnx.ModelProto()
    with contextlib.suppress(DecodeError):
        if model.ParseFromString(content) == len(content):  # the parser may stop early without an error
            return _check_message(model)
    raise ValueError("it is truncated, damaged, nested too deeply, or not an ONNX file")


def _check_message(message: Message) -> None:
    """Check a message and those in it; protobuf has limited their depth to 100."""
    if isinstance(message, onnx.TensorProto) and message.external_data:
        raise ValueError("it has a tensor whose values are in another file")
    if isinstance(message, onnx.NodeProto | onnx.FunctionProto) and message.domain not in _ALLOWED_DOMAINS:
        raise ValueError(f"it has an operator of the domain {message.domain[:40]!r}, allowed: those of ONNX")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if isinstance(value, Message) else value:
                _check_message(each)
