"""The named steps that policies are made of. Which one is taken is a tensor, so that a policy is a small graph."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from detloom.trainer_module.augmentations import affine, uint8_colors
from detloom.trainer_module.augmentations.affine import Affine
from detloom.trainer_module.augmentations.box_content import change_contents, cut_out_of_box, fill_around
from detloom.trainer_module.sample import Sample, replaced

MOVES = ("TranslateX_BBox", "TranslateY_BBox", "ShearX_BBox", "ShearY_BBox", "Rotate_BBox")
TABLES = ("AutoContrast", "Equalize", "Posterize", "Solarize", "SolarizeAdd", "Contrast", "Brightness")
CONTENTS = (
    "Flip_Only_BBoxes",
    "Equalize_Only_BBoxes",
    "Cutout_Only_BBoxes",
    "TranslateY_Only_BBoxes",
    "ShearX_Only_BBoxes",
    "ShearY_Only_BBoxes",
)
_GRAY = 128  # where there is no picture
_MAX_LEVEL = 10.0

_Change = Callable[[], tf.Tensor]


class Step(NamedTuple):
    """A step that is drawn, all of it [].

    Attributes:
        kind: int32, its place among the names.
        probability: of each box, if it changes contents.
        amount: `amount_of`; its sign is drawn.
    """

    kind: tf.Tensor
    probability: tf.Tensor
    amount: tf.Tensor


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def amount_of(name: str, level: float) -> float:
    """What a level of 0 to 10 means: pixels, an angle in radians, a factor, a number of bits, ..."""
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
            return int(share * 100)  # half of the side
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
    """The step that is drawn of those named, with its probability; `sample["image"]` is uint8."""
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    sign = tf.where(tf.random.stateless_uniform([], seeds[0]) < 0.5, -1.0, 1.0)
    groups: list[tuple[tuple[str, ...], Callable[[], Sample]]] = [
        (MOVES, lambda: affine.warp(sample, _move(names, step.kind, sign * step.amount, sample), _GRAY)),
        (TABLES, lambda: replaced(sample, image=_with_table(names, step, sample["image"]))),
        (CONTENTS, lambda: _with_contents(names, step, sample, seeds[1])),
        (("Color",), lambda: replaced(sample, image=uint8_colors.color(sample["image"], step.amount))),
        (("Sharpness",), lambda: replaced(sample, image=uint8_colors.sharpness(sample["image"], step.amount))),
        (("Cutout",), lambda: replaced(sample, image=_cut_out(sample["image"], step.amount, seeds[1]))),
        (("BBox_Cutout",), lambda: cut_out_of_box(sample, step.amount, _GRAY, seeds[1])),
    ]
    used = [(members, change) for members, change in groups if any(name in members for name in names)]
    place = [next(i for i, (members, _) in enumerate(used) if name in members) for name in names]
    draws_itself = tf.gather(tf.constant([name in CONTENTS for name in names]), step.kind)
    is_drawn = draws_itself | (tf.random.stateless_uniform([], seeds[2]) < step.probability)
    branch = tf.where(is_drawn, tf.gather(tf.constant(place), step.kind), len(used))
    return tf.switch_case(branch, [*(change for _, change in used), lambda: replaced(sample)])


def _one_named(names: Sequence[str], kind: tf.Tensor, changes: dict[str, _Change]) -> tf.Tensor:
    """What the one of the changes gives that is at place `kind` of all names."""
    used = [name for name in changes if name in names]
    place = [used.index(name) if name in used else 0 for name in names]
    return tf.switch_case(tf.gather(tf.constant(place), kind), [changes[name] for name in used])


def _move(names: Sequence[str], kind: tf.Tensor, amount: tf.Tensor, sample: Sample) -> Affine:
    moves = {
        "TranslateX_BBox": affine.translation(amount, 0.0),
        "TranslateY_BBox": affine.translation(0.0, amount),
        "ShearX_BBox": affine.shear_x(amount),
        "ShearY_BBox": affine.shear_y(amount),
        "Rotate_BBox": affine.rotation(amount, tf.shape(sample["image"])[:2]),
    }
    none = affine.translation(0.0, 0.0)
    of_names = [tf.stack([tf.cast(value, tf.float32) for value in moves.get(name, none)]) for name in names]
    return Affine(*tf.unstack(tf.gather(tf.stack(of_names), kind)))


def _with_table(names: Sequence[str], step: Step, image_HW3: tf.Tensor) -> tf.Tensor:
    def same_for_all(table: Callable[[tf.Tensor], tf.Tensor]) -> _Change:
        return lambda: tf.tile(table(step.amount), [3, 1])

    tables: dict[str, _Change] = {
        "AutoContrast": partial(uint8_colors.autocontrast, image_HW3),
        "Equalize": partial(uint8_colors.equalize, image_HW3),
        "Posterize": same_for_all(uint8_colors.posterize),
        "Solarize": same_for_all(uint8_colors.solarize),
        "SolarizeAdd": same_for_all(uint8_colors.solarize_add),
        "Contrast": same_for_all(partial(uint8_colors.contrast, image_HW3)),
        "Brightness": same_for_all(uint8_colors.brightness),
    }
    return uint8_colors.looked_up(image_HW3, _one_named(names, step.kind, tables))


def _with_contents(names: Sequence[str], step: Step, sample: Sample, seed: tf.Tensor) -> Sample:
    def change(content: tf.Tensor, its_seed: tf.Tensor) -> tf.Tensor:
        amount = tf.where(tf.random.stateless_uniform([], its_seed) < 0.5, -step.amount, step.amount)

        def warped(how: Affine) -> _Change:
            return lambda: affine.warp_image(content, how, _GRAY)

        changes: dict[str, _Change] = {
            "Flip_Only_BBoxes": lambda: tf.reverse(content, axis=[1]),
            "Equalize_Only_BBoxes": lambda: uint8_colors.looked_up(content, uint8_colors.equalize(content)),
            "Cutout_Only_BBoxes": lambda: _cut_out(content, step.amount, its_seed),
            "TranslateY_Only_BBoxes": warped(affine.translation(0.0, amount)),
            "ShearX_Only_BBoxes": warped(affine.shear_x(amount)),
            "ShearY_Only_BBoxes": warped(affine.shear_y(amount)),
        }
        return _one_named(names, step.kind, changes)

    return change_contents(sample, change, probability=step.probability, seed=seed)


def _cut_out(image_HW3: tf.Tensor, half_px: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A square whose centre is anywhere in the picture."""
    center = tf.random.stateless_uniform([2], seed) * tf.cast(tf.shape(image_HW3)[:2], tf.float32)
    half_hw = tf.repeat(tf.cast(half_px, tf.int32), 2)
    return fill_around(image_HW3, tf.cast(center, tf.int32), half_hw, _GRAY)
