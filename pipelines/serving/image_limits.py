"""What an image's header says, looked at before anything decodes it: a few bytes can state a picture of gigabytes."""

from collections.abc import Iterable

from detloom.components.example_gen.image_header import ImageError, ImageHeader, read_image_header
from detloom.schemas.errors import InputError

# Of all images that are decoded together. In float32, as the model resizes it, one picture of these has 600 MB; the
# cameras of today's phones make at most 50 million.
MAX_PIXELS = 50_000_000


def check_header(image_bytes: bytes, name: str) -> ImageHeader:
    """What the header of a JPEG or PNG says.

    Raises:
        InputError: naming `name`, for anything else, for a broken one, and for one above `MAX_PIXELS`.
    """
    try:
        header = read_image_header(image_bytes)
    except ImageError as error:
        raise InputError(f"{name}: {error.detail}.") from None
    if header.height * header.width > MAX_PIXELS:
        size = f"{header.width} x {header.height} pixels"
        raise InputError(f"{name}: got {size}, allowed: {MAX_PIXELS} in all; make it smaller.")
    return header


def check_images(images: Iterable[bytes], name: str) -> None:
    """Refuse what `check_header` does, and images that have too many pixels together.

    Raises:
        InputError: naming `name` and the position.
    """
    total = 0
    for position, image_bytes in enumerate(images):
        header = check_header(image_bytes, f"{name}[{position}]")
        total += header.height * header.width
        if total > MAX_PIXELS:
            raise InputError(f"{name}: got more than {MAX_PIXELS} pixels in all; send fewer images a request.")
