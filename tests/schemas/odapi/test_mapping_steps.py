"""Every step of `data_augmentation_options`: reading and writing."""

import dataclasses
from pathlib import Path

import pytest

from detloom.schemas.model import augmentations as tree
from detloom.schemas.model import color_augmentations as colors
from detloom.schemas.model import crop_augmentations as crops
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.pipeline_config import format_pipeline_config, parse_pipeline_config, read_pipeline_config
from detloom.schemas.reading.typed_dict import from_dict

SMALL_FILE = Path(__file__).parents[1] / "configs" / "fpnlite.config"
OPERATION = {"min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0, "max_area": 1.0}
OPERATION_TEXT = "operations { min_aspect_ratio: 0.5 max_aspect_ratio: 2.0 max_area: 1.0 }"


@dataclasses.dataclass(frozen=True)
class Steps:
    augmentations: tuple[tree.Augmentation, ...]


def read_steps(text: str) -> tuple[tree.Augmentation, ...]:
    report = parse_pipeline_config(text, "F")
    assert [note for note in report.refused if "data_augmentation" in note.path] == []
    plain = {"augmentations": report.located.data["train"]["augmentations"]}
    return from_dict(Steps, plain, locate=report.located.locate).augmentations


def text_of(step: str) -> str:
    return f"train_config {{ data_augmentation_options {{ {step} }} }}"


def with_steps(*steps: tree.Augmentation) -> TrainEvalConfig:
    config = read_pipeline_config(SMALL_FILE)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, augmentations=steps))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("random_horizontal_flip {}", tree.RandomHorizontalFlip(probability=0.5)),
        (
            "random_horizontal_flip { keypoint_flip_permutation: [0, 2, 1] }",
            tree.RandomHorizontalFlip(keypoint_flip_permutation=(0, 2, 1)),
        ),
        (
            "random_vertical_flip { keypoint_flip_permutation: 1 keypoint_flip_permutation: 0 }",
            tree.RandomVerticalFlip(keypoint_flip_permutation=(1, 0)),
        ),
        (
            "random_rotation90 { keypoint_rot_permutation: [1, 2, 3, 0] probability: 1.0 }",
            tree.RandomRotation90(keypoint_rot_permutation=(1, 2, 3, 0), probability=1.0),
        ),
        (
            f"ssd_random_crop {{ {OPERATION_TEXT} }}",
            crops.SsdRandomCrop(operations=(crops.SsdRandomCropOperation(**OPERATION),)),
        ),
        (
            "ssd_random_crop_pad { operations { min_aspect_ratio: 0.5 max_aspect_ratio: 2.0 max_area: 1.0 "
            "min_padded_size_ratio: [1.0, 1.5] max_padded_size_ratio: [2.0, 3.0] pad_color_g: 128 } }",
            crops.SsdRandomCropPad(
                operations=(
                    crops.SsdRandomCropPadOperation(
                        **OPERATION,
                        min_padded_size_ratio=(1.0, 1.5),
                        max_padded_size_ratio=(2.0, 3.0),
                        pad_color_g=128.0,
                    ),
                )
            ),
        ),
        (
            "ssd_random_crop_fixed_aspect_ratio { operations { max_area: 0.5 } aspect_ratio: 1.5 }",
            crops.SsdRandomCropFixedAspectRatio(
                operations=(crops.SsdRandomCropFixedAspectRatioOperation(max_area=0.5),), aspect_ratio=1.5
            ),
        ),
        (
            f"ssd_random_crop_pad_fixed_aspect_ratio {{ {OPERATION_TEXT} aspect_ratio: 1.5 "
            "max_padded_size_ratio: [3, 3] }",
            crops.SsdRandomCropPadFixedAspectRatio(
                operations=(crops.SsdRandomCropOperation(**OPERATION),),
                aspect_ratio=1.5,
                max_padded_size_ratio=(3.0, 3.0),
            ),
        ),
        (
            "random_crop_pad_image {}",
            crops.RandomCropPadImage(min_padded_size_ratio=(1.0, 1.0), max_padded_size_ratio=(2.0, 2.0)),
        ),
        (
            "random_square_crop_by_scale { scale_min: 0.6 scale_max: 1.3 }",
            crops.RandomSquareCropByScale(max_border=128, scale_min=0.6, scale_max=1.3, num_scales=8),
        ),
        (
            "random_pad_image { min_image_height: 300 min_image_width: 400 pad_color: [1, 2, 3] }",
            tree.RandomPadImage(min_image_height=300, min_image_width=400, pad_color=(1.0, 2.0, 3.0)),
        ),
        (
            "random_downscale_to_target_pixels {}",
            tree.RandomDownscaleToTargetPixels(min_target_pixels=300_000, max_target_pixels=800_000, random_coef=0.0),
        ),
        (
            "random_jitter_boxes { ratio: 0.1 jitter_mode: SHRINK_SYMMETRIC_XY }",
            tree.RandomJitterBoxes(ratio=0.1, jitter_mode="SHRINK_SYMMETRIC_XY"),
        ),
        ("random_distort_color { color_ordering: 1 }", colors.RandomDistortColor(color_ordering=1)),
        ("adjust_gamma { gamma: 2.0 }", colors.AdjustGamma(gamma=2.0, gain=1.0)),
        ("autoaugment_image { policy_name: 'v3' }", tree.AutoAugmentImage(policy_name="v3")),
    ],
)
def test_step_is_read_with_the_reference_defaults_and_round_trips(step, expected):
    assert read_steps(text_of(step)) == (expected,)
    text = format_pipeline_config(with_steps(expected))
    assert "detloom" not in text
    assert read_steps(text) == (expected,)


def test_steps_without_a_field_round_trip(config_of):
    config = with_steps(
        colors.RandomDistortColor(), tree.RandAugment(num_layers=2), tree.Mosaic(), tree.MixUp(alpha=8.0)
    )
    assert config_of(format_pipeline_config(config)) == config


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("rgb_to_gray {}", "one channel"),
        ("normalize_image {}", "every backbone"),
        ("drop_label_probabilistically { label: 1 }", "changes the data set"),
        ("remap_labels { original_labels: 1 new_label: 2 }", "changes the data set"),
    ],
)
def test_unsupported_step_is_refused_with_an_alternative(step, reason, parse):
    assert any(reason in note.reason for note in parse(text_of(step)).refused)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tree.RandomHorizontalFlip(keypoint_flip_permutation=(0, 2)), "each number from 0 on once"),
        (lambda: tree.RandomPadImage(min_image_height=9), "above 0 if min_image_width is, and only then"),
        (lambda: tree.RandomImageScale(min_scale_ratio=3.0), "above 0, at most max_scale_ratio"),
        (lambda: tree.RandomDownscaleToTargetPixels(min_target_pixels=800_000), "less than max_target_pixels"),
        (lambda: crops.RandomCropPadImage(max_padded_size_ratio=(2.0,)), "two numbers above 0, of height and width"),
        (lambda: crops.SsdRandomCropPadOperation(**OPERATION, pad_color_r=256.0), "0 to 255"),
        (lambda: crops.RandomSquareCropByScale(num_scales=0), "1 to 1000"),
        (lambda: crops.RandomSquareCropByScale(max_border=2**31), "1 to 8192"),
        (lambda: crops.RandomSquareCropByScale(scale_max=100.0), "at most 16"),
        (lambda: crops.SsdRandomCropPadFixedAspectRatio(max_padded_size_ratio=(1.0, 1e5)), "at most 16"),
        (lambda: tree.RandomImageScale(max_scale_ratio=100.0), "at most 16"),
        (lambda: tree.RandomAbsolutePadImage(max_width_padding=2**31), "0 to 8192"),
        (lambda: tree.RandomPadImage(max_image_height=2**31, max_image_width=1), "0 to 8192"),
        (lambda: tree.RandomDownscaleToTargetPixels(max_target_pixels=2**31), "at most 67108864"),
        (lambda: colors.RandomPatchGaussian(max_patch_size=2**31), "0 to 8192"),
        (lambda: colors.RandomBlackPatches(max_black_patches=10_000_000), "0 to 1000"),
        (lambda: colors.RandomCutout(num_holes=10_000_000), "1 to 1000"),
        (lambda: crops.SsdRandomCropFixedAspectRatio(aspect_ratio=0.0), "above 0"),
    ],
)
def test_invalid_augmentation_is_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
