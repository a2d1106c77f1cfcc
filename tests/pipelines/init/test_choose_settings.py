"""Test the choice of settings."""

from collections import Counter
from dataclasses import replace

import pytest

from detloom.pipelines.init.choose_settings import choose_settings, limit_time
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
    assert (
        "about 15 test objects, an AP50 of 0.9 is uncertain by at least 0.15"
        in (choices.reasons["data.split_by_ratio"])
    )


def test_splits_of_the_data_set_are_used(make_coco):
    scan = scan_data(str(make_coco({"train": [1, 2, 3, 4], "val": [5], "test": [6]})))
    data = choose_settings(scan, "cells", "balanced").settings["data"]
    assert data["splits"] == {
        "train": "annotations/train.json", "eval": "annotations/val.json", "test": "annotations/test.json",
    }  # fmt: skip


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


def test_anchors_fit_long_objects(make_scan):
    anchors = choose_settings(make_scan((0.5, 0.1)), "cells", "balanced").settings["model"]["anchor_generator"]
    assert max(anchors["aspect_ratios"]) < 0.4  # 0.1 * 416 / (0.5 * 320) = 0.26


def test_large_objects_get_another_level(make_scan):
    anchors = choose_settings(make_scan((0.9, 0.9)), "cells", "balanced").settings["model"]["anchor_generator"]
    assert anchors["max_level"] == 7


def test_the_schedule_fits_the_time(make_scan):
    scan = make_scan()
    choices = choose_settings(scan, "cells", "balanced")
    limit_time(choices, scan, "balanced", 0.5, 400, spent=0)
    train = choices.settings["train"]
    assert recipes.run_seconds(0.5 * train["num_steps"]) <= 400 < recipes.run_seconds(0.5 * (train["num_steps"] + 1))
    assert train["optimizer"]["learning_rate"]["total_steps"] == train["num_steps"]
    assert choices.settings["eval"]["evaluate_every"] * 4 >= train["num_steps"]


@pytest.mark.parametrize(("seconds", "has_mosaics"), [(400, False), (36_000, True)])
def test_a_short_schedule_has_no_mosaics(make_scan, seconds, has_mosaics):
    scan = make_scan(num_images=300)
    choices = choose_settings(scan, "cells", "balanced")
    limit_time(choices, scan, "balanced", 0.5, seconds, spent=0)
    names = [each["type"] for each in choices.settings["train"]["augmentations"]]
    assert ("Mosaic" in names) == has_mosaics


def test_more_time_than_needed_changes_no_step(make_scan):
    scan = make_scan()
    choices = choose_settings(scan, "cells", "balanced")
    num_steps = choices.settings["train"]["num_steps"]
    limit_time(choices, scan, "balanced", 0.5, 36_000, spent=0)
    assert choices.settings["train"]["num_steps"] == num_steps
    assert "would overfit" in choices.reasons["train.num_steps"]


def test_too_little_time_is_refused_with_the_time_needed(make_scan):
    scan = make_scan()
    choices = choose_settings(scan, "cells", "balanced")
    with pytest.raises(InputError, match=r"--budget: 2 min .* 5 min"):
        limit_time(choices, scan, "balanced", 0.5, 120, spent=30)
    limit_time(choices, scan, "balanced", 0.5, 300, spent=30)
    assert choices.settings["train"]["num_steps"] >= recipes.MIN_STEPS


def test_time_that_has_passed_shortens_the_schedule(make_scan):
    found = []
    for spent in (0, 100):
        scan = make_scan()
        choices = choose_settings(scan, "cells", "balanced")
        limit_time(choices, scan, "balanced", 0.5, 400, spent=spent)
        found.append(choices.settings["train"]["num_steps"])
    assert found[0] - found[1] == pytest.approx(100 * recipes.TRAINING_SHARE / 0.5, abs=1)


def test_a_class_name_cannot_end_a_comment(make_scan):
    from detloom.pipelines.init.run_file_text import format_run_file

    scan = replace(make_scan(), boxes_by_class=Counter({"a\nname: other\u2028b\r": 100}))
    text = format_run_file(choose_settings(scan, "cells", "balanced"), "x")
    assert [line for line in text.splitlines() if line.startswith("name:")] == ["name: cells"]
