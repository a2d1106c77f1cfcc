"""Color augmentations; boxes do not move.

XLA compiles consecutive changes of brightness, contrast, hue and saturation together. All four of them take less time
than the TensorFlow kernel for hue, or the one for saturation, alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import IMAGE
from detloom.schemas.model.augmentations import (
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
)
from detloom.schemas.model.color_augmentations import (
    AdjustGamma,
    RandomDistortColor,
    RandomJpegQuality,
    RandomPatchGaussian,
    RandomPixelValueScale,
    RandomRgbToGray,
)
from detloom.trainer_module.data.augmentations.patches import mean_color, paste
from detloom.trainer_module.data.sample import Sample, if_drawn, image_hw_of, split_seed

ColorChange = (
    RandomAdjustBrightness | RandomAdjustContrast | RandomAdjustHue | RandomAdjustSaturation | RandomDistortColor
)
_Kind = Literal["brightness", "contrast", "hue", "saturation"]

# As in random_distort_color of the reference (the distortions of SSD).
_DISTORT_BRIGHTNESS = RandomAdjustBrightness(max_delta=32 / 255)
_DISTORT_CONTRAST = RandomAdjustContrast(min_delta=0.5, max_delta=1.5)
_DISTORT_HUE = RandomAdjustHue(max_delta=0.2)
_DISTORT_SATURATION = RandomAdjustSaturation(min_delta=0.5, max_delta=1.5)
_DISTORTIONS: dict[int, tuple[ColorChange, ...]] = {
    0: (_DISTORT_BRIGHTNESS, _DISTORT_SATURATION, _DISTORT_HUE, _DISTORT_CONTRAST),
    1: (_DISTORT_BRIGHTNESS, _DISTORT_CONTRAST, _DISTORT_SATURATION, _DISTORT_HUE),
}

_LUMA = (0.2989, 0.5870, 0.1140)  # weights of red, green and blue in gray (ITU-R BT.601), rounded as in the reference
_HUE_CENTERS = (0.0, 2.0, 4.0)  # of red, green and blue on the color circle of circumference 6
_PIXELS_PER_SHAPE = 2**15  # images of unknown size are padded to a multiple of it, since XLA compiles for each size


class _Drawn(NamedTuple):
    """A color change with its amount, float32 [].

    The amount of brightness is added to colors of 0 to 255; contrast and saturation have a factor; hue has a share of
    the color circle.
    """

    kind: _Kind
    amount: tf.Tensor


def change_colors(changes: Sequence[ColorChange], sample: Sample, seeds: Sequence[tf.Tensor]) -> Sample:
    """Apply the changes in order; the image becomes float32, 0 to 255."""
    drawn = [draw for change, seed in zip(changes, seeds, strict=True) for draw in _draw(change, seed)]
    image = tf.cast(sample[IMAGE], tf.float32)
    for segment in _segments(drawn):
        image = _changed(segment, image)
    return {**sample, IMAGE: image}


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def _draw(change: ColorChange, seed: tf.Tensor) -> list[_Drawn]:
    match change:
        case RandomAdjustBrightness(max_delta=delta):
            return [_Drawn("brightness", tf.random.stateless_uniform([], seed, -255.0 * delta, 255.0 * delta))]
        case RandomAdjustContrast(min_delta=low, max_delta=high):
            return [_Drawn("contrast", tf.random.stateless_uniform([], seed, low, high))]
        case RandomAdjustHue(max_delta=delta):
            return [_Drawn("hue", tf.random.stateless_uniform([], seed, -delta, delta))]
        case RandomAdjustSaturation(min_delta=low, max_delta=high):
            return [_Drawn("saturation", tf.random.stateless_uniform([], seed, low, high))]
        case RandomDistortColor(color_ordering=ordering):
            parts = _DISTORTIONS[ordering]
            seeds = split_seed(seed, len(parts))
            return [draw for part, its_seed in zip(parts, seeds, strict=True) for draw in _draw(part, its_seed)]
    raise AssertionError(f"no such color change: {change}")


def _segments(drawn: Sequence[_Drawn]) -> list[list[_Drawn]]:
    """Split the changes into groups that are compiled together.

    Contrast begins a new group because it needs the mean of all pixels. So does a change of hue or saturation that
    does not directly follow another one: XLA would compute the earlier one three times.
    """
    segments: list[list[_Drawn]] = []
    for change in drawn:
        kinds = [other.kind for other in segments[-1]] if segments else []
        is_on_circle = change.kind in ("hue", "saturation")
        was_on_circle = [kind in ("hue", "saturation") for kind in kinds]
        again = is_on_circle and any(was_on_circle) and not was_on_circle[-1]
        if not segments or change.kind == "contrast" or again:
            segments.append([])
        segments[-1].append(change)
    return segments


def _changed(segment: Sequence[_Drawn], image_HW3: tf.Tensor) -> tf.Tensor:
    kinds, amounts = tuple(change.kind for change in segment), [change.amount for change in segment]
    mean_3 = mean_color(image_HW3) if kinds[0] == "contrast" else tf.zeros([3])
    pixels_N3 = tf.reshape(image_HW3, [-1, 3])
    if pixels_N3.shape[0] is not None:
        return tf.reshape(_compiled_changes(kinds, pixels_N3, mean_3, amounts), image_HW3.shape)
    num_pixels = tf.shape(pixels_N3)[0]
    padded = tf.pad(pixels_N3, [[0, -num_pixels % _PIXELS_PER_SHAPE], [0, 0]])
    changed = _compiled_changes(kinds, padded, mean_3, amounts)[:num_pixels]
    return tf.ensure_shape(tf.reshape(changed, tf.shape(image_HW3)), image_HW3.shape)


def _changes(kinds: tuple[_Kind, ...], pixels_N3: tf.Tensor, mean_3: tf.Tensor, amounts: list[tf.Tensor]) -> tf.Tensor:
    i = 0
    while i < len(kinds):
        if kinds[i] == "brightness":
            pixels_N3 = tf.clip_by_value(pixels_N3 + amounts[i], 0.0, 255.0)
        elif kinds[i] == "contrast":
            pixels_N3 = tf.clip_by_value((pixels_N3 - mean_3) * amounts[i] + mean_3, 0.0, 255.0)
        else:  # hue and saturation in any order: they are independent
            hue, saturations = tf.zeros([]), []
            while i < len(kinds) and kinds[i] in ("hue", "saturation"):
                if kinds[i] == "hue":
                    hue += amounts[i]
                else:
                    saturations.append(amounts[i])
                i += 1
            pixels_N3 = _turned(pixels_N3, hue, saturations)
            continue
        i += 1
    return pixels_N3


def _turned(pixels_N3: tf.Tensor, hue: tf.Tensor, saturation_factors: list[tf.Tensor]) -> tf.Tensor:
    """Change hue and saturation of the HSV model without a conversion to HSV and back.

    Let `value` be the largest channel and `chroma` the largest minus the smallest. A channel equals `value` up to a
    distance of 1 from the hue on the color circle, and falls by `chroma` up to a distance of 2. Saturation is
    chroma / value and at most 1, so chroma is multiplied and limited to value.
    """
    red, green, blue = pixels_N3[:, 0], pixels_N3[:, 1], pixels_N3[:, 2]
    value_N = tf.maximum(tf.maximum(red, green), blue)
    chroma_N = value_N - tf.minimum(tf.minimum(red, green), blue)
    per_chroma = 1.0 / tf.maximum(chroma_N, 1e-20)
    after_green, after_blue = (blue - red) * per_chroma + 2.0, (red - green) * per_chroma + 4.0
    hue_N = tf.where(value_N == red, (green - blue) * per_chroma, tf.where(value_N == green, after_green, after_blue))
    for factor in saturation_factors:
        chroma_N = tf.minimum(chroma_N * factor, value_N)
    away_N3 = (hue_N + hue * 6.0)[:, tf.newaxis] - tf.constant(_HUE_CENTERS)
    away_N3 = tf.abs(away_N3 - 6.0 * tf.round(away_N3 * (1.0 / 6.0)))
    return value_N[:, tf.newaxis] - chroma_N[:, tf.newaxis] * tf.clip_by_value(away_N3 - 1.0, 0.0, 1.0)


_compiled_changes = tf.function(_changes, jit_compile=True, autograph=False)


def to_gray(image_HW3: tf.Tensor) -> tf.Tensor:
    """Convert to gray, float32 with three equal channels."""
    weights = tf.tile(tf.constant(_LUMA)[:, tf.newaxis], [1, 3])
    return tf.linalg.matmul(tf.cast(image_HW3, tf.float32), weights)


def random_gray(config: RandomRgbToGray, sample: Sample, seed: tf.Tensor) -> Sample:
    return if_drawn(config.probability, seed, _as_float(sample), lambda s: {**s, IMAGE: to_gray(s[IMAGE])})


def random_pixel_value_scale(config: RandomPixelValueScale, sample: Sample, seed: tf.Tensor) -> Sample:
    image = tf.cast(sample[IMAGE], tf.float32)
    factors = tf.random.stateless_uniform(tf.shape(image), seed, config.minval, config.maxval)
    return {**sample, IMAGE: tf.clip_by_value(image * factors, 0.0, 255.0)}


def adjust_gamma(config: AdjustGamma, sample: Sample) -> Sample:
    share = tf.cast(sample[IMAGE], tf.float32) / 255.0
    return {**sample, IMAGE: tf.clip_by_value(config.gain * share**config.gamma * 255.0, 0.0, 255.0)}


def random_jpeg_quality(config: RandomJpegQuality, sample: Sample, seed: tf.Tensor) -> Sample:
    seeds = split_seed(seed)
    low, high = config.min_jpeg_quality, config.max_jpeg_quality

    def encoded(sample: Sample) -> Sample:
        quality = tf.random.stateless_uniform([], seeds[1], low, high, tf.int32)
        image = tf.image.adjust_jpeg_quality(tf.cast(sample[IMAGE], tf.uint8), quality)
        return {**sample, IMAGE: tf.cast(tf.ensure_shape(image, sample[IMAGE].shape), sample[IMAGE].dtype)}

    return if_drawn(1.0 - config.random_coef, seeds[0], sample, encoded)


def random_patch_gaussian(config: RandomPatchGaussian, sample: Sample, seed: tf.Tensor) -> Sample:
    seeds = split_seed(seed, 5)

    def noisy(sample: Sample) -> Sample:
        image_hw = image_hw_of(sample)
        side = tf.random.stateless_uniform([], seeds[1], config.min_patch_size, config.max_patch_size, tf.int32)
        center_yx = tf.random.stateless_uniform([2], seeds[2]) * tf.cast(image_hw, tf.float32)
        corner_yx = tf.minimum(tf.cast(center_yx, tf.int32), image_hw - 1) - side // 2
        begin, end = tf.maximum(corner_yx, 0), tf.minimum(corner_yx + side, image_hw)
        patch = sample[IMAGE][begin[0] : end[0], begin[1] : end[1]]
        low, high = config.min_gaussian_stddev, config.max_gaussian_stddev
        deviation = low + tf.random.stateless_uniform([], seeds[3]) * (high - low)
        noise = tf.random.stateless_normal(tf.shape(patch), seeds[4]) * deviation * 255.0
        return {**sample, IMAGE: paste(sample[IMAGE], tf.clip_by_value(patch + noise, 0.0, 255.0), begin)}

    return if_drawn(1.0 - config.random_coef, seeds[0], _as_float(sample), noisy)


def _as_float(sample: Sample) -> Sample:
    return {**sample, IMAGE: tf.cast(sample[IMAGE], tf.float32)}
