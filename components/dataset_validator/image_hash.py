"""A 64-bit fingerprint of what a picture looks like, and the way to a small picture that a hostile file cannot abuse.

The fingerprint is the difference hash of Neal Krawetz, "Kind of Like That" (hackerfactor.com, 2013-01-21): the picture
as 9 x 8 grey cells, and one bit for each two neighbours in a row, set where the brightness falls from left to right.
Scaling, recompression and small changes of brightness or contrast flip few bits.
"""

import hashlib
import io

import numpy as np
from PIL import Image

from detloom.trainer_module.draw import from_deep_grey

NUM_BITS = 64
_ROWS, _COLUMNS = 8, 9
_OVERSAMPLING = 4  # a JPEG is decoded at the smallest of its scales that leaves this many pixels a cell and side
_FORMATS = ("JPEG", "PNG", "BMP", "GIF")  # those that the training input decodes


def hash_image(encoded: bytes, max_pixels: int) -> int | None:
    """The difference hash of an encoded picture, most significant bit for the upper left.

    None for what cannot be decoded and for a picture of more than `max_pixels`, of which no pixel is decoded.
    """
    grey = open_small_picture(encoded, (_COLUMNS * _OVERSAMPLING, _ROWS * _OVERSAMPLING), "L", max_pixels)
    if grey is None:
        return None
    cells = np.asarray(grey.resize((_COLUMNS, _ROWS), Image.Resampling.BOX))
    return int.from_bytes(np.packbits(cells[:, :-1] > cells[:, 1:]).tobytes(), "big")


def read_stored_hw(encoded: bytes) -> tuple[int, int] | None:
    """Height and width from the picture's header, as stored; None for what is no picture. Nothing is decoded."""
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            return image.height, image.width
    except Exception:  # as below
        return None


def hash_text(text: str) -> int:
    """64 bits that are the same everywhere, to draw samples with; lone surrogates are allowed."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def open_small_picture(encoded: bytes, wanted_wh: tuple[int, int], mode: str, max_pixels: int) -> Image.Image | None:
    """The picture as `mode` ("L" or "RGB"), a JPEG already reduced to no less than `wanted_wh` where it is larger.

    None for what cannot be decoded, and for more than `max_pixels`: the header is asked before anything is decoded.
    """
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                return None
            image.draft(mode, wanted_wh)
            return from_deep_grey(image).convert(mode)
    except Exception:  # decoders of damaged files raise nearly anything; all of it means the same
        return None
