"""Color augmentations of `data_augmentation_options`, read with the Object Detection API's defaults."""

import dataclasses
from pathlib import Path

import pytest

from detloom.schemas.model.augmentations import Augmentation, AutoAugmentImage, MixUp, Mosaic, RandAugment
from detloom.schemas.model.color_augmentations import (
    AdjustGamma,
    RandomBlackPatches,
    RandomDistortColor,
    RandomJpegQuality,
    RandomPatchGaussian,
    RandomPixelValueScale,
    RandomRgbToGray,
)
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, parse_pipeline_config, read_pipeline_config
from detloom.schemas.reading.typed_dict import from_dict

SMALL_FILE = Path(__file__).parents[1] / "configs" / "fpnlite.config"


@dataclasses.dataclass(frozen=True)
class Steps:
    augmentations: tuple[Augmentation, ...]


def text_of(step: str) -> str:
    return f"train_config {{ data_augmentation_options {{ {step} }} }}"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("random_distort_color {}", RandomDistortColor(color_ordering=0)),
        ("random_distort_color { color_ordering: 1 }", RandomDistortColor(color_ordering=1)),
        ("random_rgb_to_gray {}", RandomRgbToGray(probability=0.1)),
        ("random_pixel_value_scale {}", RandomPixelValueScale(minval=0.9, maxval=1.1)),
        (
            "random_black_patches {}",
            RandomBlackPatches(max_black_patches=10, probability=0.5, size_to_image_ratio=0.1),
        ),
        ("random_jpeg_quality {}", RandomJpegQuality(random_coef=0.0, min_jpeg_quality=0, max_jpeg_quality=100)),
        (
            "random_patch_gaussian {}",
            RandomPatchGaussian(
                random_coef=0.0,
                min_patch_size=1,
                max_patch_size=250,
                min_gaussian_stddev=0.0,
                max_gaussian_stddev=1.0,
            ),
        ),
        ("adjust_gamma { gamma: 2.0 }", AdjustGamma(gamma=2.0, gain=1.0)),
        ("autoaugment_image {}", AutoAugmentImage(policy_name="v0")),
        ("autoaugment_image { policy_name: 'v3' }", AutoAugmentImage(policy_name="v3")),
    ],
)
def test_step_is_read_with_the_reference_defaults(step, expected):
    report = parse_pipeline_config(text_of(step), "F")
    plain = {"augmentations": report.located.data["train"]["augmentations"]}
    assert from_dict(Steps, plain, locate=report.located.locate).augmentations == (expected,)


def test_augmentations_of_both_kinds_round_trip(tmp_path):
    augmentations = (RandomDistortColor(), AutoAugmentImage(), RandAugment(num_layers=2), Mosaic(), MixUp(alpha=8.0))
    config = read_pipeline_config(SMALL_FILE)
    changed = dataclasses.replace(config, train=dataclasses.replace(config.train, augmentations=augmentations))
    (tmp_path / "again.config").write_text(format_pipeline_config(changed))
    assert read_pipeline_config(tmp_path / "again.config") == changed


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("rgb_to_gray {}", "one channel"),
        ("normalize_image {}", "every backbone"),
        ("drop_label_probabilistically { label: 1 }", "changes the data set"),
        ("remap_labels { original_labels: 1 new_label: 2 }", "changes the data set"),
    ],
)
def test_unsupported_step_is_refused_with_an_alternative(step, reason):
    report = parse_pipeline_config(text_of(step), "F")
    assert any(reason in str(note) for note in report.refused)
