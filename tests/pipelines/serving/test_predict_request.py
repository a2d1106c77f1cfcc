import json

import numpy as np
import pytest

from detloom.pipelines.serving.predict_request import format_predict_response, parse_predict_request
from detloom.pipelines.serving.request_limits import RequestError

IMAGE = {"b64": "AP8="}


def body_of(instances):
    return json.dumps({"signature_name": "serving_encoded", "instances": instances}).encode()


@pytest.mark.parametrize("row", [IMAGE, {"image_bytes": IMAGE}])
def test_rows_are_images_in_base64_that_may_name_their_input(row):
    assert parse_predict_request(body_of([row] * 16)) == [b"\x00\xff"] * 16


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xd8\xff", "serving_encoded.*b64"),  # the first bytes of a JPEG
        (b"[" * 100_000, "not JSON"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "not JSON|signature_name"),
        (b"[1]", "got a list, .*serving_encoded"),
        (json.dumps({"instances": [IMAGE]}).encode(), "signature_name.*serving_encoded"),
        (json.dumps({"signature_name": "serving_encoded", "inputs": [IMAGE]}).encode(), "'instances': got nothing"),
        (body_of(IMAGE), "'instances': got an object"),
        (body_of([]), "'instances': got 0 rows"),
        (body_of([IMAGE] * 17), "'instances': got 17 rows.*16"),
        (body_of([IMAGE, "text"]), r"'instances\[1\]': got 'text'"),
        (body_of([{"other": IMAGE}]), r"'instances\[0\]': got {'other'"),
        (body_of([{"b64": 5}]), r"'instances\[0\]': got {'b64': 5}"),
        (body_of([IMAGE, {"b64": "?"}]), r"'instances\[1\]': .*base64"),
        (body_of([{"b64": "ä"}]), r"'instances\[0\]': .*base64"),
    ],
)
def test_invalid_request_is_refused(body, message):
    with pytest.raises(RequestError, match=message) as caught:
        parse_predict_request(body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-45, 3.4028235e38, -0.0])
def test_float32_survives_the_round_trip_through_json(value):
    array = np.array([[value], [1]], np.float32)
    response = format_predict_response({"y": array, "z": array[:, 0]})
    first, second = json.loads(json.dumps(response))["predictions"]
    assert np.float32(first["y"][0]).tobytes() == np.float32(first["z"]).tobytes() == array[0].tobytes()
    assert second == {"y": [1.0], "z": 1.0}
