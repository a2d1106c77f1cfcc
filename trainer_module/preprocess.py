"""From encoded bytes to what the network takes; training, evaluation and the exported model call the same functions."""

import tensorflow as tf

from detloom.schemas.network_config import FixedShapeResizer, ImageResizer

_METHODS = {"BILINEAR": "bilinear", "NEAREST_NEIGHBOR": "nearest", "BICUBIC": "bicubic", "AREA": "area"}


def network_hw(resizer: ImageResizer) -> tuple[int, int]:
    """Height and width of the pictures that the network takes."""
    assert isinstance(resizer, FixedShapeResizer), resizer
    return resizer.height, resizer.width


def decode_image(image_bytes: tf.Tensor) -> tf.Tensor:
    """JPEG, PNG, BMP or the first frame of a GIF to uint8 [H, W, 3]; grey and alpha become RGB."""
    image = tf.io.decode_image(image_bytes, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def resize_image(image_HW3: tf.Tensor, resizer: ImageResizer) -> tf.Tensor:
    """[..., H, W, 3] of any numeric type to float32 [..., height, width, 3].

    The value range stays what it is, but bicubic interpolation can go beyond it at sharp edges.
    """
    assert isinstance(resizer, FixedShapeResizer), resizer
    resized = tf.image.resize(image_HW3, network_hw(resizer), method=_METHODS[resizer.resize_method])
    return tf.cast(resized, tf.float32)


def normalize_image(image_HW3: tf.Tensor) -> tf.Tensor:
    """Float 0-255 to [-1, 1], as MobileNetV2 is trained with (`preprocess_input` of keras.applications, mode "tf")."""
    return image_HW3 / 127.5 - 1.0
