"""Conversion of images to the input of a network; training, evaluation and exported models share these functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.arrays import Float32Array
from detloom.schemas.model.network import FixedShapeResizer, ImageResizer, KeepAspectRatioResizer
from detloom.trainer_module.files.operation_names import without_operation_names

_METHODS = {
    "BILINEAR": tf.image.ResizeMethod.BILINEAR,
    "NEAREST_NEIGHBOR": tf.image.ResizeMethod.NEAREST_NEIGHBOR,
    "BICUBIC": tf.image.ResizeMethod.BICUBIC,
    "AREA": tf.image.ResizeMethod.AREA,
}
_JPEG_MAGIC = b"\xff\xd8\xff"  # by which TensorFlow recognizes a JPEG
VGG_MEANS = (123.68, 116.779, 103.939)  # of red, green, blue (arXiv:1409.1556); the released ResNets use them too


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of images with colors of 0 to 255 to the input of one network.

    Attributes:
        normalize: converts float32 colors [..., 3] to the units of the network; affine in the colors.
        normalize_first: the order of the reference. True: images are normalized, resized and padded, at inference; the
            padding is a value in the units of the network, 0 by default. False: images are resized, padded and
            normalized; the padding is a color, black by default. Training always normalizes after the augmentations.
    """

    resizer: ImageResizer
    normalize: Callable[[tf.Tensor], tf.Tensor]
    normalize_first: bool

    @property
    def network_hw(self) -> tuple[int, int]:
        """Height and width of the network input."""
        return network_hw(self.resizer)

    def prepare(self, image_HW3: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Normalize, resize and pad.

        Args:
            image_HW3: [H, W, 3], or a batch of images of one size, of any numeric type, 0 to 255.

        Returns:
            The network input, float32, and int32 [2]: its rows and columns that are image; the rest is padding.
        """
        if not self.normalize_first:
            return self._pad(self.normalize(resize_image(image_HW3, self.resizer)), self._padding())
        # The order matters: rounding differs, and in training mode batch norm on levels of a few pixels amplifies the
        # difference to more than 1e-3.
        normalized = self.normalize(tf.cast(image_HW3, tf.float32))
        return self._pad(resize_image(normalized, self.resizer), self._padding())

    def pad_colors(self, resized_HW3: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Pad a resized image with `padding_rgb`; colors stay 0 to 255. Returns the image and `true_hw`."""
        return self._pad(resized_HW3, tf.constant(self.padding_rgb()))

    def normalize_padded(self, images_BHW3: tf.Tensor, true_hw_B2: tf.Tensor) -> tf.Tensor:
        """Normalize images of `pad_colors` of any numeric type to the input of the network, float32."""
        normalized = self.normalize(tf.cast(images_BHW3, tf.float32))
        if not isinstance(self.resizer, KeepAspectRatioResizer):
            return normalized
        height, width = self.network_hw
        is_row_BH1 = (tf.range(height) < true_hw_B2[:, :1])[:, :, tf.newaxis]
        is_column_B1W = (tf.range(width) < true_hw_B2[:, 1:])[:, tf.newaxis]
        return tf.where((is_row_BH1 & is_column_B1W)[..., tf.newaxis], normalized, self._padding())

    def padding_rgb(self) -> Float32Array:
        """Return the color that becomes the padding if it is part of the image, float32 [3], 0 to 255."""
        value = _padding_value(self.resizer)
        if not self.normalize_first:
            return np.array(value, np.float32)
        with tf.init_scope():  # in the graph of an input pipeline too
            at_black, at_white = (self.normalize(tf.fill([3], color)).numpy() for color in (0.0, 255.0))
        rgb: Float32Array = ((np.array(value) - at_black) / (at_white - at_black) * 255).astype(np.float32)
        return rgb

    def _padding(self) -> tf.Tensor:
        """Return the value of the padding in the units of the network, float32 [3]."""
        value = tf.constant(_padding_value(self.resizer))
        return value if self.normalize_first else self.normalize(value)

    def _pad(self, image_HW3: tf.Tensor, padding_3: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Pad an image below and to the right."""
        true_hw = tf.shape(image_HW3)[-3:-1]
        if not isinstance(self.resizer, KeepAspectRatioResizer):
            return image_HW3, true_hw
        height, width = self.network_hw
        missing_hw = [height, width] - true_hw
        paddings = [[0, 0]] * (len(image_HW3.shape) - 3) + [[0, missing_hw[0]], [0, missing_hw[1]], [0, 0]]
        padded = tf.pad(image_HW3, paddings)
        value = tf.get_static_value(padding_3)  # None if the graph computes it
        if value is None or value.any():
            padded += tf.pad(tf.zeros_like(image_HW3[..., :1]), paddings, constant_values=1.0) * padding_3
        return tf.ensure_shape(padded, [*image_HW3.shape[:-3], height, width, 3]), true_hw


def network_hw(resizer: ImageResizer) -> tuple[int, int]:
    """Return height and width of the network input."""
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    assert resizer.pad_to_max_dimension, "the input has no fixed size without padding"
    return resizer.max_dimension, resizer.max_dimension


def decode_image(image_bytes: tf.Tensor) -> tf.Tensor:
    """Decode a JPEG, a PNG, a BMP or the first frame of a GIF to uint8 [H, W, 3]; gray and alpha become RGB."""
    image = tf.io.decode_image(image_bytes, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def find_decoding_problem(image_bytes: bytes) -> str | None:
    """Return why `decode_image` cannot decode an image, or None. A JPEG is decoded at a smaller size: it is faster."""
    try:
        with tf.device("/cpu:0"):
            if image_bytes.startswith(_JPEG_MAGIC):
                tf.io.decode_jpeg(image_bytes, channels=3, ratio=8)
            else:
                decode_image(tf.constant(image_bytes))
    except (tf.errors.OpError, ValueError) as error:
        return without_operation_names(" ".join(str(error).split()))[:200]
    return None


def resize_image(image_HW3: tf.Tensor, resizer: ImageResizer) -> tf.Tensor:
    """Resize [..., H, W, 3] of any numeric type to float32 [..., height, width, 3], without padding.

    Bicubic interpolation can exceed the value range at sharp edges. Without `half_pixel_centers`, sampling is that of
    TensorFlow 1, as in the reference: output pixel (i, j) shows input pixel (i, j) * scale. This aligns corners instead
    of centres and shifts the image by a fraction of a pixel.
    """
    resize = tf.image.resize if resizer.half_pixel_centers else tf.compat.v1.image.resize
    resized = resize(image_HW3, _resized_hw(image_HW3, resizer), _METHODS[resizer.resize_method])
    return tf.cast(resized, tf.float32)


def resize_masks(masks_GHW: tf.Tensor, resized_hw: tf.Tensor, resizer: ImageResizer) -> tf.Tensor:
    """Resize masks uint8 [G, H, W] to the size of their image after `resize_image`, with the same sampling positions.

    Each pixel is that of the nearest position (`resize_image` and `resize_to_range` of the Object Detection API).
    """
    resize = tf.image.resize if resizer.half_pixel_centers else tf.compat.v1.image.resize
    method = tf.image.ResizeMethod.NEAREST_NEIGHBOR
    return resize(masks_GHW[..., tf.newaxis], resized_hw, method)[..., 0]


def _resized_hw(image_HW3: tf.Tensor, resizer: ImageResizer) -> tuple[int, int] | tf.Tensor:
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    image_hw = tf.cast(tf.shape(image_HW3)[-3:-1], tf.float32)
    sides = tf.constant([resizer.min_dimension, resizer.max_dimension], tf.float32)
    largest_hw = tf.where(image_hw[0] < image_hw[1], sides, tf.reverse(sides, [0]))
    scale = tf.reduce_min(largest_hw / image_hw)
    resized_hw = tf.cast(tf.round(scale * image_hw), tf.int32)  # halves are rounded to even, as in the reference
    return tf.maximum(resized_hw, 1)  # the reference fails for a side of 0 pixels


def _padding_value(resizer: ImageResizer) -> tuple[float, ...]:
    values = resizer.per_channel_pad_value if isinstance(resizer, KeepAspectRatioResizer) else ()
    return values or (0.0, 0.0, 0.0)
