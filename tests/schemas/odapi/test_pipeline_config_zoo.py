"""The files of the detection zoo, and files with random faults."""

import random
import re
from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.odapi.fields import message_types
from detloom.schemas.odapi.pipeline_config import (
    format_pipeline_config,
    parse_pipeline_config,
    read_pipeline_config,
)
from detloom.schemas.reading.text_file import read_text_file

CONFIGS = Path(__file__).parents[1] / "configs"


# --- unchanged files --------------------------------------------------------------------------------------------------


def test_every_file_of_the_zoo_round_trips(reference_dir, tmp_path):
    zoo = list((reference_dir / "zoo_configs").glob("*.config"))
    assert len(zoo) == 40
    for path in zoo:
        config = read_pipeline_config(path)
        (tmp_path / path.name).write_text(format_pipeline_config(config))
        assert read_pipeline_config(tmp_path / path.name) == config
        assert "detloom" not in (tmp_path / path.name).read_text()


# --- random faults ----------------------------------------------------------------------------------------------------

ALL_NAMES = {field for message in message_types().values() for field in message.fields}
OUT_OF_RANGE = (
    (r"\bbatch_size: \d+", "batch_size: -8"),
    (r"\bnum_steps: \d+", "num_steps: 5000000000"),
    (r"\bnum_classes: \d+", "num_classes: 0"),
    (r"\bweight: \S+", "weight: -0.1"),
    (r"\bdecay: [\d.]+", "decay: 1.5"),
    (r"\bmatched_threshold: \S+", "matched_threshold: 2"),
    (r"\bwarmup_steps: \d+", "warmup_steps: 4000000000"),
    (r"\bepsilon: [\d.]+", "epsilon: nan"),
    (r"\bheight: \d+|\bmin_dimension: \d+", "height: 2147483648 # min_dimension"),
)


def misspell(text: str, rng: random.Random) -> bytes:
    found = [match for match in re.finditer(r"[a-z_0-9]{3,}(?=\s*[:{<])", text) if match[0] in ALL_NAMES]
    while True:
        match = rng.choice(found)
        at = rng.randrange(len(match[0]) - 1)
        letters = [*match[0]]
        one, two = letters[at : at + 2]
        letters[at : at + 2] = rng.choice(([one], [two, one], [one, one, two]))
        name = "".join(letters)
        if name not in ALL_NAMES:
            return (text[: match.start()] + name + text[match.end() :]).encode()


def mistype(text: str, rng: random.Random) -> bytes:
    match = rng.choice([*re.finditer(r"(?<=: )(\"[^\"\n]*\"|'[^'\n]*'|[\w.+-]+)", re.sub(r"#.*", "", text))])
    text = re.sub(r"#.*", "", text)
    return (text[: match.start()] + ("12" if match[0][0] in "\"'" else '"12"') + text[match.end() :]).encode()


def exceed(text: str, rng: random.Random) -> bytes:
    pattern, value = rng.choice([each for each in OUT_OF_RANGE if re.search(each[0], text)])
    match = rng.choice([*re.finditer(pattern, text)])
    return (text[: match.start()] + value + text[match.end() :]).encode()


def truncate(text: str, rng: random.Random) -> bytes:
    text = re.sub(r"#.*", "", text)
    depths = [0]
    for character in text:
        depths.append(depths[-1] + (character in "{<") - (character in "}>"))
    return text[: rng.choice([i for i, depth in enumerate(depths) if depth > 0])].encode()


def junk(text: str, rng: random.Random) -> bytes:
    data = text.encode()
    at = rng.randrange(len(data))
    noise = bytes([rng.choice((0, 0xFF, 0xC0, 0xFE)), *rng.randbytes(rng.randrange(20))])
    return noise + rng.randbytes(1000) if rng.random() < 0.2 else data[:at] + noise + data[at:]


WORDS = {misspell: "unknown field", mistype: "allowed: ", exceed: "got ", truncate: "end of the text", junk: "got"}


def assert_is_refused_in_one_line(path: Path, data: bytes, can_be_parsed: bool) -> None:
    path.write_bytes(data)
    if not can_be_parsed:  # checks that the fault is found, and not the unsupported family
        with pytest.raises(InputError):
            parse_pipeline_config(read_text_file(path), str(path))
    with pytest.raises(InputError) as error:
        read_pipeline_config(path)
    text = str(error.value)
    assert re.match(rf"{re.escape(str(path))}:\d+: \S", text), text
    assert len(text.splitlines()) == 1
    assert len(text) < 1000
    assert int(text[len(str(path)) + 1 :].partition(":")[0]) <= data.count(b"\n") + 1


@pytest.mark.parametrize("mutate", WORDS, ids=lambda mutate: mutate.__name__)
def test_file_with_a_fault_is_rejected(mutate, tmp_path):
    path = tmp_path / "broken.config"
    for seed in range(20):
        rng = random.Random(seed)
        text = (CONFIGS / rng.choice(("fpnlite.config", "efficientdet.config"))).read_text()
        assert_is_refused_in_one_line(path, mutate(text, rng), mutate is exceed)
    path.write_bytes(mutate((CONFIGS / "fpnlite.config").read_text(), random.Random(1)))
    with pytest.raises(InputError, match=WORDS[mutate]):
        read_pipeline_config(path)
