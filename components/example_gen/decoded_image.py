"""Rotate an image upright, and check that it decodes. All other checks read only headers."""

import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

from detloom.components.example_gen.image_header import ImageError
from detloom.schemas.contracts.rejects import Reason

_JPEG_QUALITY = 95  # of the few images that are rotated; chroma is not subsampled


def turn_upright(data: bytes) -> bytes:
    """Return the image rotated as its EXIF orientation says, without that tag.

    Pixels are re-encoded: JPEG can be rotated without loss only if its blocks fit, and a wrong rotation is worse than a
    little noise. A PNG stays a PNG.

    Raises:
        ImageError: if it does not decode.
    """
    try:
        with _open(data) as image:
            turned = ImageOps.exif_transpose(image)
            out = io.BytesIO()
            if image.format == "PNG":
                turned.save(out, format="PNG", exif=b"")
                return out.getvalue()
            kept = {"icc_profile": profile} if (profile := image.info.get("icc_profile")) else {}
            turned.info.pop("exif", None)
            turned.save(out, format="JPEG", quality=_JPEG_QUALITY, subsampling=0, **kept)
            return out.getvalue()
    except _PIL_ERRORS as error:
        raise _unreadable(error) from None


def check_decodes(data: bytes) -> None:
    """Decode every pixel.

    Raises:
        ImageError: if that fails.
    """
    try:
        with _open(data) as image:
            image.load()
    except _PIL_ERRORS as error:
        raise _unreadable(error) from None


# Exceptions that Pillow raises for damaged files; SyntaxError signals broken chunks.
_PIL_ERRORS = (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError)


def _open(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our own limit has checked the number of pixels
        return Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))


def _unreadable(error: BaseException) -> ImageError:
    # Pillow's own text for an image that none of its readers accepts holds the address of our buffer.
    what = "damaged headers" if isinstance(error, UnidentifiedImageError) else str(error)[:200]
    return ImageError(
        Reason.TRUNCATED_IMAGE if "truncated" in what else Reason.UNREADABLE_IMAGE, f"does not decode: {what}"
    )
