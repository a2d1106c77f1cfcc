"""Parameters: round trip and refusals."""

import pytest

from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.errors import InputError


def test_parameters_survive_the_round_trip_through_properties():
    params = ExampleGenParams(
        data_format="voc",
        splits={"train": "trainval", "eval": "test"},
        images_dir="Pictures",
        class_names=("größer", "b"),
        unknown_class="reject",
        shard_max_bytes=7,
        max_pixels=8,
        max_reject_fraction=0,
        code_fingerprint="f00",
    )
    properties = params.to_properties()
    assert {type(value) for value in properties.values()} <= {str, int, float}
    assert ExampleGenParams.from_properties({**properties, "input_base": "of TFX"}) == params
    assert list(ExampleGenParams.from_properties(properties).splits) == ["train", "eval"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_format": "yolo"}, "data_format: got 'yolo', allowed: coco, voc"),
        ({"unknown_class": "drop"}, "unknown_class: got 'drop', allowed: fail, reject"),
        ({"splits": {}}, "at least one output split"),
        ({"splits": {"train": ""}}, "at least one output split"),
        ({"splits": {"a/b": "x"}}, "got the name 'a/b'"),
        ({"splits": {"train": "/data/a.json"}}, r"splits\.train: got '/data/a\.json', allowed: a name relative to"),
        ({"splits": {"train": "x/../a.json"}}, r"splits\.train: got 'x/\.\./a\.json', allowed:.* without '\.\.'"),
        ({"splits": {"train": "*.json"}}, r"splits\.train: got '\*\.json', allowed: the name of one file"),
        ({"class_names": ("a", "a")}, "different names"),
        ({"max_reject_fraction": 1.5}, "allowed: 0 to 1"),
        ({"max_pixels": 0}, "max_pixels: got 0"),
    ],
)
def test_a_wrong_parameter_says_what_is_allowed(change, message):
    with pytest.raises(InputError, match=message):
        ExampleGenParams(**{"data_format": "coco", "splits": {"train": "a.json"}, **change})
