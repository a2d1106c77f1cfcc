"""Parse the body of a `:predict` request and format the response, as in TensorFlow Serving's REST API.

Needs no TensorFlow.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from detloom.components.example_gen.sources.json_values import name_type, show
from detloom.pipelines.serving.request_limits import MAX_BATCH, RequestError
from detloom.schemas.contracts.arrays import Float32Array
from detloom.schemas.contracts.detections import SIGNATURE_ENCODED, SIGNATURE_INPUTS

_INPUT = SIGNATURE_INPUTS[SIGNATURE_ENCODED]
PREDICT_REQUEST = f'{{"signature_name": "{SIGNATURE_ENCODED}", "instances": [{{"b64": "<base64 of the file>"}}]}}'


def parse_predict_request(body: bytes) -> list[bytes]:
    """Return the encoded images, at most `MAX_BATCH`.

    Raises:
        RequestError: with one sentence for the client.
    """
    content = _parse_json(body)
    signature = content.get("signature_name")
    if signature != SIGNATURE_ENCODED:
        raise RequestError(f"'signature_name': got {show(signature)}, allowed: {PREDICT_REQUEST}.")
    rows = content.get("instances")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_BATCH:
        got = f"{len(rows)} rows" if isinstance(rows, list) else name_type(rows)
        raise RequestError(f"'instances': got {got}, allowed: a list of 1 to {MAX_BATCH} rows.")
    return [_parse_row(row, f"instances[{position}]") for position, row in enumerate(rows)]


def format_predict_response(outputs: Mapping[str, Float32Array]) -> dict[str, Any]:
    """Return the response as plain values for JSON. A float32 is written with all its digits."""
    columns = [array.tolist() for array in outputs.values()]
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]}


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise RequestError(f"got binary data, allowed: {PREDICT_REQUEST}.") from None
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise RequestError(f"not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RequestError(f"got {name_type(content)}, allowed: {PREDICT_REQUEST}.")
    return content


def _parse_row(row: Any, where: str) -> bytes:
    if isinstance(row, dict) and row.keys() == {_INPUT}:  # a row may name its input
        row = row[_INPUT]
    text = row.get("b64") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise RequestError(f'\'{where}\': got {show(row)}, allowed: {{"b64": "..."}}.')
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise RequestError(f"'{where}': the value of 'b64' is not base64.") from None
