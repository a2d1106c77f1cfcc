import json
import math

import pytest

from detloom.trainer_module.strict_json import read_number, to_strict_json


def test_what_is_not_finite_becomes_null_at_any_depth_and_is_read_as_nan():
    text = to_strict_json({"loss": math.inf, "rows": [{"AP": 0.1, "names": ("\u00e9", math.nan)}]})
    assert text == '{"loss": null, "rows": [{"AP": 0.1, "names": ["\u00e9", null]}]}'
    assert math.isnan(read_number(json.loads(text)["loss"]))
    assert read_number(json.loads(text)["rows"][0]["AP"]) == 0.1


def test_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match="could not convert"):
        read_number("high")
