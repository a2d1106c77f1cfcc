"""Compute a 64-bit perceptual hash of an image, and decode untrusted images at a small size.

The hash is the difference hash of Neal Krawetz, "Kind of Like That" (hackerfactor.com, 2013-01-21): the image is scaled
to 9 x 8 grey cells, and each pair of neighbours in a row gives one bit, set if the brightness falls from left to right.
Scaling, recompression and small changes of brightness or contrast flip few bits.
"""

import hashlib
import io

import numpy as np
from PIL import Image

from detloom.components.image_header import read_image_header
from detloom.trainer_module.drawing.draw import from_deep_gray

_ROWS, _COLUMNS = 8, 9
_OVERSAMPLING = 4  # a JPEG is decoded at its smallest scale with at least this many pixels per cell side
_FORMATS = ("JPEG", "PNG", "BMP", "GIF")  # formats that the training input decodes


def hash_image(encoded: bytes, max_pixels: int) -> int | None:
    """Return the difference hash of an encoded image; the most significant bit is the upper left.

    Return None if the image cannot be decoded, or has more than `max_pixels` pixels (then nothing is decoded).
    """
    grey = open_small_image(encoded, (_COLUMNS * _OVERSAMPLING, _ROWS * _OVERSAMPLING), "L", max_pixels)
    if grey is None:
        return None
    cells = np.asarray(grey.resize((_COLUMNS, _ROWS), Image.Resampling.BOX))
    return int.from_bytes(np.packbits(cells[:, :-1] > cells[:, 1:]).tobytes(), "big")


def read_stored_hw(encoded: bytes) -> tuple[int, int] | None:
    """Read the stored height and width from the image header without decoding; return None if it is not an image."""
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            return image.height, image.width
    except Exception:  # see open_small_image
        return None


def hash_text(text: str) -> int:
    """Return a 64-bit hash that is the same on every machine, for sampling; lone surrogates are allowed."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def open_small_image(encoded: bytes, wanted_wh: tuple[int, int], mode: str, max_pixels: int) -> Image.Image | None:
    """Decode an image as `mode` ("L" or "RGB"); a larger JPEG is decoded at a reduced scale, at least `wanted_wh`.

    Return None if it cannot be decoded, or if its header declares more than `max_pixels` (then nothing is decoded).
    """
    try:
        if encoded.startswith(b"\xff\xd8"):
            read_image_header(encoded)  # raises for a JPEG of thousands of scans, which takes a minute
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                return None
            image.draft(mode, wanted_wh)
            return from_deep_gray(image).convert(mode)
    except Exception:  # decoders raise almost any exception for a damaged file
        return None
