"""Values between JSON and arrays, as TensorFlow Serving's REST interface has them. Without TensorFlow."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from detloom.components.example_gen.sources.json_values import show

_BYTES_KEY = "b64"
_BYTES_SUFFIX = "_bytes"  # outputs of that name are bytes; other texts are UTF-8
_JSON_TYPES: Mapping[str, set[type]] = {"int": {int}, "float": {int, float}, "bool": {bool}}
_KIND_WORDS = {
    "text": 'text, or bytes as {"b64": "..."}',
    "int": "whole numbers",
    "float": "numbers",
    "bool": "true and false",
}


class RequestError(Exception):
    """A request that is refused: the HTTP status, and a sentence for whoever sent it."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a signature.

    Attributes:
        dtype: object for text.
        shape: None for a dimension of any length; the whole is None where the rank is not known.
    """

    kind: Literal["text", "int", "float", "bool"]
    dtype: npt.DTypeLike
    shape: tuple[int | None, ...] | None


def is_bytes_object(value: Any) -> bool:
    """Whether it is JSON's way to say bytes: `{"b64": "..."}`."""
    return isinstance(value, dict) and value.keys() == {_BYTES_KEY}


def parse_tensor(value: Any, spec: TensorSpec, name: str) -> npt.NDArray[Any]:
    """The array of a JSON value; texts become bytes.

    Raises:
        RequestError: naming the input, for another type, shape or range than `spec` says.
    """
    # As objects first: numpy's own idea of a type would make numbers of texts, and texts as long as the longest one.
    try:
        array = np.array(value, dtype=object)
    except ValueError:
        raise _refuse_ragged(name) from None
    elements = array.ravel().tolist()
    types = set(map(type, elements))
    if list in types:
        raise _refuse_ragged(name)
    if spec.kind == "text":
        flat = np.empty(len(elements), dtype=object)
        flat[:] = [_parse_text(element, name) for element in elements]
        array = flat.reshape(array.shape)
    elif not types <= _JSON_TYPES[spec.kind]:
        wrong = next(element for element in elements if type(element) not in _JSON_TYPES[spec.kind])
        raise RequestError(f"input '{name}': got {show(wrong)}, allowed: {_KIND_WORDS[spec.kind]}.")
    else:
        array = _parse_numbers(array, elements, spec, name)
    if not _fits(array.shape, spec.shape):
        raise RequestError(f"input '{name}': got the shape {list(array.shape)}, allowed: {_say_shape(spec.shape)}.")
    return array


def format_tensor(array: npt.NDArray[Any], name: str) -> Any:
    """The JSON value; a float32 comes back as the same float32, since it is written with all its digits."""
    values = array.tolist()
    return _format_texts(values, name) if array.dtype == object else values


def _parse_text(element: Any, name: str) -> bytes:
    if is_bytes_object(element) and isinstance(element[_BYTES_KEY], str):
        try:
            return base64.b64decode(element[_BYTES_KEY], validate=True)
        except (binascii.Error, ValueError):  # ValueError: characters outside of ASCII
            raise RequestError(f"input '{name}': what stands under 'b64' is not base64.") from None
    if not isinstance(element, str):
        raise RequestError(f"input '{name}': got {show(element)}, allowed: {_KIND_WORDS['text']}.")
    try:
        return element.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
        raise RequestError(f"input '{name}': got text that is not UTF-8; send bytes as {{\"b64\": ...}}.") from None


def _parse_numbers(array: npt.NDArray[Any], elements: list[Any], spec: TensorSpec, name: str) -> npt.NDArray[Any]:
    if spec.kind == "int" and elements:
        range_ = np.iinfo(np.dtype(spec.dtype))
        low, high = min(elements), max(elements)
        if low < range_.min or high > range_.max:
            got = show(low if low < range_.min else high)
            raise RequestError(f"input '{name}': got {got}, allowed: {range_.min} to {range_.max}.")
    try:
        with np.errstate(over="ignore"):  # as TensorFlow Serving: what float32 cannot hold is infinite
            return array.astype(np.float64).astype(spec.dtype) if spec.kind == "float" else array.astype(spec.dtype)
    except OverflowError:
        raise RequestError(f"input '{name}': got a number that no float can hold.") from None


def _format_texts(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_format_texts(each, name) for each in value]
    if name.endswith(_BYTES_SUFFIX):
        return {_BYTES_KEY: base64.b64encode(value).decode("ascii")}
    return value.decode("utf-8", "replace")


def _refuse_ragged(name: str) -> RequestError:
    return RequestError(f"input '{name}': got lists of different lengths or depths, allowed: those of one tensor.")


def _fits(shape: tuple[int, ...], allowed: tuple[int | None, ...] | None) -> bool:
    if allowed is None:
        return True
    return len(shape) == len(allowed) and all(want in (None, got) for got, want in zip(shape, allowed, strict=True))


def _say_shape(shape: tuple[int | None, ...] | None) -> str:
    assert shape is not None, "an unknown rank fits every shape"
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"
