"""Round trip of configurations of every kind: read(write(c)) == c."""

import contextlib
import dataclasses
import random
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.model.augmentations import RandomHorizontalFlip
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.crop_augmentations import SsdRandomCrop, SsdRandomCropOperation
from detloom.schemas.model.deepmac import DeepMac
from detloom.schemas.model.optimizers import (
    AdamWOptimizer,
    ClipEachThenGlobalNorm,
    MovingAverage,
    PolynomialLearningRate,
)
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, parse_pipeline_config, read_pipeline_config
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import from_dict, type_hints

CONFIGS = Path(__file__).parents[1] / "configs"
SMALL_FILES = [CONFIGS / "fpnlite.config", CONFIGS / "efficientdet.config"]
BASES = (
    "ssd_mobilenet_v2_320x320",
    "ssd_resnet50_v1_fpn_640x640",
    "efficientdet_d0",
    "centernet_hourglass104_512x512",
    "centernet_resnet50_v2_512x512_kpts",
    "faster_rcnn_resnet50_v1_fpn_640x640",
    "mask_rcnn_inception_resnet_v2_1024x1024",
)
KeyPath = tuple[str | int, ...]

# --- random configurations --------------------------------------------------------------------------------------------


def fields_of(node: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, type, str]]:
    """Yield key path, class and name of each field of a dataclass and of those in it."""
    for field in dataclasses.fields(node):
        yield (*path, field.name), type(node), field.name
        value = getattr(node, field.name)
        items = {(field.name, i): item for i, item in enumerate(value)} if isinstance(value, tuple) else {}
        for below, item in (items or {(field.name,): value}).items():
            if dataclasses.is_dataclass(item):
                yield from fields_of(item, (*path, *below))


def at(node: Any, path: KeyPath) -> Any:
    for key in path:
        node = node[key] if isinstance(key, int) else getattr(node, key)
    return node


def changed(node: Any, path: KeyPath, value: Any) -> Any:
    """Return a copy of a tree with another value."""
    if not path:
        return value
    below = changed(at(node, path[:1]), path[1:], value)
    if isinstance(node, tuple):
        return (*node[: path[0]], below, *node[path[0] + 1 :])
    return dataclasses.replace(node, **{path[0]: below})


def draw(rng: random.Random, annotation: Any, old: Any) -> Any:
    """Draw a value of a field; it may be refused."""
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        length = len(old) if old and rng.random() < 0.5 else rng.randint(1, 3)
        return tuple(draw(rng, args[0], None) for _ in range(length))
    if typing.get_origin(annotation) is typing.Literal:
        return rng.choice(args)
    if args:
        return draw(rng, rng.choice(args), old)
    if dataclasses.is_dataclass(annotation):
        needed = [field.name for field in dataclasses.fields(annotation) if field.default in (dataclasses.MISSING, ())]
        made = annotation(**{name: draw(rng, type_hints(annotation)[name], None) for name in needed})
        return vary(made, rng)
    numbers = {int: (0, 1, 2, 3, 4, 32, 1000), float: (0.0, 0.1, 1 / 3, 1.0, 2.0, 1e-6)}
    return rng.choice({bool: (False, True), str: ("text", "name", "AP50"), type(None): (None,), **numbers}[annotation])


def base_config(name: str) -> TrainEvalConfig:
    config = find_preset(name).config
    if name == "centernet_hourglass104_512x512":
        assert isinstance(config.model, CenterNet)
        masks = dataclasses.replace(config.model, deepmac_mask_estimation=DeepMac())
        return dataclasses.replace(config, model=masks)
    return config


def vary(config: Any, rng: random.Random) -> Any:
    """Draw every field again, and keep the values that are accepted."""
    for path, cls, name in list(fields_of(config)):
        with contextlib.suppress(FieldError, AttributeError, IndexError):  # also if an earlier change removed the field
            if type(at(config, path[:-1])) is cls:
                config = changed(config, path, draw(rng, type_hints(cls)[name], at(config, path)))
    return config


def read_back(config: TrainEvalConfig) -> TrainEvalConfig:
    report = parse_pipeline_config(format_pipeline_config(config), "F")
    assert report.refused == ()
    return from_dict(TrainEvalConfig, report.located.data, locate=report.located.locate)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", BASES)
def test_random_configurations_round_trip(name, seed):
    config = vary(base_config(name), random.Random(seed))
    assert read_back(config) == config


# --- single cases -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=SMALL_FILES, ids=lambda path: path.stem)
def config(request: pytest.FixtureRequest) -> TrainEvalConfig:
    return read_pipeline_config(request.param)


def train(config: TrainEvalConfig, **changes: Any) -> TrainEvalConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def test_configuration_of_the_format_needs_no_extension_and_writing_is_stable(config):
    text = format_pipeline_config(config)
    assert "detloom" not in text
    again = read_back(config)
    assert again == config
    assert format_pipeline_config(again) == text


def test_settings_without_a_field_are_written_to_the_extension(config):
    changed = train(config, seed=7, moving_average=MovingAverage(decay=0.5, dynamic=False))
    text = format_pipeline_config(changed)
    *_, extension = text.partition("[detloom.overrides] ")
    assert extension == '{\n  set: "train.moving_average.dynamic=false"\n  set: "train.seed=7"\n}\n'
    assert "moving_average_decay: 0.5" in text
    assert read_back(changed) == changed


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (
            lambda _: find_preset("efficientdet_lite3").config,
            'model.feature_extractor.backbone=\\"efficientnet-lite3\\""',
        ),
        (
            lambda config: train(
                config,
                optimizer=AdamWOptimizer(learning_rate=PolynomialLearningRate(total_steps=10)),
                gradient_clipping=ClipEachThenGlobalNorm(norm=1.0),
            ),
            'train.optimizer={\\"type\\": \\"AdamWOptimizer\\"',
        ),
        (
            lambda config: dataclasses.replace(
                config, train_input=dataclasses.replace(config.train_input, num_epochs=2**32)
            ),
            'train_input.num_epochs=4294967296"',
        ),
    ],
)
def test_what_the_format_cannot_hold_is_written_to_the_extension(config, change, written):
    changed = change(config)
    assert f'set: "{written}' in format_pipeline_config(changed)
    assert read_back(changed) == changed


@pytest.mark.parametrize("text", ['"', "'", "\\", "a\nb", "\t\r\x7f", "é漢😀", "\u2028\x85", "\\n", "#", "\x01" + "1"])
def test_texts_round_trip(config, text):
    changed = train(config, fine_tune_checkpoint=text)
    assert read_back(changed) == changed
    assert "\n" not in format_pipeline_config(changed).partition("fine_tune_checkpoint: ")[2].partition('"\n')[0]


@pytest.mark.parametrize("number", [0.1, 1e-8, 1 / 3, 5e-324, 123456789.125, 3.4028234663852886e38, 1e38])
def test_floats_round_trip_exactly(config, number):
    changed = train(config, keep_checkpoint_every_n_hours=number)
    assert read_back(changed).train.keep_checkpoint_every_n_hours == number


def test_lists_round_trip(config):
    crop = SsdRandomCropOperation(min_aspect_ratio=0.5, max_aspect_ratio=2.0, max_area=1.0)
    for steps in ((), (SsdRandomCrop(),), (SsdRandomCrop(operations=(crop, crop)), RandomHorizontalFlip())):
        changed = train(config, augmentations=steps)
        assert read_back(changed) == changed
        assert "detloom" not in format_pipeline_config(changed)


def test_written_file_has_the_order_and_indentation_of_the_format(config):
    lines = format_pipeline_config(config).splitlines()
    assert [line for line in lines if not line.startswith((" ", "}"))] == [
        "model {",
        "train_config {",
        "train_input_reader {",
        "eval_config {",
        "eval_input_reader {",
    ]
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in lines)
