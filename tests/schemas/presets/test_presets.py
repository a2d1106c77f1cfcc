import csv
import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.pipeline_config import read_pipeline_config
from detloom.schemas.presets.presets import Preset, find_preset, list_presets
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json

NAMES = [preset.name for preset in list_presets()]
LITE = [name for name in NAMES if name.startswith("efficientdet_lite")]
# By the start of the preset's name: part of the keys that the reference stores and never uses.
UNUSED = {
    "efficientdet_": "/classification_backbone/",
    "centernet_resnet50_v2_": "/_base_model/layer_with_weights-101/",
}
IN_ZOO = [name for name in NAMES if name not in ("efficientdet_d7x", *LITE)]


def zoo_file(folder: Path, preset: Preset, suffix: str) -> Path | None:
    """Return the zoo's file of a preset; its name ends with the data set and the TPU.

    If it does not exist, as for some lists of keys, return that of the same network with the smaller input, or None.
    """
    stem = preset.name
    if preset.family == "EfficientDet":
        stem = "ssd_{}_{}x{}".format(stem, *preset.image_hw)
    stems = (stem, *(stem.replace("1024x1024", f"{side}x{side}") for side in (640, 512)))
    return next((file for stem in stems for file in folder.glob(f"{stem}_coco17_?pu-*{suffix}")), None)


def without_paths(config: TrainEvalConfig) -> TrainEvalConfig:
    """Remove class count, paths, checkpoint and the files' block length, which presets do not have."""
    inputs = {
        name: dataclasses.replace(getattr(config, name), label_map_path="", input_path=(), read_block_length=1)
        for name in ("train_input", "eval_input")
    }
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, num_classes=None),
        train=dataclasses.replace(config.train, fine_tune_checkpoint="", fine_tune_checkpoint_type="auto"),
        **inputs,
    )


def comparable(config: TrainEvalConfig) -> Any:
    """Return plain data; numbers in the precision of the files, of which one has them with all digits of float32."""
    sigmas = tuple(sorted(config.eval.keypoint_sigmas, key=lambda each: each.name))  # their order has no meaning
    ordered = dataclasses.replace(config, eval=dataclasses.replace(config.eval, keypoint_sigmas=sigmas))
    return json.loads(to_canonical_json(ordered), parse_float=lambda text: float(np.float32(text)))


def test_the_families_are_listed_and_sizes_are_those_of_the_input():
    numbers = {"SSD": 3, "RetinaNet": 7, "EfficientDet": 15, "CenterNet": 8, "Faster R-CNN": 10, "Mask R-CNN": 1}
    assert Counter(preset.family for preset in list_presets()) == numbers
    assert len(set(NAMES)) == len(NAMES)
    assert find_preset("ssd_mobilenet_v2_320x320").image_hw == (300, 300)  # stretched
    assert find_preset("efficientdet_d1").image_hw == (640, 640)  # padded


@pytest.mark.parametrize("name", IN_ZOO)
def test_preset_equals_the_file_of_the_zoo(name: str, reference_dir: Path):
    preset = find_preset(name)
    path = zoo_file(reference_dir / "zoo_configs", preset, ".config")
    assert path is not None
    config = without_paths(read_pipeline_config(path))
    assert comparable(preset.config) == comparable(config)


@pytest.mark.parametrize("name", IN_ZOO)
def test_parameters_are_those_used_by_the_reference(name: str, reference_dir: Path):
    preset = find_preset(name)
    path = zoo_file(reference_dir / "keys", preset, ".tsv")
    if path is None:
        pytest.skip("the keys of this network are not among the reference values")
    count = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            is_unused = any(name.startswith(start) and part in row["key"] for start, part in UNUSED.items())
            if row["dtype"] == "float32" and "/moving_" not in row["key"] and not is_unused:
                count += math.prod(json.loads(row["shape"]))
    assert preset.num_parameters == count


@pytest.mark.parametrize("name", NAMES)
def test_preset_has_no_class_count_and_no_paths_and_survives_json(name: str):
    config = find_preset(name).config
    assert without_paths(config) == config
    assert from_json(TrainEvalConfig, to_canonical_json(config)) == config


def test_d7x_has_one_more_level_and_is_not_in_the_zoo():
    preset = find_preset("efficientdet_d7x")
    assert preset.config.model.feature_extractor.neck.max_level == 8
    assert preset.config.model.image_resizer.half_pixel_centers
    assert "not in the TF2 detection zoo" in preset.description
    with pytest.raises(InputError, match=r"got 'efficientdet-d0'.*'efficientdet_d0'\?"):
        find_preset("efficientdet-d0")


@pytest.mark.parametrize(
    ("name", "side", "channels", "iterations", "head_layers", "anchor_scale"),
    [  # google/automl, hparams_config.py: 4 is its default scale
        ("lite0", 320, 64, 3, 3, 3),
        ("lite1", 384, 88, 4, 3, 3),
        ("lite2", 448, 112, 5, 3, 3),
        ("lite3", 512, 160, 6, 4, 4),
        ("lite3x", 640, 200, 6, 4, 3),
        ("lite4", 640, 224, 7, 4, 4),
    ],
)
def test_lite_has_the_sizes_of_google_automl(name, side, channels, iterations, head_layers, anchor_scale):
    preset = find_preset(f"efficientdet_{name}")
    model = preset.config.model
    neck, heads = model.feature_extractor.neck, model.box_predictor
    assert preset.image_hw == (side, side)
    assert model.feature_extractor.backbone == f"efficientnet-{name.removesuffix('x')}"
    assert (neck.num_filters, neck.num_iterations, neck.combine_method) == (channels, iterations, "sum")
    assert (heads.depth, heads.num_layers_before_predictor) == (channels, head_layers)
    assert model.anchor_generator.anchor_scale == anchor_scale
    assert {heads.conv_hyperparams.activation, model.feature_extractor.conv_hyperparams.activation} == {"RELU_6"}
    assert preset.config.train.augmentations[-1].output_size == side


def test_lite0_has_the_number_of_parameters_of_google_automl(reference_dir: Path):
    with (reference_dir / "automl_efficientdet_lite0/checkpoint_keys.tsv").open(encoding="utf-8") as file:
        shapes = {key: json.loads(shape) for key, shape in csv.reader(file, delimiter="\t")}
    trained = [key for key in shapes if "/moving_" not in key and not key.endswith("/ExponentialMovingAverage")]
    count = sum(math.prod(shapes[key]) for key in trained if key != "global_step")
    assert find_preset("efficientdet_lite0").num_parameters == count == 3_243_470
