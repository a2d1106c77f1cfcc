import json
import math

import pytest

from detloom.trainer_module.files.strict_json import read_number, to_strict_json


def test_nonfinite_numbers_become_null_and_are_read_as_nan():
    text = to_strict_json({"loss": math.inf, "rows": [{"AP": 0.1, "names": ("\u00e9", math.nan)}]})
    assert text == '{"loss": null, "rows": [{"AP": 0.1, "names": ["\u00e9", null]}]}'
    assert math.isnan(read_number(json.loads(text)["loss"]))
    assert read_number(json.loads(text)["rows"][0]["AP"]) == 0.1


def test_text_is_not_a_number():
    with pytest.raises(ValueError, match="could not convert"):
        read_number("high")
