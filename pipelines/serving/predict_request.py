"""The body of a `:predict` request to inputs, and outputs to the body of its answer: TensorFlow Serving's contract."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from detloom.components.example_gen.sources.json_values import name_type, show
from detloom.pipelines.serving.tensors import RequestError, TensorSpec, format_tensor, is_bytes_object, parse_tensor

DEFAULT_SIGNATURE = "serving_default"  # TensorFlow Serving's, where a request names none
MAX_BATCH = 16  # each image is resized to the network's size before the first is let go; a few bytes make a large one

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclass(frozen=True, eq=False)
class PredictRequest:
    """`is_row`: it came as `instances`, and is answered with `predictions`; otherwise `inputs` and `outputs`."""

    signature_name: str
    inputs: Arrays
    is_row: bool


def parse_predict_request(body: bytes, signatures: Mapping[str, Signature]) -> PredictRequest:
    """Check the body against the signature that it names.

    Raises:
        RequestError: one sentence for whoever sent it.
    """
    content = _parse_json(body)
    name = content.get("signature_name", DEFAULT_SIGNATURE) or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(f"'signature_name': got {show(name)}, allowed: {', '.join(sorted(signatures))}.")
    specs = signatures[name].inputs
    if ("instances" in content) == ("inputs" in content):
        raise RequestError("got both or neither of 'instances' (a list of rows) and 'inputs' (columns), allowed: one.")
    is_row = "instances" in content
    columns = _columns_of_rows(content["instances"], specs) if is_row else _columns(content["inputs"], specs)
    inputs = {input_name: parse_tensor(columns[input_name], spec, input_name) for input_name, spec in specs.items()}
    for input_name, array in inputs.items():
        if array.ndim and not 1 <= len(array) <= MAX_BATCH:
            raise RequestError(f"input '{input_name}': got {len(array)} rows, allowed: 1 to {MAX_BATCH} a request.")
    return PredictRequest(name, inputs, is_row)


def format_predict_answer(outputs: Mapping[str, npt.NDArray[Any]], *, is_row: bool) -> dict[str, Any]:
    """As plain values for JSON; a single output has no name, as in TensorFlow Serving.

    Raises:
        RequestError: rows were asked for, and the outputs are not one row for each.
    """
    values = {name: format_tensor(array, name) for name, array in outputs.items()}
    if not is_row:
        return {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    lengths = {len(array) if array.ndim else None for array in outputs.values()}
    if len(lengths) != 1 or None in lengths:
        raise RequestError("the outputs have different numbers of rows; ask with 'inputs' instead of 'instances'.")
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
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
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
        raise RequestError("'instances': some rows name their inputs and some do not, allowed: one way for all.")
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
        raise RequestError(f"'{where}': name the inputs, which are {', '.join(sorted(specs))}.")
    return next(iter(specs))


def _check_names(named: Mapping[str, Any], specs: Mapping[str, TensorSpec], where: str) -> None:
    if named.keys() != specs.keys():
        raise RequestError(f"'{where}': got the inputs {show(sorted(named))}, allowed: {', '.join(sorted(specs))}.")
