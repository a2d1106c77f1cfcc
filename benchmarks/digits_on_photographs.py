"""Data for detectors with masks and keypoints: digits on photographs, in COCO format, with exact labels.

Each image shows a part of a photograph with digits of a font, of random size, rotation and color. Masks are the visible
pixels of each digit; the five keypoints are the corners and the center of its upright box, rotated with it. A keypoint
that another digit covers is hidden (visibility 1). No two splits share a photograph. Without photographs, the
background is smooth noise.

    python benchmarks/digits_on_photographs.py OUT --photos DIR [--train 800 --eval 100 --test 200] [--side 320]

Writes OUT/images/<split>/*.jpg and OUT/annotations/<split>.json. `--one-class` labels all digits as the class "digit",
for detectors with keypoints, whose points are those of one class.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from pycocotools import mask as coco_mask

KEYPOINTS = ("upper_left", "upper_right", "lower_right", "lower_left", "center")
SPLITS = ("train", "eval", "test")
_SUFFIXES = (".jpg", ".jpeg", ".png")
_MAX_DIGITS = 6
_FONT_SHARE = (0.15, 0.4)  # size of the font over the side of the image
_STROKES_PER_SIZE = 16  # the font is light; masks of a few cells across need thicker ink
_MAX_DEGREES = 45.0  # with more, 6 and 9 could not be told apart
_MIN_VISIBLE = 0.6  # share of a digit that others may not cover
_MIN_CONTRAST = 70  # difference of luminance, 0 to 255
_MAX_TRIES = 30  # to place a digit
_JPEG_QUALITY = 92


@dataclass(frozen=True, eq=False, kw_only=True)
class Digit:
    """A digit on an image.

    Attributes:
        value: 0 to 9.
        alpha_HW: opacity of its ink, uint8.
        points_xy_px: corners and centre [5, 2]; a pixel covers one unit.
    """

    value: int
    alpha_HW: npt.NDArray[np.uint8]
    points_xy_px: npt.NDArray[np.float64]

    @property
    def mask_HW(self) -> npt.NDArray[np.bool_]:
        """Pixels of which more than half is ink."""
        return self.alpha_HW > 127


def draw_digit(value: int, font_px: int, degrees: float, center_xy_px: tuple[float, float], side: int) -> Digit:
    """Draw one digit, turned clockwise around its centre, on a square image."""
    font = ImageFont.load_default(size=font_px)
    glyph, stroke = Image.new("L", (2 * font_px, 2 * font_px)), max(font_px // _STROKES_PER_SIZE, 1)
    ImageDraw.Draw(glyph).text((font_px // 2, font_px // 4), str(value), fill=255, font=font, stroke_width=stroke)
    glyph = glyph.crop(glyph.getbbox())
    width, height = glyph.size
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = np.array([[cosine, -sine], [sine, cosine]])
    middle, center = np.array([width, height]) / 2, np.array(center_xy_px)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    points = np.vstack([(corners - middle) @ turn.T + center, center])
    offset = middle - turn.T @ center  # from the image back to the glyph
    coefficients = (turn[0, 0], turn[1, 0], offset[0], turn[0, 1], turn[1, 1], offset[1])
    margin = Image.new("L", (width + 2, height + 2))  # without it, the edge of the ink would be cut off hard
    margin.paste(glyph, (1, 1))
    shifted = (*coefficients[:2], coefficients[2] + 1, *coefficients[3:5], coefficients[5] + 1)
    alpha = margin.transform((side, side), Image.Transform.AFFINE, shifted, Image.Resampling.BILINEAR)
    return Digit(value=value, alpha_HW=np.asarray(alpha), points_xy_px=points)


def place_digits(rng: np.random.Generator, side: int) -> list[Digit]:
    """Draw one to six digits that are inside the image; each stays visible for the most part."""
    digits: list[Digit] = []
    for _ in range(int(rng.integers(1, _MAX_DIGITS + 1))):
        for _ in range(_MAX_TRIES):
            font_px = int(rng.uniform(*_FONT_SHARE) * side)
            center = (float(rng.uniform(0, side)), float(rng.uniform(0, side)))
            degrees = float(rng.uniform(-_MAX_DEGREES, _MAX_DEGREES))
            digit = draw_digit(int(rng.integers(10)), font_px, degrees, center, side)
            points = digit.points_xy_px
            is_inside = ((points >= 1) & (points <= side - 1)).all()
            if is_inside and min(visible_shares([*digits, digit])) >= _MIN_VISIBLE:
                digits.append(digit)
                break
    return digits


def visible_masks(digits: Sequence[Digit]) -> list[npt.NDArray[np.bool_]]:
    """Return the pixels of each digit that no later digit covers."""
    masks = []
    covered = np.zeros(digits[0].alpha_HW.shape, bool) if digits else None
    for digit in reversed(digits):
        masks.append(digit.mask_HW & ~covered)
        covered = covered | digit.mask_HW
    return masks[::-1]


def visible_shares(digits: Sequence[Digit]) -> list[float]:
    """Return the share of the pixels of each digit that is visible."""
    pairs = zip(visible_masks(digits), digits, strict=True)
    return [float(mask.sum()) / max(float(digit.mask_HW.sum()), 1.0) for mask, digit in pairs]


def paint(
    background: npt.NDArray[np.uint8], digits: Sequence[Digit], rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Paint the digits on the background, in the order of the list, in colors that stand out."""
    image = background.astype(np.float64)
    for digit in digits:
        behind = float(image[digit.mask_HW].mean()) if digit.mask_HW.any() else 128.0
        color = rng.uniform(0, 255, 3)
        while abs(float(color.mean()) - behind) < _MIN_CONTRAST:
            color = rng.uniform(0, 255, 3)
        opacity = digit.alpha_HW[..., np.newaxis] / 255.0
        image = image * (1 - opacity) + color * opacity
    return np.rint(image).astype(np.uint8)


def annotate(digits: Sequence[Digit], image_id: int, first_id: int, *, one_class: bool) -> list[dict[str, Any]]:
    """Return the COCO annotations of an image; ids start at `first_id`."""
    annotations = []
    for row, (digit, mask) in enumerate(zip(digits, visible_masks(digits), strict=True)):
        runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
        later = [other.mask_HW for other in digits[row + 1 :]]
        keypoints = []
        for x, y in digit.points_xy_px.tolist():
            is_hidden = any(other[int(y), int(x)] for other in later)
            keypoints += [x, y, 1 if is_hidden else 2]
        annotations.append(
            {
                "id": first_id + row,
                "image_id": image_id,
                "category_id": 1 if one_class else digit.value + 1,
                "bbox": coco_mask.toBbox(runs).tolist(),
                "area": float(coco_mask.area(runs)),
                "iscrowd": 0,
                "segmentation": {"size": list(mask.shape), "counts": runs["counts"].decode("ascii")},
                "keypoints": keypoints,
                "num_keypoints": len(KEYPOINTS),
            }
        )
    return annotations


def make_background(photos: Sequence[Path], rng: np.random.Generator, side: int) -> npt.NDArray[np.uint8]:
    """Return a random square part of a random photograph, or smooth noise without photographs."""
    if not photos:
        coarse = Image.fromarray(rng.integers(0, 256, (7, 7, 3), np.uint8))
        fine = Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).filter(ImageFilter.GaussianBlur(2))
        smooth = coarse.resize((side, side), Image.Resampling.BICUBIC)
        return np.asarray(Image.blend(smooth, fine, 0.3))
    with Image.open(photos[int(rng.integers(len(photos)))]) as photo:
        width, height = photo.size
        length = int(min(width, height) * rng.uniform(0.5, 1.0))
        left, top = (int(rng.integers(size - length + 1)) for size in (width, height))
        part = photo.convert("RGB").crop((left, top, left + length, top + length))
    return np.asarray(part.resize((side, side), Image.Resampling.LANCZOS))


def write_split(
    folder: Path, split: str, count: int, photos: Sequence[Path], *, side: int, seed: int, one_class: bool
) -> None:
    """Write the images and the annotation file of a split; an image depends on seed, split and number only."""
    images, annotations = [], []
    (folder / "images" / split).mkdir(parents=True, exist_ok=True)
    for image_id in range(1, count + 1):
        rng = np.random.default_rng([seed, SPLITS.index(split), image_id])
        digits = place_digits(rng, side)
        pixels = paint(make_background(photos, rng, side), digits, rng)
        name = f"images/{split}/{image_id:06}.jpg"
        Image.fromarray(pixels).save(folder / name, quality=_JPEG_QUALITY)
        images.append({"id": image_id, "file_name": name, "height": side, "width": side})
        annotations += annotate(digits, image_id, len(annotations) + 1, one_class=one_class)
    names = ["digit"] if one_class else [str(value) for value in range(10)]
    categories = [{"id": i, "name": name, "keypoints": list(KEYPOINTS)} for i, name in enumerate(names, start=1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path = folder / "annotations" / f"{split}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def split_photos(photos: Sequence[Path], counts: Sequence[int]) -> list[list[Path]]:
    """Give each split with images its own photographs, at least one, else in proportion to its number of images."""
    sizes = [int(count > 0) for count in counts]
    for _ in range(len(photos) - sum(sizes)):
        neediest = max(range(len(counts)), key=lambda i: counts[i] / max(sizes[i], 1))
        sizes[neediest] += 1
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [list(photos[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--photos", type=Path, help="folder of photographs, searched with its subfolders")
    for split, count in zip(SPLITS, (800, 100, 200), strict=True):
        parser.add_argument(f"--{split}", type=int, default=count, help=f"number of images, default {count}")
    parser.add_argument("--side", type=int, default=320, help="height and width of the images in pixels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-class", action="store_true", help="label all digits as the class 'digit'")
    options = parser.parse_args(arguments)
    found = sorted(options.photos.rglob("*")) if options.photos else []
    photos = [path for path in found if path.suffix.lower() in _SUFFIXES]
    counts = [getattr(options, split) for split in SPLITS]
    shares = split_photos(photos, counts)
    if options.photos and not all(part for part, count in zip(shares, counts, strict=True) if count):
        sys.exit(f"{options.photos}: got {len(photos)} photographs, required: at least one for each split.")
    for split, count, part in zip(SPLITS, counts, shares, strict=True):
        write_split(options.out, split, count, part, side=options.side, seed=options.seed, one_class=options.one_class)
        print(f"{options.out}/annotations/{split}.json: {count} images on {len(part)} photographs")


if __name__ == "__main__":
    main()
