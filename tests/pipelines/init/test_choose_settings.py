"""Test the choice of settings."""

from collections import Counter
from dataclasses import replace

import pytest

from detloom.pipelines.init.choose_settings import check_time, choose_settings, limit_time
from detloom.pipelines.init.scan_data import scan_data
from detloom.schemas.errors import InputError
from detloom.schemas.presets import recipes


def input_hw(choices):
    resizer = choices.settings["model"]["image_resizer"]
    return resizer["height"], resizer["width"]


def test_a_data_set_without_splits_is_divided(make_scan):
    scan = make_scan()
    choices = choose_settings(scan, "cells", "balanced")
    assert choices.settings["data"]["split_by_ratio"] == {"train": 0.75, "eval": 0.1, "test": 0.15}
    reason = choices.reasons["data.split_by_ratio"]
    assert "about 15 test objects, an AP50 of 0.9 is uncertain by at least 0.15" in reason


def test_splits_of_the_data_set_are_used(make_coco):
    scan = scan_data(str(make_coco({"train": [1, 2, 3, 4], "val": [5], "test": [6]})))
    data = choose_settings(scan, "cells", "balanced").settings["data"]
    assert data["splits"] == {
        "train": "annotations/train.json", "eval": "annotations/val.json", "test": "annotations/test.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train", "valid"], {"eval": "annotations/valid.json", "cut_share": 0.15}),
        (["train", "test"], {"test": "annotations/test.json", "cut_share": 0.1}),
    ],
)
def test_the_splits_of_the_data_set_stay_if_one_is_missing(make_coco, names, expected):
    numbers = [list(range(40)), [50]]
    choices = choose_settings(scan_data(str(make_coco(dict(zip(names, numbers, strict=True))))), "cells", "fast")
    assert choices.settings["data"]["splits"] == {"train": "annotations/train.json", **expected}
    assert f"train {40 * (1 - expected['cut_share']):.0f}" in choices.reasons["data.splits"]
    assert "part of the training images" in choices.reasons["data.splits"]


def test_splits_that_share_images_are_divided_again(make_coco):
    scan = scan_data(str(make_coco({"train": list(range(30)), "val": [30], "test": [3]})))
    choices = choose_settings(scan, "cells", "balanced")
    assert "splits" not in choices.settings["data"]
    assert "images/test_3.png = images/train_3.png" in choices.reasons["data.split_by_ratio"]


def test_too_few_images_are_refused(make_scan):
    with pytest.raises(InputError, match=r"19 images.* 20 "):
        choose_settings(make_scan(num_images=19), "cells", "balanced")


@pytest.mark.parametrize(
    ("quality", "size", "expected"),
    [
        ("fast", (0.2, 0.2), (256, 320)),
        ("balanced", (0.2, 0.2), (320, 416)),
        ("best", (0.2, 0.2), (384, 512)),
        ("balanced", (0.05, 0.05), (352, 448)),  # 20 px
        ("balanced", (0.01, 0.01), (448, 576)),  # the largest
    ],
)
def test_the_input_has_the_shape_of_the_images_and_shows_small_objects(make_scan, quality, size, expected):
    assert input_hw(choose_settings(make_scan(size), "cells", quality)) == expected


def test_a_very_long_image_is_compressed(make_scan):
    scan = make_scan()
    scan.image_sizes = [(100, 1000)]
    height, width = input_hw(choose_settings(scan, "cells", "balanced"))
    assert (height, width) == (256, 512)


@pytest.mark.parametrize("image_hw", [(1, 4000), (4000, 1)])
def test_augmentations_of_extreme_images_are_valid(make_scan, image_hw):
    from detloom.schemas.model.crop_augmentations import RandomCropImage

    crop = next(each for each in recipes.augmentations(image_hw, 1) if each["type"] == "RandomCropImage")
    RandomCropImage(**{key: value for key, value in crop.items() if key != "type"})


def test_anchors_fit_long_objects_and_large_objects_get_another_level(make_scan):
    def anchors_of(size):
        return choose_settings(make_scan(size), "cells", "balanced").settings["model"]["anchor_generator"]

    assert max(anchors_of((0.5, 0.1))["aspect_ratios"]) < 0.4  # 0.1 * 416 / (0.5 * 320) = 0.26
    assert anchors_of((0.9, 0.9))["max_level"] == 7


def limited(scan, seconds, spent=0):
    """Return the settings for half a second a step."""
    choices = choose_settings(scan, "cells", "balanced")
    limit_time(choices, scan, "balanced", 0.5, seconds, spent=spent)
    return choices


def test_the_schedule_fits_the_time(make_scan):
    settings = limited(make_scan(), 400).settings
    train = settings["train"]
    assert recipes.run_seconds(0.5 * train["num_steps"]) <= 400 < recipes.run_seconds(0.5 * (train["num_steps"] + 1))
    assert train["optimizer"]["learning_rate"]["total_steps"] == train["num_steps"]
    assert settings["eval"]["evaluate_every"] * 4 >= train["num_steps"]
    later = limited(make_scan(), 400, spent=100).settings["train"]["num_steps"]
    assert train["num_steps"] - later == pytest.approx(100 * recipes.TRAINING_SHARE / 0.5, abs=1)


@pytest.mark.parametrize(("seconds", "has_mosaics"), [(400, False), (36_000, True)])
def test_a_short_schedule_has_no_mosaics(make_scan, seconds, has_mosaics):
    train = limited(make_scan(num_images=300), seconds).settings["train"]
    assert ("Mosaic" in [each["type"] for each in train["augmentations"]]) == has_mosaics


def test_more_time_than_needed_changes_no_step(make_scan):
    scan = make_scan()
    choices = limited(scan, 36_000)
    num_steps = choose_settings(scan, "cells", "balanced").settings["train"]["num_steps"]
    assert choices.settings["train"]["num_steps"] == num_steps
    assert "would overfit" in choices.reasons["train.num_steps"]


def test_too_little_time_is_refused_with_the_time_needed(make_scan):
    with pytest.raises(InputError, match=r"--budget: 2 min .* 5 min.* No smaller --quality fits"):
        limited(make_scan(), 120, spent=30)
    # 120 steps of 0.5 s take 70.6 s of a run; those of 256 x 320 instead of 320 x 416 pixels 0.31 s each, 43.4 s.
    with pytest.raises(InputError, match=r"--quality fast probably fits: about 0\.31 s"):
        limited(make_scan(), 200)
    with pytest.raises(InputError, match=r"--budget: .* alone take about 2 min 20 s"):
        check_time(120)
    assert limited(make_scan(), 300, spent=30).settings["train"]["num_steps"] >= recipes.MIN_STEPS


def test_a_class_name_cannot_end_a_comment(make_scan):
    from detloom.pipelines.init.run_file_text import format_run_file

    scan = replace(make_scan(), boxes_by_class=Counter({"a\nname: other\u2028b\r": 100}))
    text = format_run_file(choose_settings(scan, "cells", "balanced"), "x")
    assert [line for line in text.splitlines() if line.startswith("name:")] == ["name: cells"]
