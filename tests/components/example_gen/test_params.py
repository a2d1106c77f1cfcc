"""Parameters: round trip and errors."""

import dataclasses
from dataclasses import fields

import pytest

from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import Data, SplitByRatio, Splits


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
        images_dir="Photos",
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
    assert ExampleGenParams.from_properties({**properties, "input_base": "a property of TFX"}) == params
    assert list(ExampleGenParams.from_properties(properties).splits) == list(splitting.get("splits", {}))


def test_every_setting_of_the_run_file_becomes_a_parameter():
    splits = Splits(train="a", eval="b", test="c")
    data = Data(path="x", format="voc", splits=splits, masks=True, classes=("a",), gzip=True, max_boxes=3, num_spans=1)
    expected = ExampleGenParams(
        data_format="voc",
        splits={"train": "a", "eval": "b", "test": "c"},
        with_masks=True,
        class_names=("a",),
        gzip=True,
        max_boxes=3,
    )
    assert ExampleGenParams.from_run_file(data, max_distance=7) == expected
    mapped = {"format", "path", "splits", "split_by_ratio", "masks", "keypoints", "classes"}
    assert {item.name for item in fields(Data)} - mapped <= {item.name for item in fields(ExampleGenParams)}


def test_the_ratios_of_the_run_file_become_parameters():
    ratios = SplitByRatio(train=0.5, eval=0.25, test=0.25, source="s", group_by="(a)", stratify=True, seed=3)
    ratios = dataclasses.replace(ratios, separate_near_duplicates=True)
    params = ExampleGenParams.from_run_file(Data(path="x", split_by_ratio=ratios), max_distance=7)
    assert params.split_ratios == {"train": 0.5, "eval": 0.25, "test": 0.25}
    assert (params.source, params.split_group, params.split_stratify, params.split_seed) == ("s", "(a)", True, 3)
    assert params.separate_near_duplicates
    assert params.max_distance == 7


def test_the_options_of_the_command_become_parameters():
    options = {
        "data_format": "yolo", "images_dir": "i", "hierarchy": "h", "masks": True, "keypoints": True, "gzip": True,
        "unknown_class": "reject", "decode_images": True, "max_reject_fraction": 0.5, "source": "s", "group_by": "(a)",
        "stratify": True, "seed": 3, "separate_near_duplicates": True, "output": "of another kind",
    }  # fmt: skip
    params = ExampleGenParams.from_options(options, split_ratios={"a": 1.0}, class_names=("c",), shard_max_bytes=7)
    assert (params.hierarchy_file, params.with_masks, params.class_names, params.shard_max_bytes) == (
        "h",
        True,
        ("c",),
        7,
    )
    assert (params.source, params.split_group, params.split_stratify, params.split_seed) == ("s", "(a)", True, 3)


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
        ({"max_distance": 11}, "max_distance: got 11, allowed: 0 to 10"),
        ({"separate_near_duplicates": True}, "only with split_ratios"),
        ({"splits": {}, "split_ratios": {"train": 1.0}, "split_group": "a"}, "split_group: got 'a'.*group"),
        ({"splits": {}, "split_ratios": {"train": 1.0}, "split_group": "(a"}, "split_group: got"),
        ({"class_names": ("a", "a")}, "class_names: got"),
        ({"max_reject_fraction": 1.5}, "allowed: 0 to 1"),
        ({"max_pixels": 0}, "max_pixels: got 0"),
    ],
)
def test_an_invalid_parameter_is_an_error_with_the_allowed_values(change, message):
    with pytest.raises(InputError, match=message):
        ExampleGenParams(**{"data_format": "coco", "splits": {"train": "a.json"}, **change})
