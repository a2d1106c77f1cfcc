"""Recipes: settings for small data sets, from which `detloom init` writes a run file.

docs/first_run.md has the measurements behind them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from detloom.schemas.model.detector import MultiscaleAnchorGenerator

Quality = Literal["fast", "balanced", "best"]
QUALITIES: tuple[Quality, ...] = ("fast", "balanced", "best")
DEFAULT_QUALITY: Quality = "balanced"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one quality that do not depend on the data.

    `input_side` and `max_input_side` are square roots of the number of input pixels.
    """

    detector: str
    """Name of the preset; the ImageNet weights of its backbone are installed with detloom."""
    input_side: int
    """Size of the input, unless objects are too small in it."""
    max_input_side: int
    """Largest size of the input for small objects."""
    num_epochs: int
    """Most passes over the training images, unless `MIN_PLANNED_STEPS` are more; longer training overfits."""


RECIPES: Mapping[Quality, Recipe] = {
    "fast": Recipe(detector="efficientdet_lite0", input_side=288, max_input_side=384, num_epochs=30),
    "balanced": Recipe(detector="efficientdet_lite0", input_side=352, max_input_side=512, num_epochs=55),
    "best": Recipe(detector="efficientdet_lite1", input_side=448, max_input_side=640, num_epochs=60),
}

SPLIT_SHARES = {"train": 0.75, "eval": 0.1, "test": 0.15}  # of data sets without splits of their own
BATCH_SIZE = 8
MIN_STEPS = 120  # fewer learn little
MIN_PLANNED_STEPS, MAX_PLANNED_STEPS = 700, 30_000  # without a time limit
MIN_PASSES_WITH_MOSAICS = 20  # over the training images; fewer learn less with mosaics than without
MIN_OBJECT_SIDE_PX = 20  # a tenth of the objects may be smaller in the network's input
INPUT_MULTIPLE = 32  # sides of the input are multiples; the coarsest level of the backbone has this stride
ANCHORS = MultiscaleAnchorGenerator(
    anchor_scale=3.0, aspect_ratios=(1.0,), scales_per_octave=3, max_level=6, strides_from_feature_maps=True
)  # before they are fitted to the data
MAX_FITTED_BOXES = 2000
MAX_LEVEL_OF_LARGE_OBJECTS = 7
LARGE_OBJECT_SIDE_PX = 260  # with larger objects, the pyramid gets another level
LOCALIZATION_WEIGHT = 2.0
SUPPRESSION = {"score_threshold": 0.001, "soft_nms_sigma": 0.4}
LEARNING_RATE = 1.5e-3
WARMUP_SHARE = 0.08
FREEZE = ("^backbone/(stem|block[123])",)  # general features, which few images do not improve

BATCH_NORM_DECAY = 0.95
"""Decay of the moving statistics: with the zoo's 0.99 and more, those of a short training are not yet valid."""


def training_settings(num_steps: int) -> dict[str, Any]:
    """Return the section `train` of a run file, except for the batch size and the augmentations."""
    return {
        "num_steps": num_steps,
        "fine_tune_checkpoint": "imagenet",
        "freeze_variables": list(FREEZE),
        "optimizer": {
            "type": "AdamWOptimizer",
            "learning_rate": {
                "type": "CosineDecayLearningRate",
                "learning_rate_base": LEARNING_RATE,
                "warmup_learning_rate": 0,
                "warmup_steps": max(1, round(WARMUP_SHARE * num_steps)),
                "total_steps": num_steps,
            },
        },
        "add_regularization_loss": False,
        "gradient_clipping": {"type": "ClipByGlobalNorm", "norm": 10},
        "moving_average": {"decay": 0.99},
    }


def augmentations(image_hw: tuple[int, int], num_passes: float) -> list[dict[str, Any]]:
    """Return the augmentations. The padding shrinks objects about as much as the crops enlarge them.

    Args:
        image_hw: height and width of the images in pixels.
        num_passes: passes over the training images.
    """
    height, width = image_hw
    ratio = width / height
    mosaic = {"type": "Mosaic", "probability": 0.5, "min_scale": 0.5, "max_scale": 1.2}
    return [
        {"type": "RandomHorizontalFlip"},
        {
            "type": "RandomAbsolutePadImage",
            "max_height_padding": round(height / 5) + 1,
            "max_width_padding": round(width / 5) + 1,
        },
        {
            "type": "RandomCropImage",
            "min_area": 0.6,
            "min_object_covered": 0.3,
            "min_aspect_ratio": float(f"{0.75 * ratio:.3g}"),
            "max_aspect_ratio": float(f"{1.33 * ratio:.3g}"),
        },
        {"type": "RandomAdjustBrightness"},
        {"type": "RandomAdjustContrast"},
        *([mosaic] if num_passes >= MIN_PASSES_WITH_MOSAICS else []),
    ]


# --- planning -------------------------------------------------------------------------------------------------------

START_AND_END_SECONDS = 140.0
"""Seconds of a run beside training: start-up, ingestion, data report, export, evaluation, push."""
TRAINING_SHARE = 0.85
"""Share of the remaining time that is planned for steps; the rest is for evaluations and for steps that take longer."""


def training_seconds(run_seconds: float) -> float:
    """Return the seconds for training steps in a run with a time limit."""
    return max(0.0, run_seconds - START_AND_END_SECONDS) * TRAINING_SHARE


def run_seconds(training_seconds: float) -> float:
    """Return the seconds of a run with that time for training steps."""
    return training_seconds / TRAINING_SHARE + START_AND_END_SECONDS
