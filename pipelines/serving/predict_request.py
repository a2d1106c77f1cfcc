"""Parse the body of a `:predict` request and format the response, as in TensorFlow Serving's REST API.

Needs no TensorFlow.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from detloom.components.example_gen.sources.json_values import name_type, show
from detloom.schemas.contracts.detections import SIGNATURE_ENCODED

_BYTES_KEY = "b64"
_BYTES_SUFFIX = "_bytes"  # outputs with this suffix are bytes; other texts are UTF-8
_JSON_TYPES: Mapping[str, set[type]] = {"int": {int}, "float": {int, float}, "bool": {bool}}
_KIND_WORDS = {
    "text": 'text, or bytes as {"b64": "..."}',
    "int": "integers",
    "float": "numbers",
    "bool": "true or false",
}
DEFAULT_SIGNATURE = "serving_default"  # TensorFlow Serving's default
_IMAGE_REQUEST = f'{{"signature_name": "{SIGNATURE_ENCODED}", "instances": [{{"b64": "<base64 of the file>"}}]}}'
MAX_BATCH = 16  # all images of a request are in memory at once, and a few bytes can be a large image
Arrays = dict[str, npt.NDArray[Any]]


class RequestError(Exception):
    """A request is refused, with an HTTP status and a sentence for the client."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a signature.

    Attributes:
        dtype: object for text.
        shape: None for a dimension of any length; the shape itself is None if the rank is unknown.
    """

    kind: Literal["text", "int", "float", "bool"]
    dtype: npt.DTypeLike
    shape: tuple[int | None, ...] | None


def is_bytes_object(value: Any) -> bool:
    """Return True for bytes in JSON: `{"b64": "..."}`."""
    return isinstance(value, dict) and value.keys() == {_BYTES_KEY}


def parse_tensor(value: Any, spec: TensorSpec, name: str) -> npt.NDArray[Any]:
    """Convert a JSON value to an array; texts become bytes.

    Raises:
        RequestError: with the name of the input, if type, shape or range do not match `spec`.
    """
    # Objects first: numpy would otherwise convert text to numbers, and pad all texts to the longest one.
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
    """Convert an array to a JSON value. A float32 is written with all its digits, so it survives the round trip."""
    values = array.tolist()
    return _format_texts(values, name) if array.dtype == object else values


def _parse_text(element: Any, name: str) -> bytes:
    if is_bytes_object(element) and isinstance(element[_BYTES_KEY], str):
        try:
            return base64.b64decode(element[_BYTES_KEY], validate=True)
        except (binascii.Error, ValueError):  # ValueError: characters outside of ASCII
            raise RequestError(f"input '{name}': the value of 'b64' is not base64.") from None
    if not isinstance(element, str):
        raise RequestError(f"input '{name}': got {show(element)}, allowed: {_KIND_WORDS['text']}.")
    try:
        return element.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which is valid JSON
        raise RequestError(f"input '{name}': got text that is not UTF-8; send bytes as {{\"b64\": ...}}.") from None


def _parse_numbers(array: npt.NDArray[Any], elements: list[Any], spec: TensorSpec, name: str) -> npt.NDArray[Any]:
    if spec.kind == "int" and elements:
        range_ = np.iinfo(np.dtype(spec.dtype))
        low, high = min(elements), max(elements)
        if low < range_.min or high > range_.max:
            got = show(low if low < range_.min else high)
            raise RequestError(f"input '{name}': got {got}, allowed: {range_.min} to {range_.max}.")
    try:
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinity, as in TensorFlow Serving
            return array.astype(np.float64).astype(spec.dtype) if spec.kind == "float" else array.astype(spec.dtype)
    except OverflowError:
        raise RequestError(f"input '{name}': got a number that is too large for a float.") from None


def _format_texts(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_format_texts(each, name) for each in value]
    if name.endswith(_BYTES_SUFFIX):
        return {_BYTES_KEY: base64.b64encode(value).decode("ascii")}
    return value.decode("utf-8", "replace")


def _refuse_ragged(name: str) -> RequestError:
    return RequestError(f"input '{name}': got lists of different lengths or depths, allowed: those of a tensor.")


def _fits(shape: tuple[int, ...], allowed: tuple[int | None, ...] | None) -> bool:
    if allowed is None:
        return True
    return len(shape) == len(allowed) and all(want in (None, got) for got, want in zip(shape, allowed, strict=True))


def _say_shape(shape: tuple[int | None, ...] | None) -> str:
    assert shape is not None, "an unknown rank fits every shape"
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a signature by name."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclass(frozen=True, eq=False)
class PredictRequest:
    """A parsed request. `is_row`: `instances` and `predictions` (rows) instead of `inputs` and `outputs` (columns)."""

    signature_name: str
    inputs: Arrays
    is_row: bool


def parse_predict_request(body: bytes, signatures: Mapping[str, Signature]) -> PredictRequest:
    """Parse the body and check it against the signature that it names.

    Raises:
        RequestError: with one sentence for the client.
    """
    content = _parse_json(body)
    name = content.get("signature_name", DEFAULT_SIGNATURE) or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(f"'signature_name': got {show(name)}, allowed: {', '.join(sorted(signatures))}.")
    specs = signatures[name].inputs
    if ("instances" in content) == ("inputs" in content):
        raise RequestError("got both or neither of 'instances' (rows) and 'inputs' (columns), allowed: exactly one.")
    is_row = "instances" in content
    columns = _columns_of_rows(content["instances"], specs) if is_row else _columns(content["inputs"], specs)
    inputs = {input_name: parse_tensor(columns[input_name], spec, input_name) for input_name, spec in specs.items()}
    for input_name, array in inputs.items():
        if array.ndim and not 1 <= len(array) <= MAX_BATCH:
            raise RequestError(f"input '{input_name}': got {len(array)} rows, allowed: 1 to {MAX_BATCH} per request.")
    return PredictRequest(name, inputs, is_row)


def format_predict_response(outputs: Mapping[str, npt.NDArray[Any]], *, is_row: bool) -> dict[str, Any]:
    """Return the response as plain values for JSON. A single output has no name, as in TensorFlow Serving.

    Raises:
        RequestError: rows were requested, but the outputs differ in their number of rows.
    """
    values = {name: format_tensor(array, name) for name, array in outputs.items()}
    if not is_row:
        return {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    lengths = {len(array) if array.ndim else None for array in outputs.values()}
    if len(lengths) != 1 or None in lengths:
        raise RequestError("the outputs have different numbers of rows; use 'inputs' instead of 'instances'.")
    if len(values) == 1:
        return {"predictions": next(iter(values.values()))}
    return {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise RequestError(f"line {error.lineno}, column {error.colno}: not JSON ({error.msg}).") from None
    except RecursionError:
        raise RequestError("the JSON is nested too deeply.") from None
    except UnicodeDecodeError:
        raise RequestError(f"got binary data, allowed: JSON; send an image as {_IMAGE_REQUEST}.") from None
    except ValueError as error:  # a number with thousands of digits
        raise RequestError(f"not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RequestError(f"got {name_type(content)}, allowed: an object with 'instances' or 'inputs'.")
    return content


def _columns_of_rows(rows: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise RequestError(f"'instances': got {name_type(rows) if rows != [] else 'no rows'}, allowed: a list of rows.")
    are_named = [isinstance(row, dict) and not is_bytes_object(row) for row in rows]
    if not any(are_named):
        return {_only_input(specs, "instances"): rows}
    if not all(are_named):
        raise RequestError("'instances': only some rows name their inputs, allowed: all or none.")
    for row in rows:
        _check_names(row, specs, "instances")
    return {name: [row[name] for row in rows] for name in specs}


def _columns(value: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    if isinstance(value, dict) and not is_bytes_object(value):
        _check_names(value, specs, "inputs")
        return value
    return {_only_input(specs, "inputs"): value}


def _only_input(specs: Mapping[str, TensorSpec], where: str) -> str:
    if len(specs) != 1:
        raise RequestError(f"'{where}': the values have no input names, allowed: {', '.join(sorted(specs))}.")
    return next(iter(specs))


def _check_names(named: Mapping[str, Any], specs: Mapping[str, TensorSpec], where: str) -> None:
    if named.keys() != specs.keys():
        raise RequestError(f"'{where}': got the inputs {show(sorted(named))}, allowed: {', '.join(sorted(specs))}.")
