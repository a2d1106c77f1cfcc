"""The files of the detection zoo, and files with random faults."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.network import BiFpn, ExtraFeatureLayers, FixedShapeResizer, Fpn, KeepAspectRatioResizer
from detloom.schemas.odapi.fields import message_types
from detloom.schemas.odapi.pipeline_config import (
    format_pipeline_config,
    parse_pipeline_config,
    read_pipeline_config,
)
from detloom.schemas.reading.text_file import read_text_file

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def zoo(reference_dir: Path) -> list[Path]:
    return sorted((reference_dir / "zoo_configs").glob("*.config"))


def read_zoo(zoo: list[Path], start: str) -> TrainEvalConfig:
    (path,) = (path for path in zoo if path.name.startswith(start))
    return read_pipeline_config(path)


# --- unchanged files --------------------------------------------------------------------------------------------------


def test_every_file_round_trips(zoo, tmp_path):
    assert len(zoo) == 40
    for path in zoo:
        config = read_pipeline_config(path)
        (tmp_path / path.name).write_text(format_pipeline_config(config))
        assert read_pipeline_config(tmp_path / path.name) == config
        assert "detloom" not in (tmp_path / path.name).read_text()


def test_no_field_is_in_two_lists(zoo):
    for path in zoo:
        report = parse_pipeline_config(path.read_text(), path.name)
        paths = [note.path for which in (report.mapped, report.ignored, report.refused) for note in which]
        assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("start", "side", "backbone", "neck", "batch_size", "rate", "num_steps"),
    [
        ("ssd_efficientdet_d0", 512, "efficientnet-b0", BiFpn(num_iterations=3, num_filters=64), 128, 0.08, 300_000),
        ("ssd_efficientdet_d4", 1024, "efficientnet-b4", BiFpn(num_iterations=7, num_filters=224), 128, 0.08, 300_000),
        ("ssd_mobilenet_v2_320", 300, "mobilenet_v2", ExtraFeatureLayers(num_layers=6), 512, 0.08, 50_000),
        ("ssd_mobilenet_v2_fpnlite_640", 640, "mobilenet_v2", Fpn(additional_layer_depth=128), 128, 0.08, 50_000),
        ("ssd_mobilenet_v1_fpn", 640, "mobilenet_v1", Fpn(), 64, 0.04, 25_000),
        ("ssd_resnet152_v1_fpn_1024", 1024, "resnet152_v1", Fpn(), 64, 0.04, 100_000),
    ],
)
def test_values_of_some_files(zoo, start, side, backbone, neck, batch_size, rate, num_steps):
    config = read_zoo(zoo, start)
    if isinstance(neck, BiFpn):
        wanted = KeepAspectRatioResizer(min_dimension=side, max_dimension=side, pad_to_max_dimension=True)
    else:
        wanted = FixedShapeResizer(height=side, width=side)
    assert config.model.image_resizer == wanted
    assert (config.model.feature_extractor.backbone, config.model.feature_extractor.neck) == (backbone, neck)
    assert config.model.num_classes == 90
    assert (config.train.batch_size, config.train.num_steps) == (batch_size, num_steps)
    assert config.train.optimizer.learning_rate.learning_rate_base == rate
    assert config.train.moving_average is None
    assert config.train.fine_tune_checkpoint.startswith("PATH_TO_BE_CONFIGURED")
    assert config.eval_input.num_epochs == 1


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


MUTATIONS: tuple[Callable[[str, random.Random], bytes], ...] = (misspell, mistype, exceed, truncate, junk)


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


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_small_file_with_a_fault_is_rejected(mutate, tmp_path):
    for seed in range(20):
        rng = random.Random(seed)
        text = (CONFIGS / rng.choice(("fpnlite.config", "efficientdet.config"))).read_text()
        assert_is_refused_in_one_line(tmp_path / "broken.config", mutate(text, rng), mutate is exceed)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_zoo_file_with_a_fault_is_rejected(mutate, zoo, tmp_path):
    """Check five kinds of faults in 40 files each: 200 files."""
    ssd = [path for path in zoo if path.name.startswith("ssd_")]
    for seed, path in enumerate(zoo):
        rng = random.Random(seed)
        # A value out of range is found only in a file that would load; extensions may contain any name.
        is_of_use = mutate is not exceed and "[object_detection" not in path.read_text()
        source = path if is_of_use else rng.choice(ssd)
        assert_is_refused_in_one_line(tmp_path / "broken.config", mutate(source.read_text(), rng), mutate is exceed)


def test_each_kind_of_fault_is_named(tmp_path):
    text, path = (CONFIGS / "fpnlite.config").read_text(), tmp_path / "broken.config"
    words = {misspell: "unknown field", mistype: "allowed: ", exceed: "got ", truncate: "end of the text", junk: "got"}
    for mutate, word in words.items():
        path.write_bytes(mutate(text, random.Random(1)))
        with pytest.raises(InputError, match=word):
            read_pipeline_config(path)
