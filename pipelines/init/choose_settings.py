"""Choose the settings of a first run from the content of a folder, with the reason for each choice."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detloom.components.dataset_validator.statistics.anchor_fit import RECALL_IOU, suggest_anchors
from detloom.pipelines.init.run_file_text import Choices
from detloom.pipelines.init.scan_data import DataScan
from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import MultiscaleAnchorGenerator
from detloom.schemas.presets import recipes
from detloom.schemas.presets.recipes import QUALITIES, RECIPES, Quality
from detloom.schemas.reading.format_duration import format_duration

_SMALL_OBJECT_SHARE = 0.1  # quantile that MIN_OBJECT_SIDE_PX is compared with
_LARGE_OBJECT_SHARE = 0.95
_MIN_IMAGES = 20
_MAX_RATIO = 2.0  # of the input's sides; longer images are compressed
_FEW_ANCHORS_RECALL = 0.97  # below, a location gets twice as many anchors
_EXAMPLE_AP50 = 0.9  # for which the confidence interval is computed
_NUM_EVALUATIONS = 4
_OWN_SPLITS = {"train": "train", "eval": "val", "test": "test"}  # names of the readers of data sets


def choose_settings(scan: DataScan, name: str, quality: Quality) -> Choices:
    """Return the settings for a data set, with a schedule without a time limit; `limit_time` shortens it.

    Args:
        name: name of the pipeline.

    Raises:
        InputError: if the data set is too small to be split.
    """
    recipe = RECIPES[quality]
    reasons: dict[str, str] = {}
    num_train = _count_images(scan)["train"]
    data = _choose_splits(scan, reasons)
    input_hw = _choose_input(scan, quality, reasons)
    anchors = _choose_anchors(scan, input_hw, reasons)
    levels = {"max_level": anchors.max_level}
    batch_norm = {"conv_hyperparams": {"batch_norm": {"decay": recipes.BATCH_NORM_DECAY}}}
    batch_size = max(1, min(recipes.BATCH_SIZE, num_train // 4))
    num_steps = math.ceil(recipe.num_epochs * num_train / batch_size)
    num_steps = min(max(num_steps, recipes.MIN_PLANNED_STEPS), recipes.MAX_PLANNED_STEPS)
    reasons["train.num_steps"] = f"{num_steps * batch_size / num_train:.0f} passes over {num_train} training images"
    max_boxes = max(20, math.ceil(2 * scan.max_boxes / 10) * 10)
    reasons["train_input.max_number_of_boxes"] = (
        f"an image has up to {scan.max_boxes} objects; later ones, or a mosaic of four, may have more"
    )
    reasons["detector"] = f"quality {quality}; the ImageNet weights of its backbone are installed with detloom"
    settings = {
        "name": name,
        "data": data,
        "detector": recipe.detector,
        "model": {
            "image_resizer": {"type": "FixedShapeResizer", "height": input_hw[0], "width": input_hw[1]},
            "feature_extractor": {"neck": levels, **batch_norm},
            "anchor_generator": {
                **levels,
                "anchor_scale": anchors.anchor_scale,
                "aspect_ratios": list(anchors.aspect_ratios),
                "scales_per_octave": anchors.scales_per_octave,
            },
            "box_predictor": batch_norm,
            "loss": {"localization_weight": recipes.LOCALIZATION_WEIGHT},
            "post_processing": {"batch_non_max_suppression": recipes.SUPPRESSION},
        },
        "train": {
            "batch_size": batch_size,
            **recipes.training_settings(num_steps),
            "augmentations": recipes.augmentations(scan.image_hw, num_steps * batch_size / num_train),
        },
        "train_input": {"max_number_of_boxes": max_boxes},
        "eval": {
            "batch_size": batch_size,
            "evaluate_every": _evaluate_every(num_steps),
            "use_moving_averages": True,
        },
    }
    return Choices(settings, reasons)


def limit_time(
    choices: Choices, scan: DataScan, quality: Quality, step_seconds: float, seconds: float, spent: float
) -> None:
    """Shorten the schedule of a run that must end in time.

    Args:
        scan, quality: those of the choices.
        step_seconds: seconds of a training step.
        seconds: time limit of the whole run.
        spent: seconds of it that have passed.

    Raises:
        InputError: if there is too little time to train anything useful.
    """
    train, step = choices.settings["train"], f"{step_seconds:.2f} s"
    num_steps = math.floor(recipes.training_seconds(seconds - spent) / step_seconds)
    if num_steps < recipes.MIN_STEPS:
        needed = spent + recipes.run_seconds(recipes.MIN_STEPS * step_seconds)
        required = format_duration(60 * math.ceil(needed / 60))
        smaller = _advise_quality(scan, quality, step_seconds, seconds, spent)
        raise InputError(
            f"--budget: {format_duration(seconds)} is too short; at least {required} are needed, because a step takes "
            f"{step} here now, and fewer than {recipes.MIN_STEPS} steps learn little. Give more time, or try again "
            f"when the machine is less busy.{smaller} Without --budget, the number of steps follows from the quality."
        )
    if num_steps >= train["num_steps"]:
        choices.reasons["train.num_steps"] += (
            f"; the {num_steps} steps that fit into {format_duration(seconds)} at {step} each would overfit"
        )
        return
    train.update(recipes.training_settings(num_steps))
    num_passes = num_steps * train["batch_size"] / _count_images(scan)["train"]
    train["augmentations"] = recipes.augmentations(scan.image_hw, num_passes)
    choices.settings["eval"]["evaluate_every"] = _evaluate_every(num_steps)
    choices.reasons["train.num_steps"] = (
        f"a step takes {step} on this machine; with start-up and evaluation, the run ends in {format_duration(seconds)}"
    )


def check_time(seconds: float) -> None:
    """Raise InputError for a time limit that is too short on any machine, before the time of a step is measured."""
    if seconds <= recipes.START_AND_END_SECONDS:
        raise InputError(
            f"--budget: {format_duration(seconds)} is too short: start-up, export and evaluation alone take about "
            f"{format_duration(recipes.START_AND_END_SECONDS)}."
        )


def _advise_quality(scan: DataScan, quality: Quality, step_seconds: float, seconds: float, spent: float) -> str:
    """Return the largest smaller quality that probably fits; the time of a step is about proportional to its pixels."""
    height, width = _choose_input(scan, quality, {})
    for smaller in reversed(QUALITIES[: QUALITIES.index(quality)]):
        smaller_h, smaller_w = _choose_input(scan, smaller, {})
        estimated = step_seconds * smaller_h * smaller_w / (height * width)
        if spent + recipes.run_seconds(recipes.MIN_STEPS * estimated) <= seconds:
            return f" --quality {smaller} probably fits: about {estimated:.2f} s for a step."
    return "" if quality == QUALITIES[0] else " No smaller --quality fits either."


def _evaluate_every(num_steps: int) -> int:
    return math.ceil(num_steps / _NUM_EVALUATIONS)


def _own_sources(scan: DataScan) -> dict[str, str]:
    """Return the data set's own splits, source by split; at most one of eval and test is missing. Empty: use none."""
    found = {split: scan.splits[name] for split, name in _OWN_SPLITS.items() if scan.num_images[name]}
    return found if "train" in found and len(found) > 1 and not scan.shared_images else {}


def _count_images(scan: DataScan) -> dict[str, int]:
    """Return the number of images by split, about right if detloom makes a split."""
    own = _own_sources(scan)
    if not own:
        return {split: round(share * scan.total_images) for split, share in recipes.SPLIT_SHARES.items()}
    images = {split: scan.num_images[name] for split, name in _OWN_SPLITS.items()}
    for split in images.keys() - own.keys():
        images[split] = round(recipes.SPLIT_SHARES[split] * images["train"])
        images["train"] -= images[split]
    return images


def _choose_splits(scan: DataScan, reasons: dict[str, str]) -> dict[str, Any]:
    """Return the section `data`."""
    data: dict[str, Any] = {"format": scan.data_format, "path": scan.root}
    reasons["data.format"] = scan.evidence
    classes = ", ".join(f"{name} {number}" for name, number in scan.boxes_by_class.most_common(20))
    part = "" if scan.is_complete else "; of the first records of each split"
    reasons["data.path"] = f"{scan.total_images} images; objects: {classes}{part}"
    images = _count_images(scan)
    total, own = scan.total_images, _own_sources(scan)
    if len(own) < len(_OWN_SPLITS) and total < _MIN_IMAGES:
        raise InputError(f"{scan.root}: has {total} images; at least {_MIN_IMAGES} are needed to make splits.")
    if own:
        missing = next((split for split in _OWN_SPLITS if split not in own), None)
        cut = {"cut_share": recipes.SPLIT_SHARES[missing]} if missing else {}
        data["splits"] = {**own, **cut}
        why = f"; it has no {missing} split, so a part of the training images becomes it" if missing else ""
        reasons["data.splits"] = (
            f"those of the data set{why}: {_counts(images)} images; {_interval(scan, images['test'])}"
        )
        return data
    data["split_by_ratio"] = dict(recipes.SPLIT_SHARES)
    why = "the data set has no splits for training, evaluation and test"
    if scan.shared_images:
        why = f"the data set's own splits share images ({' = '.join(scan.shared_images)})"
    reasons["data.split_by_ratio"] = (
        f"{why}; images that look the same stay together; about {_counts(images)} images; "
        f"{_interval(scan, images['test'])}"
    )
    return data


def _counts(images: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {number}" for split, number in images.items())


def _interval(scan: DataScan, num_images: int) -> str:
    """Describe the accuracy of AP50 on a test split of independent images.

    The normal approximation of the binomial distribution, with one detection per object; images have several objects,
    so it is a lower bound.
    """
    num_objects = max(1, round(sum(scan.boxes_by_class.values()) * num_images / scan.total_images))
    half = 1.96 * math.sqrt(_EXAMPLE_AP50 * (1 - _EXAMPLE_AP50) / num_objects)
    return f"with about {num_objects} test objects, an AP50 of {_EXAMPLE_AP50} is uncertain by at least {half:.2f}"


def _choose_input(scan: DataScan, quality: Quality, reasons: dict[str, str]) -> tuple[int, int]:
    recipe = RECIPES[quality]
    sides = np.sqrt(scan.box_sizes_hw().prod(axis=1))  # of a square object, as a share of a square input's side
    small, large = float(np.quantile(sides, _SMALL_OBJECT_SHARE)), float(np.quantile(sides, _LARGE_OBJECT_SHARE))
    side = min(max(recipe.input_side, recipes.MIN_OBJECT_SIDE_PX / small), recipe.max_input_side)
    height, width = scan.image_hw
    ratio = min(max(width / height, 1 / _MAX_RATIO), _MAX_RATIO)
    exact = (side / math.sqrt(ratio), side * math.sqrt(ratio))
    multiple = recipes.INPUT_MULTIPLE
    input_h, input_w = (multiple * max(1, round(each / multiple)) for each in exact)
    pixels = math.sqrt(input_h * input_w)
    reasons["model.image_resizer"] = (
        f"images are {height} x {width} (median); objects have sides of {small * pixels:.0f} to {large * pixels:.0f} "
        "px here (10th and 95th percentile)"
    )
    return input_h, input_w


def _choose_anchors(scan: DataScan, input_hw: tuple[int, int], reasons: dict[str, str]) -> MultiscaleAnchorGenerator:
    every = max(1, len(scan.boxes) // recipes.MAX_FITTED_BOXES)
    boxes = (scan.boxes * np.array([*input_hw, *input_hw]))[::every]
    hw = np.tile(np.array(input_hw, np.int64), (len(boxes), 1))
    sides = np.sqrt((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))
    large = np.quantile(sides, _LARGE_OBJECT_SHARE)
    start = recipes.ANCHORS
    if large > recipes.LARGE_OBJECT_SIDE_PX:
        start = replace(start, max_level=recipes.MAX_LEVEL_OF_LARGE_OBJECTS)
    best = suggest_anchors(start, boxes, hw, RECALL_IOU)
    if best.fit.recall < _FEW_ANCHORS_RECALL:
        best = suggest_anchors(replace(start, aspect_ratios=(0.5, 2.0)), boxes, hw, RECALL_IOU)
    fit = best.fit
    reasons["model.anchor_generator"] = (
        f"fitted to {len(boxes)} objects: {fit.recall:.1%} overlap an anchor by half, mean best IoU {fit.mean_iou:.2f}"
    )
    return best.generator
