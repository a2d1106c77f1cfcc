"""Parameters: round trip, the run file's settings, and errors."""

import typing
from dataclasses import fields

import pytest

from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.formats import AUTO, FORMATS
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import type_hints
from detloom.schemas.run_file.data import Data, IngestSettings, SplitByRatio, Splits

EVERYTHING = {
    "format": "open_images", "images_dir": "i", "hierarchy_file": "h", "classes": ("größer", "b"),
    "unknown_class": "reject", "masks": True, "keypoints": True, "exif_rotation": "reject", "decode_images": True,
    "max_pixels": 8, "max_image_bytes": 9, "max_boxes": 3, "max_reject_fraction": 0, "shard_max_bytes": 7,
    "gzip": True, "max_unlisted_fraction": 1, "allow_no_objects": True, "fractional_boxes": True,
}  # fmt: skip
RATIO_SETTINGS = {
    "source": "s", "group_by": "^(a)", "stratify": True, "seed": 3, "separate_near_duplicates": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "splitting",
    [{"splits": {"train": "trainval", "eval": "test"}}, {"split_by_ratio": {"a": 0.75, "b": 0.25}, **RATIO_SETTINGS}],
)
def test_parameters_survive_the_round_trip_through_properties(splitting):
    params = ExampleGenParams(**EVERYTHING, **splitting, max_distance=7, num_spans=2, code_fingerprint="f00")
    properties = params.to_properties()
    types = ExampleGenParams.property_types()
    assert {name: type(value) for name, value in properties.items()} == types
    assert set(types.values()) == {str, int, float}
    read = ExampleGenParams.from_properties({**properties, "input_base": "a property of TFX"})
    assert read == params
    assert list(read.splits) == list(params.splits)


def test_every_setting_of_the_run_file_becomes_a_parameter():
    assert set(EVERYTHING) == {item.name for item in fields(IngestSettings)}
    splits = {"train": "a", "eval": "b", "test": "c"}
    data = Data(path="{SPAN}", splits=Splits(**splits), num_spans=2, **EVERYTHING)
    params = ExampleGenParams.from_run_file(data, max_distance=7)
    assert params == ExampleGenParams(**EVERYTHING, splits=splits, num_spans=2)


def test_the_ratios_of_the_run_file_become_parameters():
    shares = {"train": 0.5, "eval": 0.25, "test": 0.25}
    data = Data(path="x", split_by_ratio=SplitByRatio(**shares, **RATIO_SETTINGS))
    params = ExampleGenParams.from_run_file(data, max_distance=7)
    assert params == ExampleGenParams(split_by_ratio=shares, max_distance=7, **RATIO_SETTINGS)


@pytest.mark.parametrize("missing", ["eval", "test"])
def test_a_split_that_the_run_file_lacks_is_cut_from_training(missing):
    sources = {split: f"{split}.json" for split in ("train", "eval", "test") if split != missing}
    params = ExampleGenParams.from_run_file(Data(path="x", splits=Splits(**sources, cut_share=0.2)), max_distance=7)
    assert params == ExampleGenParams(splits=sources, cut_from_train={missing: 0.2}, max_distance=7)
    assert params.shares_of("train") == {"train": 0.8, missing: 0.2}


def test_the_run_file_and_the_readers_have_the_same_formats():
    assert typing.get_args(type_hints(Data)["format"]) == (AUTO, *FORMATS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "lvis"}, "format: got 'lvis', allowed: auto, coco, voc, yolo"),
        ({"unknown_class": "drop"}, "unknown_class: got 'drop', allowed: fail, reject, leave_out"),
        ({"exif_rotation": "drop"}, "exif_rotation: got 'drop'"),
        ({"splits": {"a/b": "x"}}, "got the name 'a/b'"),
        ({"splits": {"train": "/data/a.json"}}, r"splits\.train: got '/data/a\.json', allowed: a name relative to"),
        ({"splits": {"train": "x/../a.json"}}, r"splits\.train: got 'x/\.\./a\.json', allowed:.* without '\.\.'"),
        ({"images_dir": "../x"}, "images_dir: got '../x'"),
        ({"hierarchy_file": "x\0"}, "hierarchy_file: got"),
        ({"split_by_ratio": {"train": 1.0}}, "got both.*allowed: one of them"),
        ({"splits": {}, "split_by_ratio": {"train": 0.5}}, "a sum of 0.5, allowed: a sum of 1"),
        ({"splits": {}, "split_by_ratio": {"train": 1.5, "eval": -0.5}}, "allowed: shares above 0"),
        ({"splits": {}, "split_by_ratio": {"train": float("nan")}}, "allowed: shares above 0"),
        ({"splits": {}, "split_by_ratio": {"train": 1.0}, "source": "/x"}, "source: got '/x'"),
        ({"splits": {}, "split_by_ratio": {"train": 1.0}, "group_by": "a"}, "group_by: got 'a'.*group"),
        ({"splits": {}, "split_by_ratio": {"train": 1.0}, "group_by": "(a"}, "group_by: got"),
        *[({"cut_from_train": cut}, "cut_from_train: got") for cut in ({"train": 0.1}, {"test": 1.0}, {"a/b": 0.1})],
        ({"splits": {}, "split_by_ratio": {"train": 1.0}, "cut_from_train": {"test": 0.1}}, "cut_from_train: got"),
        *[({name: value}, f"{name}: .*only with split_by_ratio") for name, value in RATIO_SETTINGS.items()],
        ({"max_distance": 11}, "max_distance: got 11, allowed: 0 to 10"),
        ({"num_spans": 0}, "num_spans: got 0"),
        ({"classes": ("a", "a")}, "classes: .*'a' appears twice"),
        ({"classes": ("a", "")}, "classes: got"),
        ({"max_reject_fraction": 1.5}, "allowed: 0 to 1"),
        *[({name: 0}, f"{name}: got 0") for name in ("max_pixels", "max_image_bytes", "max_boxes", "shard_max_bytes")],
    ],
)
def test_an_invalid_parameter_is_an_error_with_the_allowed_values(change, message):
    with pytest.raises(InputError, match=message):
        ExampleGenParams(**{"format": "coco", "splits": {"train": "a.json"}, **change})
