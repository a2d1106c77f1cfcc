import base64
import json
import re
import zlib

import pytest

from detloom.pipelines.dag import packed_settings
from detloom.pipelines.dag.packed_settings import PACKED, format_input_types, pack, short_type, unpack, unpack_task
from detloom.schemas.errors import InputError

SETTINGS = {
    "gates": ("STRING", json.dumps({"text": 'a "quoted" \\ \n é $(NAME) {{$}}', "list": [1.5, None]})),
    "max_pixels": ("NUMBER_INTEGER", 200000000.0),
    "is_on": ("BOOLEAN", True),
    "empty": ("STRING", ""),
}


def test_settings_survive_packing():
    packed = pack(SETTINGS)
    assert unpack(packed) == SETTINGS
    assert pack(dict(reversed(SETTINGS.items()))) == packed
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", packed)  # nothing that JSON or Kubernetes would change


@pytest.mark.parametrize("text", ["", "x", "!", base64.b64encode(b"x").decode(), pack({})[:-6], "é"])
def test_another_text_is_refused(text):
    with pytest.raises(InputError, match=r"packed_settings: .*compile the job again"):
        unpack(text)


def test_a_small_text_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr(packed_settings, "_MAX_BYTES", 1000)
    with pytest.raises(InputError):
        unpack(base64.urlsafe_b64encode(zlib.compress(b" " * 10**6)).decode())


def test_a_task_gets_all_parameters_and_their_types():
    inputs = {"parameterValues": {PACKED: pack(SETTINGS), "run_id": "r-1"}, "artifacts": {"model": {}}}
    spec = {
        "artifacts": {
            "model": {"artifactType": short_type("tfx.Model")},
            "page": {"artifactType": short_type("system.HTML")},
        },
        "parameters": {PACKED: {"parameterType": "STRING"}, "run_id": {"parameterType": "STRING"}},
    }
    types = format_input_types(spec)
    assert types == "model=tfx.Model packed_settings=STRING page=system.HTML run_id=STRING"
    invocation, inputs_spec = map(json.loads, unpack_task(json.dumps({"inputs": inputs, "outputs": {"o": 1}}), types))
    values = {name: value for name, (_, value) in SETTINGS.items()}
    assert invocation == {
        "inputs": {"parameterValues": {"run_id": "r-1", **values}, "artifacts": {"model": {}}},
        "outputs": {"o": 1},
    }
    assert inputs_spec["artifacts"] == spec["artifacts"]
    kinds = {name: {"parameterType": kind} for name, (kind, _) in SETTINGS.items()}
    assert inputs_spec["parameters"] == {"run_id": {"parameterType": "STRING"}, **kinds}


def test_a_task_without_packed_settings_is_unchanged():
    invocation, inputs_spec = unpack_task('{"inputs": {}}', "")
    assert (json.loads(invocation), json.loads(inputs_spec)) == ({"inputs": {}}, {"artifacts": {}, "parameters": {}})
