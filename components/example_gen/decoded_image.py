"""Rotate an image upright, and check that it decodes. All other checks read only headers."""

import io
import warnings

from PIL import Image, UnidentifiedImageError

from detloom.components.image_header import ImageError
from detloom.schemas.contracts.rejects import Reason

_JPEG_QUALITY = 95  # of the few images that are rotated; chroma is not subsampled
# Exif 2.32, 4.6.4, tag 0x0112. Pillow's own exif_transpose writes all tags anew, and raises for many damaged ones.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def turn_upright(data: bytes, orientation: int) -> bytes:
    """Return the image rotated as an EXIF orientation of 2 to 8 says, without that tag.

    Pixels are re-encoded: JPEG can be rotated without loss only if its blocks fit, and a wrong rotation is worse than a
    little noise. A PNG stays a PNG.

    Raises:
        ImageError: if it does not decode.
    """
    try:
        with _open(data) as image:
            turned = image.transpose(_TURNS[orientation])
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
    """Decode every pixel, with Pillow, which draws images, and as training and serving do.

    Raises:
        ImageError: if one of them fails.
    """
    from detloom.trainer_module.detectors.preprocess import find_decoding_problem

    try:
        with _open(data) as image:
            image.load()
    except _PIL_ERRORS as error:
        raise _unreadable(error) from None
    if problem := find_decoding_problem(data):
        raise ImageError(Reason.UNREADABLE_IMAGE, f"does not decode in TensorFlow: {problem}")


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
