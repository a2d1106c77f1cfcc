import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.reading.overrides import Located, merge, parse_set, read_setting

BASE = Located(
    {
        "train": {
            "batch_size": 128,
            "optimizer": {"type": "Momentum", "momentum": 0.9},
            "augmentations": [{"type": "Flip", "probability": 0.5}, {"type": "Crop"}],
        }
    },
    lambda path: "base",
)


def test_merge_keeps_other_keys_and_does_not_change_its_layers():
    merged = merge(BASE, parse_set("train.optimizer.momentum=0.8"))
    assert merged.data["train"]["optimizer"] == {"type": "Momentum", "momentum": 0.8}
    assert merged.data["train"]["batch_size"] == 128
    merged = merge(BASE, parse_set("train.augmentations[0].probability=1"))
    assert merged.data["train"]["augmentations"] == [{"type": "Flip", "probability": 1}, {"type": "Crop"}]
    assert BASE.data["train"]["augmentations"][0]["probability"] == 0.5
    assert merge(BASE, parse_set("train.augmentations=[]")).data["train"]["augmentations"] == []
    merged = merge(BASE, *(parse_set(f"train.batch_size={i}") for i in range(1100)))  # in order
    assert merged.data["train"]["batch_size"] == 1099


def test_another_type_replaces_the_mapping():
    merged = merge(BASE, parse_set("train.optimizer={type: Adam, epsilon: 1e-7}"))
    assert merged.data["train"]["optimizer"] == {"type": "Adam", "epsilon": "1e-7"}  # from_dict makes it a number
    assert merged.locate(("train", "optimizer", "momentum")) == "--set train.optimizer"
    merged = merge(BASE, parse_set("train.optimizer={type: Momentum}"))
    assert merged.locate(("train", "optimizer", "momentum")) == "base"


def test_index_out_of_range_is_rejected():
    with pytest.raises(InputError, match=r"--set .*: train\.augmentations: got index 2, allowed: 0 to 1"):
        merge(BASE, parse_set("train.augmentations[2].probability=1"))


def test_every_key_is_located():
    merged = merge(BASE, parse_set("train.batch_size=8"), parse_set("train.augmentations[1].min_area=0.5"))
    assert merged.locate(("train", "batch_size")) == "--set train.batch_size"
    assert merged.locate(("train", "augmentations", 0)) == "base"
    assert merged.locate(("train", "augmentations", 1, "min_area")) == "--set train.augmentations[1].min_area"
    assert merged.holds(("train", "augmentations", 1, "min_area"))
    assert not merged.holds(("train", "augmentations", 2))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=8", 8),
        ("a=", None),
        ("a=null", None),
        ("a=true", True),
        ("a=[1, 2]", [1, 2]),
        ("a=x=y", "x=y"),
        ("a='8'", "8"),
    ],
)
def test_value_is_parsed_as_yaml(text, value):
    assert parse_set(text).data == {"a": value}
    assert read_setting("a=foo.yaml").data == {"a": "foo.yaml"}  # no file
    assert parse_set("smtp.password=hunter2").locate(("smtp", "password")) == "--set smtp.password"


@pytest.mark.parametrize("text", ["train.batch_size", "a..b=1", "=1", "a[x]=1", "a=[1", "a=*x", "a=!!python/none x"])
def test_invalid_setting_is_rejected_in_one_line(text):
    with pytest.raises(InputError, match=r"^--set .*, allowed: [^\n]*$"):
        parse_set(text)


def test_settings_file_may_have_nested_or_dotted_keys(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("train.batch_size: 8\ntrain:\n  optimizer:\n    momentum: 0.5\nmodel.a.b: {c: 1}\n")
    layer = read_setting(str(path))
    assert layer.data == {"train": {"batch_size": 8, "optimizer": {"momentum": 0.5}}, "model": {"a": {"b": {"c": 1}}}}
    assert layer.locate(("train", "batch_size")) == f"{path}:1"
    assert layer.locate(("train", "optimizer", "momentum")) == f"{path}:4"
    assert layer.locate(("model", "a", "b", "c")) == f"{path}:5"


def test_settings_file_that_is_not_a_mapping_is_rejected(tmp_path):
    (tmp_path / "o.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match=r"o\.yaml:1: got \[1\], allowed: a mapping"):
        read_setting(str(tmp_path / "o.yaml"))
