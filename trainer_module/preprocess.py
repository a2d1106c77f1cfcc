"""From encoded bytes to what the network takes; training, evaluation and the exported model call the same functions."""

import tensorflow as tf

from detloom.schemas.config import ImageSize


def decode_image(image_bytes: tf.Tensor) -> tf.Tensor:
    """JPEG, PNG, BMP or the first frame of a GIF to uint8 [H, W, 3]; grey and alpha become RGB."""
    image = tf.io.decode_image(image_bytes, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def resize_image(image_HW3: tf.Tensor, size: ImageSize) -> tf.Tensor:
    """[..., H, W, 3] of any numeric type to float32 [..., height, width, 3], bilinear, value range unchanged."""
    return tf.image.resize(image_HW3, (size.height, size.width), method="bilinear")


def normalize_image(image_HW3: tf.Tensor) -> tf.Tensor:
    """Float 0-255 to [-1, 1], as MobileNetV2 is trained with (`preprocess_input` of keras.applications, mode "tf")."""
    return image_HW3 / 127.5 - 1.0
