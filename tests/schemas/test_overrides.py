import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.overrides import Located, merge, parse_set, read_overrides

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


def test_keys_that_are_not_named_stay():
    merged = merge(BASE, parse_set("train.optimizer.momentum=0.8"))
    assert merged.data["train"]["optimizer"] == {"type": "Momentum", "momentum": 0.8}
    assert merged.data["train"]["batch_size"] == 128


def test_neither_layer_is_changed():
    merge(BASE, parse_set("train.augmentations[0].probability=1"))
    assert BASE.data["train"]["augmentations"][0]["probability"] == 0.5


def test_another_type_replaces_the_whole():
    merged = merge(BASE, parse_set("train.optimizer={type: Adam, epsilon: 1e-7}"))
    assert merged.data["train"]["optimizer"] == {"type": "Adam", "epsilon": "1e-7"}  # from_dict makes it a number


def test_a_list_is_replaced_and_a_place_in_it_is_not():
    assert merge(BASE, parse_set("train.augmentations=[]")).data["train"]["augmentations"] == []
    merged = merge(BASE, parse_set("train.augmentations[0].probability=1"))
    assert merged.data["train"]["augmentations"] == [{"type": "Flip", "probability": 1}, {"type": "Crop"}]


def test_a_place_beyond_the_list_is_refused():
    with pytest.raises(InputError, match=r"--set .*: train\.augmentations: got place 2, allowed: 0 to 1"):
        merge(BASE, parse_set("train.augmentations[2].probability=1"))


def test_every_key_knows_where_it_was_written():
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
def test_a_value_is_read_as_yaml(text, value):
    assert parse_set(text).data == {"a": value}


@pytest.mark.parametrize("text", ["train.batch_size", "a..b=1", "=1", "a[x]=1", "a=[1", "a=*x", "a=!!python/none x"])
def test_a_setting_that_cannot_be_read_is_one_sentence(text):
    with pytest.raises(InputError, match=r"^--set .*, allowed: [^\n]*$"):
        parse_set(text)


def test_a_list_of_settings_splits_at_its_outer_commas():
    layer = read_overrides("a.b=1, c=[1,2],d='x,y',e={f: 1, g: 2}")
    assert layer.data == {"a": {"b": 1}, "c": [1, 2], "d": "x,y", "e": {"f": 1, "g": 2}}


def test_a_yaml_file_of_overrides_may_nest_its_keys_or_dot_them(tmp_path):
    path = tmp_path / "overrides.yaml"
    path.write_text("train.batch_size: 8\ntrain:\n  optimizer:\n    momentum: 0.5\nmodel.a.b: {c: 1}\n")
    layer = read_overrides(str(path))
    assert layer.data == {"train": {"batch_size": 8, "optimizer": {"momentum": 0.5}}, "model": {"a": {"b": {"c": 1}}}}
    assert layer.locate(("train", "batch_size")) == f"{path}:1"
    assert layer.locate(("train", "optimizer", "momentum")) == f"{path}:4"
    assert layer.locate(("model", "a", "b", "c")) == f"{path}:5"


@pytest.mark.parametrize("text", ["", " , "])
def test_no_overrides_are_refused(text):
    with pytest.raises(InputError, match="got no overrides"):
        read_overrides(text)


def test_an_overrides_file_that_is_no_mapping_is_refused(tmp_path):
    (tmp_path / "o.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match=r"o\.yaml:1: got \[1\], allowed: a mapping"):
        read_overrides(str(tmp_path / "o.yaml"))


def test_of_what_another_type_replaced_nothing_is_where_it_was_written_before():
    merged = merge(BASE, parse_set("train.optimizer={type: Adam}"))
    assert merged.locate(("train", "optimizer", "momentum")) == "--set train.optimizer"


def test_what_a_mapping_of_the_same_type_leaves_out_is_where_it_was_written_before():
    merged = merge(BASE, parse_set("train.optimizer={type: Momentum}"))
    assert merged.locate(("train", "optimizer", "momentum")) == "base"


def test_many_settings_are_merged_one_after_the_other():
    merged = merge(BASE, *(parse_set(f"train.batch_size={i}") for i in range(2000)))
    assert merged.data["train"]["batch_size"] == 1999


def test_an_apostrophe_inside_a_value_is_part_of_it():
    assert read_overrides("a=it's,b=3").data == {"a": "it's", "b": 3}


def test_a_value_that_ends_as_a_yaml_file_does_is_a_value():
    assert read_overrides("a=foo.yaml").data == {"a": "foo.yaml"}


def test_the_place_of_a_setting_does_not_hold_its_value():
    layer = parse_set("smtp.password=hunter2")
    assert layer.locate(("smtp", "password")) == "--set smtp.password"
