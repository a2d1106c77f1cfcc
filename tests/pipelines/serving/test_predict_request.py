import json

import numpy as np
import pytest

from detloom.pipelines.serving.predict_request import (
    RequestError,
    Signature,
    TensorSpec,
    format_predict_response,
    format_tensor,
    parse_predict_request,
    parse_tensor,
)

BYTES = TensorSpec("text", object, (None,))
PIXELS = TensorSpec("int", np.uint8, (None, 2))
FLOATS = TensorSpec("float", np.float32, None)
TEXT = TensorSpec("text", object, (None,))
FLOAT = TensorSpec("float", np.float32, (None,))
SIGNATURES = {
    "serving_default": Signature({"a": FLOAT}, {"y": FLOAT}),
    "two": Signature({"a": FLOAT, "b": FLOAT}, {"y": FLOAT}),
    "texts": Signature({"image_bytes": TEXT}, {"y": FLOAT}),
}


def tensor_error(value, spec):
    with pytest.raises(RequestError) as caught:
        parse_tensor(value, spec, "x")
    return caught.value.message


def test_bytes_are_base64_and_texts_are_utf_8():
    assert parse_tensor([{"b64": "AP8="}, "ä"], BYTES, "x").tolist() == [b"\x00\xff", b"\xc3\xa4"]


def test_integers_get_the_type_of_the_input():
    array = parse_tensor([[0, 255]], PIXELS, "x")
    assert (array.dtype, array.tolist()) == (np.uint8, [[0, 255]])


def test_floats_are_rounded_to_the_type_of_the_input():
    array = parse_tensor([0.1, 1], FLOATS, "x")
    assert (array.dtype, array.tolist()) == (np.float32, [float(np.float32(0.1)), 1.0])


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-45, 3.4028235e38, -0.0])
def test_float32_survives_the_round_trip_through_json(value):
    array = np.array([value], np.float32)
    text = json.dumps(format_tensor(array, "scores"))
    assert parse_tensor(json.loads(text), FLOATS, "x").tobytes() == array.tobytes()


def test_bytes_are_refused_for_a_numeric_input():
    assert tensor_error([[{"b64": "AA=="}, 1]], PIXELS).startswith("input 'x': got {'b64': 'AA=='}, allowed: ")


@pytest.mark.parametrize("value", [[[1, 0.5]], [[1, "2"]], [[1, None]], [[1, True]]])
def test_value_that_is_not_an_integer_is_refused(value):
    assert "allowed: integers." in tensor_error(value, PIXELS)


@pytest.mark.parametrize("value", [256, -1, 10**30])
def test_integer_out_of_range_is_refused(value):
    assert tensor_error([[0, value]], PIXELS) == f"input 'x': got {value}, allowed: 0 to 255."


def test_number_too_large_for_a_float_is_refused():
    assert "input 'x': " in tensor_error([10**400], FLOATS)


@pytest.mark.parametrize("value", [[[1, 2], [3]], [[1, 2], 3], [[[1], [2]], [[1, 2], [3, 4]]]])
def test_ragged_lists_are_refused(value):
    assert "different lengths or depths" in tensor_error(value, PIXELS)


@pytest.mark.parametrize(("value", "shape"), [(3, []), ([1, 2], [2]), ([[1, 2, 3]], [1, 3]), ([[]], [1, 0])])
def test_other_shape_is_refused(value, shape):
    assert tensor_error(value, PIXELS) == f"input 'x': got the shape {shape}, allowed: [any, 2]."


@pytest.mark.reliability("hostile input", "serve")
def test_lists_deeper_than_any_tensor_are_refused():
    value = 1
    for _ in range(500):
        value = [value]
    assert tensor_error(value, FLOATS)


def test_one_long_text_does_not_enlarge_the_others():
    # In an array of texts, numpy would pad each of the 100,000 to the longest one: 400 GB.
    value = ["x" * 1_000_000, *[""] * 100_000]
    assert tensor_error(value, FLOATS).startswith("input 'x': got 'xxx")


def test_invalid_base64_is_refused():
    assert "input 'x': " in tensor_error([{"b64": "?"}], BYTES)


def test_half_of_a_surrogate_pair_is_refused():
    assert "not UTF-8" in tensor_error(["\ud800"], BYTES)


def test_outputs_with_the_suffix_bytes_are_base64():
    array = np.array([[b"\xff", b"a"]], object)
    assert format_tensor(array, "image_bytes") == [[{"b64": "/w=="}, {"b64": "YQ=="}]]
    assert format_tensor(array, "names") == [["\ufffd", "a"]]


def parse(**content):
    return parse_predict_request(json.dumps(content).encode(), SIGNATURES)


def request_error(body):
    with pytest.raises(RequestError) as caught:
        parse_predict_request(body if isinstance(body, bytes) else json.dumps(body).encode(), SIGNATURES)
    return caught.value.message


def test_rows_of_a_single_input_need_no_name():
    request = parse(instances=[1, 2])
    assert (request.signature_name, request.is_row, request.inputs["a"].tolist()) == ("serving_default", True, [1, 2])


def test_rows_can_name_their_inputs():
    request = parse(signature_name="two", instances=[{"a": 1, "b": 3}, {"a": 2, "b": 4}])
    assert {name: array.tolist() for name, array in request.inputs.items()} == {"a": [1, 2], "b": [3, 4]}


def test_columns_can_name_their_inputs():
    request = parse(signature_name="two", inputs={"a": [1], "b": [2]})
    assert (request.is_row, request.inputs["b"].tolist()) == (False, [2])


def test_b64_object_is_a_value_and_not_a_named_input():
    for instances in ([{"b64": "YQ=="}], [{"image_bytes": {"b64": "YQ=="}}]):
        request = parse(signature_name="texts", instances=instances)
        assert request.inputs["image_bytes"].tolist() == [b"a"]


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xd8\xff", "serving_encoded.*b64"),  # the first bytes of a JPEG
        (b"[" * 100_000, "nested too deeply"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "not JSON|allowed"),
        (b"[1]", "got a list, allowed: an object"),
        ({"instances": [1], "inputs": [1]}, "'instances'.*'inputs'"),
        ({}, "'instances'.*'inputs'"),
        ({"instances": []}, "'instances': got no rows"),
        ({"instances": {"a": 1}}, "'instances': got an object, allowed: a list"),
        ({"instances": [1], "signature_name": "other"}, "allowed: serving_default, texts, two"),
        ({"instances": [1], "signature_name": ["two"]}, "'signature_name'"),
        ({"instances": [1], "signature_name": "two"}, "'instances': .*allowed: a, b"),
        ({"instances": [{"a": 1}], "signature_name": "two"}, r"got the inputs \['a'\], allowed: a, b"),
        ({"instances": [{"a": 1}, 2]}, "'instances': "),
        ({"inputs": {"c": [1]}}, r"got the inputs \['c'\]"),
        ({"instances": [0] * 17}, "got 17 rows, allowed: 1 to 16"),
        ({"inputs": []}, "got 0 rows"),
    ],
)
def test_invalid_request_is_refused(body, message):
    import re

    assert re.search(message, request_error(body))


def test_single_output_has_no_name():
    outputs = {"y": np.array([1.0, 2.0], np.float32)}
    assert format_predict_response(outputs, is_row=True) == {"predictions": [1.0, 2.0]}
    assert format_predict_response(outputs, is_row=False) == {"outputs": [1.0, 2.0]}


def test_several_outputs_have_names():
    outputs = {"y": np.array([1, 2]), "z": np.array([[3], [4]])}
    assert format_predict_response(outputs, is_row=True) == {"predictions": [{"y": 1, "z": [3]}, {"y": 2, "z": [4]}]}
    assert format_predict_response(outputs, is_row=False) == {"outputs": {"y": [1, 2], "z": [[3], [4]]}}


def test_outputs_with_different_numbers_of_rows_are_an_error():
    with pytest.raises(RequestError, match="'inputs'"):
        format_predict_response({"y": np.array([1, 2]), "z": np.array(3)}, is_row=True)
