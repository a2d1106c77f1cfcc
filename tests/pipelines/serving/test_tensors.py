import json

import numpy as np
import pytest

from detloom.pipelines.serving.tensors import RequestError, TensorSpec, format_tensor, parse_tensor

BYTES = TensorSpec("text", object, (None,))
PIXELS = TensorSpec("int", np.uint8, (None, 2))
FLOATS = TensorSpec("float", np.float32, None)


def refused(value, spec):
    with pytest.raises(RequestError) as caught:
        parse_tensor(value, spec, "x")
    return caught.value.message


def test_bytes_come_as_base64_and_texts_as_utf_8():
    assert parse_tensor([{"b64": "AP8="}, "ä"], BYTES, "x").tolist() == [b"\x00\xff", b"\xc3\xa4"]


def test_whole_numbers_get_the_type_of_the_input():
    array = parse_tensor([[0, 255]], PIXELS, "x")
    assert (array.dtype, array.tolist()) == (np.uint8, [[0, 255]])


def test_floats_are_rounded_to_the_type_of_the_input():
    array = parse_tensor([0.1, 1], FLOATS, "x")
    assert (array.dtype, array.tolist()) == (np.float32, [float(np.float32(0.1)), 1.0])


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-45, 3.4028235e38, -0.0])
def test_a_float32_comes_back_as_the_same_through_json(value):
    array = np.array([value], np.float32)
    text = json.dumps(format_tensor(array, "scores"))
    assert parse_tensor(json.loads(text), FLOATS, "x").tobytes() == array.tobytes()


def test_bytes_are_for_texts_only():
    assert refused([[{"b64": "AA=="}, 1]], PIXELS) == "input 'x': got {'b64': 'AA=='}, allowed: whole numbers."


@pytest.mark.parametrize("value", [[[1, 0.5]], [[1, "2"]], [[1, None]], [[1, True]]])
def test_what_is_no_whole_number_is_refused(value):
    assert "allowed: whole numbers." in refused(value, PIXELS)


@pytest.mark.parametrize("value", [256, -1, 10**30])
def test_a_number_that_the_type_cannot_hold_is_refused(value):
    assert refused([[0, value]], PIXELS) == f"input 'x': got {value}, allowed: 0 to 255."


def test_a_number_that_no_float_holds_is_refused():
    assert refused([10**400], FLOATS) == "input 'x': got a number that no float can hold."


@pytest.mark.parametrize("value", [[[1, 2], [3]], [[1, 2], 3], [[[1], [2]], [[1, 2], [3, 4]]]])
def test_lists_of_different_lengths_or_depths_are_refused(value):
    assert "different lengths or depths" in refused(value, PIXELS)


@pytest.mark.parametrize(("value", "shape"), [(3, []), ([1, 2], [2]), ([[1, 2, 3]], [1, 3]), ([[]], [1, 0])])
def test_another_shape_is_refused(value, shape):
    assert refused(value, PIXELS) == f"input 'x': got the shape {shape}, allowed: [any, 2]."


def test_lists_deeper_than_any_tensor_are_refused():
    value = 1
    for _ in range(500):
        value = [value]
    assert refused(value, FLOATS)


def test_a_short_list_with_one_long_text_takes_no_more_than_the_text():
    # As an array of texts, numpy would make each of the 100,000 as long as the longest: 400 GB.
    value = ["x" * 1_000_000, *[""] * 100_000]
    assert refused(value, FLOATS).startswith("input 'x': got 'xxx")


def test_what_is_not_base64_is_refused():
    assert refused([{"b64": "?"}], BYTES) == "input 'x': what stands under 'b64' is not base64."


def test_half_of_a_surrogate_pair_is_refused():
    assert "not UTF-8" in refused(["\ud800"], BYTES)


def test_texts_of_outputs_are_bytes_where_their_name_says_so():
    array = np.array([[b"\xff", b"a"]], object)
    assert format_tensor(array, "image_bytes") == [[{"b64": "/w=="}, {"b64": "YQ=="}]]
    assert format_tensor(array, "names") == [["\ufffd", "a"]]
