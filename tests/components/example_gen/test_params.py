"""Parameters: round trip and refusals."""

import pytest

from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.errors import InputError


@pytest.mark.parametrize(
    "splitting",
    [
        {"splits": {"train": "trainval", "eval": "test"}},
        {"split_ratios": {"train": 0.75, "eval": 0.25}, "split_group": "^(a)", "split_stratify": True, "split_seed": 3},
    ],
)
def test_parameters_survive_the_round_trip_through_properties(splitting):
    params = ExampleGenParams(
        data_format="voc",
        images_dir="Pictures",
        class_names=("größer", "b"),
        unknown_class="reject",
        shard_max_bytes=7,
        max_pixels=8,
        max_reject_fraction=0,
        code_fingerprint="f00",
        **splitting,
    )
    properties = params.to_properties()
    assert {type(value) for value in properties.values()} <= {str, int, float}
    assert ExampleGenParams.from_properties({**properties, "input_base": "of TFX"}) == params
    assert list(ExampleGenParams.from_properties(properties).splits) == list(splitting.get("splits", {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_format": "lvis"}, "data_format: got 'lvis', allowed: auto, coco, voc, yolo"),
        ({"unknown_class": "drop"}, "unknown_class: got 'drop', allowed: fail, reject, leave_out"),
        ({"splits": {"a/b": "x"}}, "got the name 'a/b'"),
        ({"splits": {"train": "/data/a.json"}}, r"splits\.train: got '/data/a\.json', allowed: a name relative to"),
        ({"splits": {"train": "x/../a.json"}}, r"splits\.train: got 'x/\.\./a\.json', allowed:.* without '\.\.'"),
        ({"images_dir": "../x"}, "images_dir: got '../x'"),
        ({"split_ratios": {"train": 1.0}}, "got both, allowed: one of them"),
        ({"splits": {}, "split_ratios": {"train": 0.5}}, "a sum of 0.5, allowed: a sum of 1"),
        ({"splits": {}, "split_ratios": {"train": 1.5, "eval": -0.5}}, "allowed: shares above 0"),
        ({"split_group": "(a)"}, "only with split_ratios"),
        ({"splits": {}, "split_ratios": {"train": 1.0}, "split_group": "a"}, "allowed: one with a group"),
        ({"splits": {}, "split_ratios": {"train": 1.0}, "split_group": "(a"}, "no regular expression"),
        ({"class_names": ("a", "a")}, "different names"),
        ({"max_reject_fraction": 1.5}, "allowed: 0 to 1"),
        ({"max_pixels": 0}, "max_pixels: got 0"),
    ],
)
def test_a_wrong_parameter_says_what_is_allowed(change, message):
    with pytest.raises(InputError, match=message):
        ExampleGenParams(**{"data_format": "coco", "splits": {"train": "a.json"}, **change})
