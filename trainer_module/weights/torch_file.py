"""Read the arrays of a PyTorch file in its old format (`torch.save` before PyTorch 1.6), without PyTorch.

The format is five pickles (magic number, version, system, names and tensors, keys of storages), then each storage: its
number of values as int64, and the values. Nothing is unpickled: the few operations that `torch.save` writes for a
dictionary of tensors are interpreted here; any other is refused, so that no code of a file can run.
"""

import io
import math
import pickletools
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.errors import InputError

_MAGIC_NUMBER, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # of torch/serialization.py
_ZIP_MAGIC = b"PK\x03\x04"  # the format since PyTorch 1.6
_MAX_BYTES = 2 << 30  # as for Keras files; the largest EfficientNet-Lite has 0.05 GiB
_MAX_OPERATIONS = 1_000_000  # in all pickles of a file; EfficientNet-Lite0 has 11,325
_MAX_DIMENSIONS = 8  # a kernel has 4
_MAX_CAUSE = 300  # characters of a message that can contain names of the file
_STORAGE_TYPES = {
    "torch FloatStorage": "<f4",
    "torch DoubleStorage": "<f8",
    "torch HalfStorage": "<f2",
    "torch LongStorage": "<i8",
    "torch IntStorage": "<i4",
}
_TENSOR, _DICTIONARY = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
_GLOBALS = (*_STORAGE_TYPES, _TENSOR, _DICTIONARY)
_CONSTANTS = ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_torch_file(path: str) -> dict[str, np.ndarray]:
    """Return the arrays by name, as views of the file's content.

    Raises:
        InputError: if it cannot be read, or is not a dictionary of tensors in the old format.
    """
    try:
        num_bytes = tf.io.gfile.stat(path).length
        if num_bytes > _MAX_BYTES:
            raise ValueError(f"it has {num_bytes} bytes, allowed: {_MAX_BYTES}")
        with tf.io.gfile.GFile(path, "rb") as opened:
            return _parse(opened.read())
    except (tf.errors.OpError, ValueError) as error:
        cause = " ".join(str(error).split())[:_MAX_CAUSE]
        raise InputError(
            f"train.fine_tune_checkpoint: {path} cannot be read ({cause}); allowed: a dictionary of tensors in "
            "PyTorch's old format, which torch.save writes with _use_new_zipfile_serialization=False."
        ) from None


def _parse(content: bytes) -> dict[str, np.ndarray]:
    if content.startswith(_ZIP_MAGIC):
        raise ValueError("it is in PyTorch's zip format")
    reader = _PickleReader(io.BytesIO(content))
    if reader.read() != _MAGIC_NUMBER or reader.read() != _VERSION:
        raise ValueError("it does not begin with PyTorch's magic number and version")
    system = reader.read()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError("it was not written on a little-endian machine")
    tensors, keys = reader.read(), reader.read()
    if not isinstance(tensors, dict) or not all(isinstance(tensor, _Tensor) for tensor in tensors.values()):
        raise ValueError("it does not contain a dictionary of tensors")
    values = _read_storages(content, reader.position, keys, reader.storages)
    return {name: _view(tensor, values[tensor.storage.key]) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class _Global:
    """The name of a function or class in the pickle."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """A block of numbers after the pickles."""

    key: str
    dtype: np.dtype[Any]
    num_values: int


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage; offset and strides are in values."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = _Global("(mark)")


@dataclass
class _PickleReader:
    """Reads the pickles of a file, one after the other; values are numbers, texts, tuples, lists and dictionaries."""

    file: io.BytesIO
    storages: dict[str, _Storage] = field(default_factory=dict)
    num_operations: int = 0

    @property
    def position(self) -> int:
        return self.file.tell()

    def read(self) -> Any:
        """Return the value of the next pickle.

        Raises:
            ValueError: if it is cut off, or has an operation that `torch.save` does not write.
        """
        stack: list[Any] = []
        memo: dict[int, Any] = {}
        try:
            for opcode, argument, _ in pickletools.genops(self.file):
                self.num_operations += 1
                if self.num_operations > _MAX_OPERATIONS:
                    raise ValueError(f"it has more than {_MAX_OPERATIONS} operations")
                if opcode.name == "STOP":
                    if len(stack) != 1:
                        raise IndexError
                    return stack[0]
                self._execute(opcode.name, argument, stack, memo)
        except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError("its pickle is damaged") from error
        raise ValueError("its pickle has no end")

    def _execute(self, name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
        match name:
            case "PROTO":
                pass
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[name]())
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(_pop(stack, _TUPLES.get(name))))
            case "APPEND" | "APPENDS":
                items = _pop(stack, 1 if name == "APPEND" else None)
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                pairs = _pop(stack, 2 if name == "SETITEM" else None)
                _set_items(stack[-1], pairs)
            case "GLOBAL":
                if argument not in _GLOBALS:
                    raise ValueError(f"it refers to {argument.replace(' ', '.')!r}, which is not a part of a tensor")
                stack.append(_Global(argument))
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(function, arguments))
            case "BUILD":  # the version numbers of the modules, an attribute of the dictionary
                stack.pop()
                if not isinstance(stack[-1], dict):
                    raise ValueError("it sets attributes of an object")
            case _ if name in _CONSTANTS:
                stack.append(argument)
            case _:
                raise ValueError(f"it has the operation {name}, which torch.save does not write for tensors")

    def _storage(self, identity: Any) -> _Storage:
        if not isinstance(identity, tuple) or len(identity) != 6:
            raise ValueError("it has a storage of an unknown kind")
        kind, storage_type, key, _device, num_values, view = identity
        known = isinstance(storage_type, _Global) and storage_type.name in _STORAGE_TYPES
        if kind != "storage" or not known or not isinstance(key, str) or not _is_count(num_values) or view is not None:
            raise ValueError("it has a storage of an unknown kind")
        storage = _Storage(key, np.dtype(_STORAGE_TYPES[storage_type.name]), num_values)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"it describes the storage {key!r} in two ways")
        return storage


def _pop(stack: list[Any], count: int | None) -> list[Any]:
    """Remove and return the last `count` values, or without it those after the last mark."""
    if count is None:
        start = next((i for i in range(len(stack) - 1, -1, -1) if stack[i] is _MARK), None)
        if start is None:
            raise IndexError
        values = stack[start + 1 :]
        del stack[start:]
        return values
    if len(stack) < count:
        raise IndexError
    values = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return values


def _set_items(target: Any, pairs: list[Any]) -> None:
    names, values = pairs[::2], pairs[1::2]
    if not isinstance(target, dict) or len(names) != len(values) or not all(isinstance(name, str) for name in names):
        raise ValueError("it has a dictionary whose keys are not names")
    target.update(zip(names, values, strict=True))


def _call(function: Any, arguments: Any) -> Any:
    if function == _Global(_DICTIONARY) and arguments == ():
        return {}
    if function != _Global(_TENSOR) or not isinstance(arguments, tuple) or len(arguments) not in (6, 7):
        raise ValueError("it calls a function that does not make a tensor")
    storage, offset, shape, strides = arguments[:4]
    counts = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(map(_is_count, counts)) or len(shape) != len(strides):
        raise ValueError("it has a tensor that is not a view of a storage")
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"it has a tensor of {len(shape)} dimensions, allowed: {_MAX_DIMENSIONS}")
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    if math.prod(shape) > storage.num_values or (math.prod(shape) and last >= storage.num_values):
        raise ValueError(f"it has a tensor of shape {list(shape)} in a storage of {storage.num_values} values")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_BYTES


def _read_storages(content: bytes, position: int, keys: Any, storages: dict[str, _Storage]) -> dict[str, np.ndarray]:
    """Return the values of each storage, which follow the pickles in the order of `keys`."""
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(storages):
        raise ValueError("its list of storages does not match its tensors")
    values = {}
    for key in keys:
        storage = storages[key]
        end = position + 8 + storage.num_values * storage.dtype.itemsize
        if end > len(content):
            raise ValueError(f"it ends after {len(content)} bytes, inside the storage {key!r}")
        (stored,) = struct.unpack_from("<q", content, position)
        if stored != storage.num_values:
            raise ValueError(f"the storage {key!r} has {stored} values instead of {storage.num_values}")
        values[key] = np.frombuffer(content, storage.dtype, storage.num_values, position + 8)
        position = end
    if position != len(content):
        raise ValueError(f"it has {len(content) - position} bytes after its last storage")
    return values


def _view(tensor: _Tensor, values: np.ndarray) -> np.ndarray:
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, values.dtype)
    strides = [stride * values.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides, writeable=False)
