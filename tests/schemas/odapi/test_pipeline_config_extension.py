"""Settings in the extension [detloom.overrides], which override the file."""

from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import RandomHorizontalFlip

FPNLITE = (Path(__file__).parents[1] / "configs" / "fpnlite.config").read_text()


def test_settings_of_the_extension_override_the_file(parse, config_of):
    text = FPNLITE + '\n[detloom.overrides] { set: "train.seed=3"\n set: "train.augmentations[0].probability=1" }'
    config = config_of(text)
    assert config.train.seed == 3
    assert config.train.augmentations[0] == RandomHorizontalFlip(probability=1.0)
    last = FPNLITE.count("\n") + 3
    (note,) = (note for note in parse(text).mapped if note.path == "[detloom.overrides].set[1]")
    assert (note.where, note.reason) == (f"F:{last}", "train.augmentations[0].probability")


@pytest.mark.parametrize(
    "setting", ["train.seed", "train.seed=", "train.seed=[", "train.seed=yes", "train.seed=" + "[" * 66 + "]" * 66]
)
def test_invalid_setting_of_the_extension_is_rejected(setting, parse):
    with pytest.raises(InputError, match=r'^F:1: \[detloom\.overrides\]\.set: got ".*, allowed: "key\.path=JSON"\.$'):
        parse(f'[detloom.overrides] {{ set: "{setting}" }}')


@pytest.mark.parametrize("key", ["", "train.", "train.augmentations[1234567]", "train.augmentations[\u00b2]", "[0]"])
def test_invalid_key_is_rejected(key, parse):
    with pytest.raises(InputError, match=r"^F:1: \[detloom\.overrides\]\.set: got the key '.*', allowed: names"):
        parse(f'[detloom.overrides] {{ set: "{key}=1" }}')


def test_key_with_too_many_names_is_rejected(parse):
    with pytest.raises(InputError, match=r"set: got a key of 5000 names, allowed: at most 32\.$"):
        parse(f'[detloom.overrides] {{ set: "{".".join(["a"] * 5000)}=1" }}')


def test_many_settings_keep_their_lines(parse, config_of):
    sets = "".join(f'set: "train.seed={i}"\n' for i in range(1100))
    text = f'{FPNLITE}[detloom.overrides] {{\n{sets}set: "train.num_steps=9" }}'
    first = FPNLITE.count("\n") + 2  # the line after the start of the extension
    assert config_of(text).train.seed == 1099
    locate = parse(text).located.locate
    assert locate(("train", "seed")) == f"F:{first + 1099}"
    assert locate(("train", "num_steps")) == f"F:{first + 1100}"
    assert locate(("train", "batch_size")) == parse(FPNLITE).located.locate(("train", "batch_size"))


def test_location_is_that_of_the_last_effective_setting(parse):
    text = f"""{FPNLITE}[detloom.overrides] {{ set: "train.augmentations[0].probability=0.5"
        set: "train.augmentations=[]"
        set: "train.optimizer.momentum=0.5" }}"""
    last, locate = FPNLITE.count("\n") + 3, parse(text).located.locate
    assert locate(("train", "augmentations", 0, "probability")) == f"F:{last - 1}"
    assert locate(("train", "optimizer", "momentum")) == f"F:{last}"
    assert locate(("train", "optimizer", "learning_rate")) == parse(FPNLITE).located.locate(
        ("train", "optimizer", "learning_rate")
    )


def test_settings_are_merged_in_order(parse):
    text = f"""{FPNLITE}[detloom.overrides] {{ set: "train.optimizer=null"
        set: 'train.optimizer={{"type": "AdamOptimizer"}}' set: "train.optimizer.epsilon=0.5" }}"""
    assert parse(text).located.data["train"]["optimizer"] == {"type": "AdamOptimizer", "epsilon": 0.5}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.augmentations[7].probability=1", r"train\.augmentations: got index 7, allowed: 0 to 1\.$"),
        ("train.seeds=3", r"train\.seeds: unknown key.*Did you mean 'seed'\?$"),
        *((f"train.{digits}=1", r"train\..*unknown key") for digits in ("\u00b2", "9" * 5000)),
    ],
)
def test_a_wrong_setting_is_located(setting, message, config_of):
    with pytest.raises(InputError, match=rf"^F:\d+: {message}") as error:
        config_of(f'{FPNLITE}[detloom.overrides] {{ set: "{setting}" }}')
    assert len(str(error.value)) < 1000  # mostly the list of allowed keys


def test_setting_can_provide_a_missing_field(config_of):
    text = FPNLITE.replace("num_steps: 1500 ", "")
    assert "num_steps: " not in text
    assert config_of(text + '[detloom.overrides] { set: "train.num_steps=9" }').train.num_steps == 9
