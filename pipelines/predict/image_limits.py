"""Check image headers before decoding, because a few bytes can declare an image of gigabytes."""

from collections.abc import Iterable

from detloom.components.image_header import ImageError, ImageHeader, read_image_header
from detloom.schemas.errors import InputError

# Limit for all images of a request together. One image of this size takes 600 MB as float32, the model's type for
# resizing. Phone cameras of today have at most 50 million pixels.
MAX_PIXELS = 50_000_000


def check_header(image_bytes: bytes, name: str) -> ImageHeader:
    """Return the header of a JPEG or PNG.

    Raises:
        InputError: with `name`, if the bytes are not a JPEG or PNG, or the image is damaged or above a limit.
    """
    try:
        header = read_image_header(image_bytes)
    except ImageError as error:
        raise InputError(f"{name}: {error.detail}.") from None
    if header.height * header.width > MAX_PIXELS:
        size = f"{header.width} x {header.height} pixels"
        raise InputError(f"{name}: got {size}, allowed: {MAX_PIXELS} in total; send a smaller image.")
    return header


def check_images(images: Iterable[bytes], name: str) -> None:
    """Check the header of each image, and the number of pixels of all images together.

    Raises:
        InputError: with `name` and the position.
    """
    total = 0
    for position, image_bytes in enumerate(images):
        header = check_header(image_bytes, f"{name}[{position}]")
        total += header.height * header.width
        if total > MAX_PIXELS:
            raise InputError(f"{name}: got more than {MAX_PIXELS} pixels in total; send fewer images per request.")
