"""Check that an ONNX file is self-contained, before a runtime reads it. Needs no package of ONNX.

Runtimes read tensors from other files where the model says so. ONNX Runtime 1.23 does not check where these files are
(microsoft/onnxruntime#26776, #27430). Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from collections.abc import Iterator

_MAX_DEPTH = 50  # of messages; protobuf itself stops at 100
_CHILDREN = {  # messages in a message, by field
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
_DOMAIN = {"NodeProto": 7, "FunctionProto": 10}  # the field with the domain of an operator
_ALLOWED_DOMAINS = (b"", b"ai.onnx")  # the operators of ONNX itself; others may be code of the runtime's user
_EXTERNAL_DATA = 13  # the field of TensorProto with the file of its values


def check_onnx_file(content: bytes) -> None:
    """Check for tensors in other files, and for operators that are not those of ONNX.

    Raises:
        ValueError: with the reason.
    """
    _check_message(memoryview(content), "ModelProto", _MAX_DEPTH)


def _check_message(content: memoryview, kind: str, depth: int) -> None:
    if not depth:
        raise ValueError("its messages are nested too deeply")
    for field, value in _fields(content):
        if kind == "TensorProto" and field == _EXTERNAL_DATA:
            raise ValueError("it has a tensor whose values are in another file")
        if field == _DOMAIN.get(kind) and bytes(value) not in _ALLOWED_DOMAINS:
            raise ValueError(f"it has an operator of the domain {bytes(value)[:40]!r}, allowed: those of ONNX")
        if field in _CHILDREN[kind]:
            _check_message(value, _CHILDREN[kind][field], depth - 1)


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each field of a message; the content of a number is empty."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        num_bytes = 0
        match key & 7:  # the wire type
            case 0:
                _, at = _read_varint(content, at)
            case 1:
                at += 8
            case 2:
                num_bytes, at = _read_varint(content, at)
            case 5:
                at += 4
            case _:
                raise ValueError("it is not an ONNX file, or damaged")
        if at + num_bytes > len(content):
            raise ValueError("it is truncated, or not an ONNX file")
        yield key >> 3, content[at : at + num_bytes]
        at += num_bytes


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """Return an integer of up to ten bytes, and the position behind it."""
    value = 0
    for number, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << (7 * number)
        if byte < 128:
            return value, at + number + 1
    raise ValueError("it is truncated, or not an ONNX file")
