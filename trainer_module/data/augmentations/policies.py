"""AutoAugment for boxes (arXiv:1906.11172, appendix A) and RandAugment, with the operations of google/automl.

Two things differ: a box that leaves the image is dropped, while google/automl keeps a sliver at the edge; and boxes are
not rounded to whole pixels between operations.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.schemas.model.augmentations import AutoAugmentImage, PolicyName, RandAugment
from detloom.trainer_module.data.augmentations import geometry, uint8_colors
from detloom.trainer_module.data.augmentations.box_content import change_contents, cut_out_of_box, fill_around
from detloom.trainer_module.data.augmentations.geometry import Affine
from detloom.trainer_module.data.sample import Sample, image_hw_of, split_seed


def auto_augment(config: AutoAugmentImage, sample: Sample, seed: tf.Tensor) -> Sample:
    """Apply the policy; the image keeps its type."""
    policy = POLICIES[config.policy_name]
    names = sorted({name for steps in policy for name, _, _ in steps})
    longest = max(len(steps) for steps in policy)
    nothing = (names[0], 0.0, 0.0)
    padded = [[*steps, *[nothing] * (longest - len(steps))] for steps in policy]
    kinds = tf.constant([[names.index(name) for name, _, _ in steps] for steps in padded])
    probabilities = tf.constant([[float(probability) for _, probability, _ in steps] for steps in padded])
    amounts = tf.constant([[float(amount_of(name, level)) for name, _, level in steps] for steps in padded])
    seeds = split_seed(seed, longest + 1)
    chosen = tf.random.stateless_uniform([], seeds[0], maxval=len(policy), dtype=tf.int32)

    def steps(sample: Sample) -> Sample:
        for i in range(longest):
            step = Step(kinds[chosen, i], probabilities[chosen, i], amounts[chosen, i])
            sample = apply_step(names, step, sample, seeds[i + 1])
        return sample

    return _in_uint8(steps, sample)


def rand_augment(config: RandAugment, sample: Sample, seed: tf.Tensor) -> Sample:
    """Apply the policy; the image keeps its type."""
    amounts = tf.constant([float(amount_of(name, config.magnitude)) for name in RAND_AUGMENT])

    def layers(sample: Sample) -> Sample:
        for layer in range(config.num_layers):
            its_seed = tf.random.experimental.stateless_fold_in(seed, layer)
            seeds = split_seed(its_seed)
            kind = tf.random.stateless_uniform([], seeds[0], maxval=len(RAND_AUGMENT), dtype=tf.int32)
            sample = apply_step(RAND_AUGMENT, Step(kind, tf.constant(1.0), amounts[kind]), sample, seeds[1])
        return sample

    return _in_uint8(layers, sample)


def _in_uint8(change: Callable[[Sample], Sample], sample: Sample) -> Sample:
    image = sample[IMAGE]
    changed = change({**sample, IMAGE: tf.cast(image, tf.uint8)})
    return {**changed, IMAGE: tf.cast(changed[IMAGE], image.dtype)}


_GRAY = 128  # fill value outside of the image
_MAX_LEVEL = 10.0


class Step(NamedTuple):
    """A random step; all tensors are scalars.

    Attributes:
        kind: int32, index into the names.
        probability: of the step, or of each box if the step changes the content of boxes.
        amount: from `amount_of`; its sign is random.
    """

    kind: tf.Tensor
    probability: tf.Tensor
    amount: tf.Tensor


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def amount_of(name: str, level: float) -> float:
    """Convert a level of 0 to 10 to the unit of the step: pixels, radians, a factor, a number of bits, ..."""
    share = level / _MAX_LEVEL
    match name:
        case "TranslateX_BBox" | "TranslateY_BBox":
            return share * 250.0
        case "TranslateY_Only_BBoxes":
            return share * 120.0
        case "ShearX_BBox" | "ShearY_BBox" | "ShearX_Only_BBoxes" | "ShearY_Only_BBoxes":
            return share * 0.3
        case "Rotate_BBox":
            return math.radians(share * 30.0)
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return share * 1.8 + 0.1
        case "Cutout":
            return int(share * 100)  # half of the side length
        case "Cutout_Only_BBoxes":
            return int(share * 50)
        case "BBox_Cutout":
            return share * 0.75
        case "Posterize":
            return int(share * 4)
        case "Solarize":
            return int(share * 256)
        case "SolarizeAdd":
            return int(share * 110)
        case "AutoContrast" | "Equalize" | "Equalize_Only_BBoxes" | "Flip_Only_BBoxes":
            return 0.0
    raise AssertionError(f"no such step: {name}")


def apply_step(names: Sequence[str], step: Step, sample: Sample, seed: tf.Tensor) -> Sample:
    """Apply the step with its probability; the image must be uint8."""
    seeds = split_seed(seed, 3)
    signed = tf.where(tf.random.stateless_uniform([], seeds[0]) < 0.5, -step.amount, step.amount)
    changes = [partial(_changed, name, step, signed, sample, seeds[1]) for name in names]
    draws_itself = tf.gather(tf.constant([name in CONTENTS for name in names]), step.kind)
    is_drawn = draws_itself | (tf.random.stateless_uniform([], seeds[2]) < step.probability)
    return tf.switch_case(tf.where(is_drawn, step.kind, len(names)), [*changes, lambda: {**sample}])


def _changed(name: str, step: Step, signed_amount: tf.Tensor, sample: Sample, seed: tf.Tensor) -> Sample:
    if name in MOVES:
        return geometry.warp(sample, MOVES[name](signed_amount, sample), _GRAY)
    if name in COLORS:
        return {**sample, IMAGE: COLORS[name](sample[IMAGE], step.amount)}
    if name in CONTENTS:
        change = partial(_changed_content, name, step.amount)
        return change_contents(sample, change, probability=step.probability, seed=seed)
    if name == "Cutout":
        return {**sample, IMAGE: _cut_out(sample[IMAGE], step.amount, seed)}
    return cut_out_of_box(sample, step.amount, _GRAY, seed)


def _changed_content(name: str, amount: tf.Tensor, content: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    signed_amount = tf.where(tf.random.stateless_uniform([], seed) < 0.5, -amount, amount)
    return CONTENTS[name](content, signed_amount, seed)


def _cut_out(image_HW3: tf.Tensor, half_px: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Fill a square with a random centre."""
    center = tf.random.stateless_uniform([2], seed) * tf.cast(tf.shape(image_HW3)[:2], tf.float32)
    half_hw = tf.repeat(tf.cast(half_px, tf.int32), 2)
    return fill_around(image_HW3, tf.cast(center, tf.int32), half_hw, _GRAY)


def _with_table(table: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    return lambda image, amount: uint8_colors.looked_up(image, table(amount))


def _warped(affine: Callable[[tf.Tensor], Affine]) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    return lambda content, amount, _: geometry.warp_image(content, affine(amount), _GRAY)


# Changes of the image together with its boxes, from amount and sample.
MOVES: dict[str, Callable[[tf.Tensor, Sample], Affine]] = {
    "TranslateX_BBox": lambda amount, _: geometry.translation(amount, 0.0),
    "TranslateY_BBox": lambda amount, _: geometry.translation(0.0, amount),
    "ShearX_BBox": lambda amount, _: geometry.shear_x(amount),
    "ShearY_BBox": lambda amount, _: geometry.shear_y(amount),
    "Rotate_BBox": lambda amount, sample: geometry.rotation(amount, image_hw_of(sample)),
}
# Changes of all pixels, from image and amount.
COLORS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "AutoContrast": lambda image, _: uint8_colors.looked_up(image, uint8_colors.autocontrast(image)),
    "Equalize": lambda image, _: uint8_colors.looked_up(image, uint8_colors.equalize(image)),
    "Posterize": _with_table(uint8_colors.posterize),
    "Solarize": _with_table(uint8_colors.solarize),
    "SolarizeAdd": _with_table(uint8_colors.solarize_add),
    "Contrast": lambda image, amount: uint8_colors.looked_up(image, uint8_colors.contrast(image, amount)),
    "Brightness": _with_table(uint8_colors.brightness),
    "Color": uint8_colors.color,
    "Sharpness": uint8_colors.sharpness,
}
# Changes of the pixels in a box, from these, amount and seed; each box is drawn by itself.
CONTENTS: dict[str, Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "Flip_Only_BBoxes": lambda content, *_: tf.reverse(content, axis=[1]),
    "Equalize_Only_BBoxes": lambda content, amount, _: COLORS["Equalize"](content, amount),
    "Cutout_Only_BBoxes": lambda content, amount, seed: _cut_out(content, tf.abs(amount), seed),
    "TranslateY_Only_BBoxes": _warped(lambda amount: geometry.translation(0.0, amount)),
    "ShearX_Only_BBoxes": _warped(geometry.shear_x),
    "ShearY_Only_BBoxes": _warped(geometry.shear_y),
}


# --- tables ---------------------------------------------------------------------------------------------------------

# The policies learned on COCO (arXiv:1906.11172), as in google/automl and the Object Detection API. A policy is a list
# of sub-policies, one of which is drawn; a step is a name, a probability and a level of 0 to 10.
SubPolicy = tuple[tuple[str, float, float], ...]

_V0: tuple[SubPolicy, ...] = (
    (("TranslateX_BBox", 0.6, 4), ("Equalize", 0.8, 10)),
    (("TranslateY_Only_BBoxes", 0.2, 2), ("Cutout", 0.8, 8)),
    (("Sharpness", 0.0, 8), ("ShearX_BBox", 0.4, 0)),
    (("ShearY_BBox", 1.0, 2), ("TranslateY_Only_BBoxes", 0.6, 6)),
    (("Rotate_BBox", 0.6, 10), ("Color", 1.0, 6)),
)
_V1: tuple[SubPolicy, ...] = (
    *_V0,
    (("Color", 0.0, 0), ("ShearX_Only_BBoxes", 0.8, 4)),
    (("ShearY_Only_BBoxes", 0.8, 2), ("Flip_Only_BBoxes", 0.0, 10)),
    (("Equalize", 0.6, 10), ("TranslateX_BBox", 0.2, 2)),
    (("Color", 1.0, 10), ("TranslateY_Only_BBoxes", 0.4, 6)),
    (("Rotate_BBox", 0.8, 10), ("Contrast", 0.0, 10)),
    (("Cutout", 0.2, 2), ("Brightness", 0.8, 10)),
    (("Color", 1.0, 6), ("Equalize", 1.0, 2)),
    (("Cutout_Only_BBoxes", 0.4, 6), ("TranslateY_Only_BBoxes", 0.8, 2)),
    (("Color", 0.2, 8), ("Rotate_BBox", 0.8, 10)),
    (("Sharpness", 0.4, 4), ("TranslateY_Only_BBoxes", 0.0, 4)),
    (("Sharpness", 1.0, 4), ("SolarizeAdd", 0.4, 4)),
    (("Rotate_BBox", 1.0, 8), ("Sharpness", 0.2, 8)),
    (("ShearY_BBox", 0.6, 10), ("Equalize_Only_BBoxes", 0.6, 8)),
    (("ShearX_BBox", 0.2, 6), ("TranslateY_Only_BBoxes", 0.2, 10)),
    (("SolarizeAdd", 0.6, 8), ("Brightness", 0.8, 10)),
)
_V2: tuple[SubPolicy, ...] = (
    (("Color", 0.0, 6), ("Cutout", 0.6, 8), ("Sharpness", 0.4, 8)),
    (("Rotate_BBox", 0.4, 8), ("Sharpness", 0.4, 2), ("Rotate_BBox", 0.8, 10)),
    (("TranslateY_BBox", 1.0, 8), ("AutoContrast", 0.8, 2)),
    (("AutoContrast", 0.4, 6), ("ShearX_BBox", 0.8, 8), ("Brightness", 0.0, 10)),
    (("SolarizeAdd", 0.2, 6), ("Contrast", 0.0, 10), ("AutoContrast", 0.6, 0)),
    (("Cutout", 0.2, 0), ("Solarize", 0.8, 8), ("Color", 1.0, 4)),
    (("TranslateY_BBox", 0.0, 4), ("Equalize", 0.6, 8), ("Solarize", 0.0, 10)),
    (("TranslateY_BBox", 0.2, 2), ("ShearY_BBox", 0.8, 8), ("Rotate_BBox", 0.8, 8)),
    (("Cutout", 0.8, 8), ("Brightness", 0.8, 8), ("Cutout", 0.2, 2)),
    (("Color", 0.8, 4), ("TranslateY_BBox", 1.0, 6), ("Rotate_BBox", 0.6, 6)),
    (("Rotate_BBox", 0.6, 10), ("BBox_Cutout", 1.0, 4), ("Cutout", 0.2, 8)),
    (("Rotate_BBox", 0.0, 0), ("Equalize", 0.6, 6), ("ShearY_BBox", 0.6, 8)),
    (("Brightness", 0.8, 8), ("AutoContrast", 0.4, 2), ("Brightness", 0.2, 2)),
    (("TranslateY_BBox", 0.4, 8), ("Solarize", 0.4, 6), ("SolarizeAdd", 0.2, 10)),
    (("Contrast", 1.0, 10), ("SolarizeAdd", 0.2, 8), ("Equalize", 0.2, 4)),
)
_V3: tuple[SubPolicy, ...] = (
    (("Posterize", 0.8, 2), ("TranslateX_BBox", 1.0, 8)),
    (("BBox_Cutout", 0.2, 10), ("Sharpness", 1.0, 8)),
    (("Rotate_BBox", 0.6, 8), ("Rotate_BBox", 0.8, 10)),
    (("Equalize", 0.8, 10), ("AutoContrast", 0.2, 10)),
    (("SolarizeAdd", 0.2, 2), ("TranslateY_BBox", 0.2, 8)),
    (("Sharpness", 0.0, 2), ("Color", 0.4, 8)),
    (("Equalize", 1.0, 8), ("TranslateY_BBox", 1.0, 8)),
    (("Posterize", 0.6, 2), ("Rotate_BBox", 0.0, 10)),
    (("AutoContrast", 0.6, 0), ("Rotate_BBox", 1.0, 6)),
    (("Equalize", 0.0, 4), ("Cutout", 0.8, 10)),
    (("Brightness", 1.0, 2), ("TranslateY_BBox", 1.0, 6)),
    (("Contrast", 0.0, 2), ("ShearY_BBox", 0.8, 0)),
    (("AutoContrast", 0.8, 10), ("Contrast", 0.2, 10)),
    (("Rotate_BBox", 1.0, 10), ("Cutout", 1.0, 10)),
    (("SolarizeAdd", 0.8, 6), ("Equalize", 0.8, 8)),
)
POLICIES: dict[PolicyName, tuple[SubPolicy, ...]] = {"v0": _V0, "v1": _V1, "v2": _V2, "v3": _V3}

RAND_AUGMENT = (
    "Equalize",
    "Solarize",
    "Color",
    "Cutout",
    "SolarizeAdd",
    "TranslateX_BBox",
    "TranslateY_BBox",
    "ShearX_BBox",
    "ShearY_BBox",
    "Rotate_BBox",
)
