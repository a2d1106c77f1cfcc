import json

import numpy as np
import pytest

from detloom.pipelines.serving.predict_request import Signature, format_predict_answer, parse_predict_request
from detloom.pipelines.serving.tensors import RequestError, TensorSpec

TEXT = TensorSpec("text", object, (None,))
FLOAT = TensorSpec("float", np.float32, (None,))
SIGNATURES = {
    "serving_default": Signature({"a": FLOAT}, {"y": FLOAT}),
    "two": Signature({"a": FLOAT, "b": FLOAT}, {"y": FLOAT}),
    "texts": Signature({"image_bytes": TEXT}, {"y": FLOAT}),
}


def parse(**content):
    return parse_predict_request(json.dumps(content).encode(), SIGNATURES)


def refused(body):
    with pytest.raises(RequestError) as caught:
        parse_predict_request(body if isinstance(body, bytes) else json.dumps(body).encode(), SIGNATURES)
    return caught.value.message


def test_rows_of_the_only_input_need_no_name():
    request = parse(instances=[1, 2])
    assert (request.signature_name, request.is_row, request.inputs["a"].tolist()) == ("serving_default", True, [1, 2])


def test_rows_may_name_their_inputs():
    request = parse(signature_name="two", instances=[{"a": 1, "b": 3}, {"a": 2, "b": 4}])
    assert {name: array.tolist() for name, array in request.inputs.items()} == {"a": [1, 2], "b": [3, 4]}


def test_columns_may_name_their_inputs():
    request = parse(signature_name="two", inputs={"a": [1], "b": [2]})
    assert (request.is_row, request.inputs["b"].tolist()) == (False, [2])


def test_bytes_are_a_value_and_not_a_name():
    for instances in ([{"b64": "YQ=="}], [{"image_bytes": {"b64": "YQ=="}}]):
        request = parse(signature_name="texts", instances=instances)
        assert request.inputs["image_bytes"].tolist() == [b"a"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "not JSON|allowed"),
        (b"[1]", "got a list, allowed: an object"),
        ({"instances": [1], "inputs": [1]}, "both or neither"),
        ({}, "both or neither"),
        ({"instances": []}, "got no rows"),
        ({"instances": {"a": 1}}, "got an object, allowed: a list of rows"),
        ({"instances": [1], "signature_name": "other"}, "allowed: serving_default, texts, two"),
        ({"instances": [1], "signature_name": ["two"]}, "'signature_name'"),
        ({"instances": [1], "signature_name": "two"}, "name the inputs, which are a, b"),
        ({"instances": [{"a": 1}], "signature_name": "two"}, r"got the inputs \['a'\], allowed: a, b"),
        ({"instances": [{"a": 1}, 2]}, "some rows name their inputs"),
        ({"inputs": {"c": [1]}}, r"got the inputs \['c'\]"),
        ({"instances": [0] * 17}, "got 17 rows, allowed: 1 to 16"),
        ({"inputs": []}, "got 0 rows"),
    ],
)
def test_what_is_wrong_is_one_sentence(body, message):
    import re

    assert re.search(message, refused(body))


def test_a_single_output_has_no_name():
    outputs = {"y": np.array([1.0, 2.0], np.float32)}
    assert format_predict_answer(outputs, is_row=True) == {"predictions": [1.0, 2.0]}
    assert format_predict_answer(outputs, is_row=False) == {"outputs": [1.0, 2.0]}


def test_several_outputs_have_names():
    outputs = {"y": np.array([1, 2]), "z": np.array([[3], [4]])}
    assert format_predict_answer(outputs, is_row=True) == {"predictions": [{"y": 1, "z": [3]}, {"y": 2, "z": [4]}]}
    assert format_predict_answer(outputs, is_row=False) == {"outputs": {"y": [1, 2], "z": [[3], [4]]}}


def test_outputs_that_are_not_one_row_for_each_are_told():
    with pytest.raises(RequestError, match="ask with 'inputs'"):
        format_predict_answer({"y": np.array([1, 2]), "z": np.array(3)}, is_row=True)
