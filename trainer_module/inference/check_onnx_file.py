"""Check that an ONNX file is self-contained, before a runtime reads it. Needs no package of ONNX.

Runtimes read tensors from other files where the model says so. ONNX Runtime 1.23 does not check where these files are
(microsoft/onnxruntime#26776, #27430). Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from collections.abc import Iterator

_MAX_DEPTH = 50  # of messages; protobuf itself stops at 100
_CHILDREN = {  # messages in a message, by field; their names end with "Proto"
    "Model": {7: "Graph", 20: "TrainingInfo", 25: "Function"},
    "TrainingInfo": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {},
}
_DOMAIN = {"Node": 7, "Function": 10}  # the field with the domain of an operator
_ALLOWED_DOMAINS = (b"", b"ai.onnx")  # the operators of ONNX itself; others may be code of the runtime's user
_VARINT, _LENGTH = 0, 2  # wire types of protocol buffers: a number; the length of what follows
_NUM_BYTES = {1: 8, 5: 4}  # the wire types of a fixed length
_EXTERNAL_DATA = 13  # the field of a tensor with the file of its values


def check_onnx_file(content: bytes) -> None:
    """Check for tensors in other files, and for operators that are not those of ONNX.

    Raises:
        ValueError: with the reason.
    """
    _check_message(memoryview(content), "Model", _MAX_DEPTH)


def _check_message(content: memoryview, kind: str, depth: int) -> None:
    if not depth:
        raise ValueError("its messages are nested too deeply")
    for field, value in _fields(content):
        if kind == "Tensor" and field == _EXTERNAL_DATA:
            raise ValueError("it has a tensor whose values are in another file")
        if field == _DOMAIN.get(kind) and bytes(value) not in _ALLOWED_DOMAINS:
            raise ValueError(f"it has an operator of the domain {bytes(value)[:40]!r}, allowed: those of ONNX")
        if field in _CHILDREN[kind]:
            _check_message(value, _CHILDREN[kind][field], depth - 1)


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each field of a message; that of a varint is empty."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        wire_type, num_bytes = key & 7, 0
        if wire_type in _NUM_BYTES:
            num_bytes = _NUM_BYTES[wire_type]
        elif wire_type in (_VARINT, _LENGTH):
            value, at = _read_varint(content, at)
            num_bytes = value if wire_type == _LENGTH else 0
        if key >> 32 or wire_type not in (*_NUM_BYTES, _VARINT, _LENGTH):  # parsers drop the bits above
            raise ValueError("it is damaged, or not an ONNX file")
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
