"""Draw boxes with labels, masks and keypoints on an image."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Array, Float64Array, Int64Array, Uint8Array
from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import paste_masks

_MAX_NAME_CHARS = 24  # longest class name at a box
# Okabe and Ito, "Color Universal Design" (2008), without black; distinguishable with common color blindness.
_PALETTE = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233), (240, 228, 66))
_SHADES = (1.0, 0.6)  # a second, darker round before colours repeat
_MIN_FONT_PX, _MAX_FONT_PX = 9, 40  # below 9 px the digits of a score are illegible
_FONT_SHARE = 0.03  # of the longer side of the image
_MASK_SHARE = 0.45  # opacity of a mask
_POINT_SHARE = 0.008  # radius of a keypoint over the longer side of the image
_MIN_POINT_PX = 2
_MAX_PIXELS = 178_956_970  # above, Pillow refuses images
_MIN_POINT_SCORE = 0.1  # points below are not drawn


def decode_image_rgb(image_bytes: bytes, name: str) -> Uint8Array:
    """Decode a JPEG or PNG to uint8 [H, W, 3]; gray and transparent images become RGB.

    Pixels are those of TensorFlow's decoder, apart from JPEGs with four color channels.

    Raises:
        InputError: with `name`, for other formats and for a broken or truncated image.
    """
    rgb = _decode_jpeg(image_bytes, is_strict=True)
    if rgb is not None:
        return rgb
    try:
        with Image.open(io.BytesIO(image_bytes), formats=("JPEG", "PNG")) as image:
            by_pillow = np.asarray(from_deep_gray(image).convert("RGB"))
    except UnidentifiedImageError:
        raise InputError(f"{name}: not a JPEG or PNG image.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{name}: the image is broken ({error}).") from None
    rgb = _decode_jpeg(image_bytes, is_strict=False)
    return by_pillow if rgb is None else rgb


def _decode_jpeg(image_bytes: bytes, *, is_strict: bool) -> Uint8Array | None:
    """Decode as TensorFlow does by default, which Pillow cannot; return None for other formats and colors, and errors.

    The other method changes colors by up to 4 levels, which cost 0.004 AP on BCCD where training used the one and a
    caller of the model the other.

    Args:
        is_strict: warnings of libjpeg, such as bytes before a marker, are errors too, and so is a truncated file.
    """
    with contextlib.suppress(ValueError):
        height, width, color_space, _ = simplejpeg.decode_jpeg_header(image_bytes)
        if color_space in ("Gray", "RGB", "YCbCr") and height * width <= _MAX_PIXELS:
            rgb: Uint8Array = simplejpeg.decode_jpeg(
                image_bytes, "RGB", fastdct=True, fastupsample=False, strict=is_strict
            )
            return rgb
    return None


def from_deep_gray(image: Image.Image) -> Image.Image:
    """Convert a 16-bit gray image to 8 bits; return other images unchanged.

    Like the TensorFlow decoder, this keeps the higher byte. The conversion of Pillow would clip to 255 and leave white.
    """
    if image.mode not in ("F", "I") and not image.mode.startswith("I;"):
        return image
    values: Int64Array = np.asarray(image).astype(np.int64)
    return Image.fromarray(np.clip(values >> 8, 0, 255).astype(np.uint8))


def color_of_class(class_id: int) -> tuple[int, int, int]:
    """Return the RGB color of a class; there are 14 different colors, which then repeat."""
    turn, position = divmod(class_id - 1, len(_PALETTE))
    red, green, blue = (round(value * _SHADES[turn % len(_SHADES)]) for value in _PALETTE[position])
    return red, green, blue


def drawn_name(class_name: str) -> str:
    """Return a class name as it is drawn: printable, on one line, cut to 24 characters."""
    printable = "".join(char if char.isprintable() else " " for char in class_name)
    return printable if len(printable) <= _MAX_NAME_CHARS else printable[: _MAX_NAME_CHARS - 1] + "…"


def draw_detections(
    image_rgb: Uint8Array,
    boxes_yxyx_rel: Array,
    class_ids: Sequence[int] | Array,
    class_names: Sequence[str],
    scores: Sequence[float] | Array | None = None,
) -> Image.Image:
    """Draw N boxes in the colors of their classes, each labelled with class name and score.

    The box with the highest score is drawn last, on top. Boxes and labels stay inside the image; a label that does not
    fit is cut off at the end.

    Args:
        image_rgb: [H, W, 3]; not modified.
        class_names: one for each box.
        scores: None for ground truth.
    """
    image = Image.fromarray(np.ascontiguousarray(image_rgb))
    pen = ImageDraw.Draw(image)
    font_px = min(max(round(_FONT_SHARE * max(image.size)), _MIN_FONT_PX), _MAX_FONT_PX)
    font = ImageFont.load_default(size=font_px)
    order = range(len(class_names)) if scores is None else np.argsort(np.asarray(scores), kind="stable").tolist()
    labels = []
    for row in order:
        corners_px = _corners_px(np.asarray(boxes_yxyx_rel[row], np.float64), image.size)
        if corners_px is None:
            continue
        color = color_of_class(int(class_ids[row]))
        pen.rectangle(corners_px, outline=color, width=max(2, font_px // 6))
        name = drawn_name(class_names[row])
        label = name if scores is None else f"{name} {float(scores[row]):.2f}"
        labels.append((label, corners_px, color))
    for label, corners_px, color in labels:  # after all boxes, so that no edge crosses a label
        _draw_label(pen, label, corners_px, color, font, image.size)
    return image


def draw_objects(
    image_rgb: Uint8Array,
    boxes_yxyx_rel: Array,
    class_ids: Sequence[int] | Array,
    class_names: Sequence[str],
    scores: Sequence[float] | Array | None = None,
    *,
    masks_NHW: Array | None = None,
    keypoints_yx_rel_NP2: Array | None = None,
) -> Image.Image:
    """Draw N objects as `draw_detections` does, with their masks and keypoints if they have them.

    Args:
        masks_NHW: masks over the image; they may have another size than the image.
        keypoints_yx_rel_NP2: NaN for points that are not drawn.
    """
    if masks_NHW is not None and len(masks_NHW):
        height, width = image_rgb.shape[:2]
        masks = [Image.fromarray(np.asarray(mask != 0, np.uint8)) for mask in masks_NHW]
        resized = [np.asarray(mask.resize((width, height), Image.Resampling.NEAREST)) for mask in masks]
        image_rgb = blend_masks(image_rgb, np.stack(resized), class_ids)
    if keypoints_yx_rel_NP2 is not None:
        image_rgb = draw_keypoints(image_rgb, keypoints_yx_rel_NP2, class_ids)
    return draw_detections(image_rgb, boxes_yxyx_rel, class_ids, class_names, scores)


def draw_rows(image_rgb: Uint8Array, rows: Mapping[str, Array], class_names: Sequence[str]) -> Image.Image:
    """Draw the detections of an image, see `schemas/contracts/detections.py`, with their masks and keypoints if any."""
    height, width = image_rgb.shape[:2]
    boxes_yxyx_rel, masks_Nhw = rows[names.BOXES], rows.get(names.MASKS)
    return draw_objects(
        image_rgb,
        boxes_yxyx_rel,
        rows[names.CLASSES],
        class_names,
        rows[names.SCORES],
        masks_NHW=None if masks_Nhw is None else paste_masks(boxes_yxyx_rel, masks_Nhw, (height, width)),
        keypoints_yx_rel_NP2=confident_points(rows.get(names.KEYPOINTS), rows.get(names.KEYPOINT_SCORES)),
    )


def confident_points(keypoints_yx_rel_NP2: Array | None, scores_NP: Array | None) -> Array | None:
    """Return the keypoints for drawing, NaN where the score is low; None without keypoints."""
    if keypoints_yx_rel_NP2 is None or scores_NP is None:
        return keypoints_yx_rel_NP2
    is_sure = np.asarray(scores_NP)[..., np.newaxis] >= _MIN_POINT_SCORE
    return np.where(is_sure, keypoints_yx_rel_NP2, np.nan)


def blend_masks(image_rgb: Uint8Array, masks_NHW: Array, class_ids: Sequence[int] | Array) -> Uint8Array:
    """Return a copy in which each mask (values other than 0) is tinted with the color of its class."""
    blended = image_rgb.astype(np.float32)
    for mask_HW, class_id in zip(masks_NHW, class_ids, strict=True):
        is_object = np.asarray(mask_HW) != 0
        blended[is_object] += _MASK_SHARE * (np.array(color_of_class(int(class_id))) - blended[is_object])
    return np.rint(blended).astype(np.uint8)


def draw_keypoints(image_rgb: Uint8Array, keypoints_yx_rel_NP2: Array, class_ids: Sequence[int] | Array) -> Uint8Array:
    """Return a copy with a dot for each point; NaN and points outside the image are not drawn."""
    image = Image.fromarray(np.ascontiguousarray(image_rgb))
    pen, (width, height) = ImageDraw.Draw(image), image.size
    radius = max(_MIN_POINT_PX, round(_POINT_SHARE * max(image.size)))
    for points_yx_rel, class_id in zip(np.asarray(keypoints_yx_rel_NP2, np.float64), class_ids, strict=True):
        inside = np.isfinite(points_yx_rel).all(axis=-1) & ((points_yx_rel >= 0) & (points_yx_rel <= 1)).all(axis=-1)
        for y_rel, x_rel in points_yx_rel[inside]:
            x, y = round(x_rel * (width - 1)), round(y_rel * (height - 1))
            corners = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(corners, fill=color_of_class(int(class_id)), outline=(255, 255, 255))
    return np.asarray(image)


def _corners_px(box_yxyx_rel: Float64Array, size_wh: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """Return left, top, right, bottom in pixels inside the image; None for a box that is inverted or not finite."""
    if not np.isfinite(box_yxyx_rel).all():
        return None
    ymin, xmin, ymax, xmax = np.clip(box_yxyx_rel, 0, 1)
    if ymax < ymin or xmax < xmin:
        return None
    width, height = size_wh
    return round(xmin * (width - 1)), round(ymin * (height - 1)), round(xmax * (width - 1)), round(ymax * (height - 1))


def _draw_label(
    pen: ImageDraw.ImageDraw,
    label: str,
    corners_px: tuple[int, int, int, int],
    color: tuple[int, int, int],
    font: Any,
    size_wh: tuple[int, int],
) -> None:
    """Draw a label on a plate above the box, or inside at the top if there is no room above."""
    width, height = size_wh
    pad = 2
    while len(label) > 1 and pen.textlength(label, font=font) + 2 * pad > width:
        label = label[:-1]
    ascent, descent = font.getmetrics()
    plate_w, plate_h = round(pen.textlength(label, font=font)) + 2 * pad, ascent + descent
    left, top, _, _ = corners_px
    left = max(0, min(left, width - plate_w))
    top = top - plate_h if top >= plate_h else top
    top = max(0, min(top, height - plate_h))
    pen.rectangle((left, top, left + plate_w - 1, top + plate_h - 1), fill=color)
    # ITU-R BT.601 luma decides between black and white text.
    is_light = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 140
    pen.text((left + pad, top), label, fill=(0, 0, 0) if is_light else (255, 255, 255), font=font)
