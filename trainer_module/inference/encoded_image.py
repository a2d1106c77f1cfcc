"""An encoded image that is decoded at most once. Imports no TensorFlow."""

import io

from PIL import Image

from detloom.schemas.contracts.arrays import Uint8Array
from detloom.trainer_module.drawing.draw import decode_image_rgb


class EncodedImage:
    """A JPEG or PNG; the caller has checked its size, because a few bytes can declare an image of gigabytes.

    Attributes:
        encoded: its bytes.
        name: for messages.
    """

    def __init__(self, encoded: bytes, name: str = "the image") -> None:
        self.encoded, self.name = encoded, name
        self._rgb: Uint8Array | None = None

    @property
    def rgb(self) -> Uint8Array:
        """The pixels, uint8 [H, W, 3]; raises InputError if the image cannot be decoded."""
        if self._rgb is None:
            self._rgb = decode_image_rgb(self.encoded, self.name)
        return self._rgb

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width that the header states."""
        with Image.open(io.BytesIO(self.encoded)) as image:
            width, height = image.size
        return height, width
