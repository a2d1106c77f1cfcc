"""Decode images, and only the window of a JPEG if it is cropped."""

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import BOXES, CROWD, IMAGE
from detloom.trainer_module.data.augmentations.crops import Window, WindowCrop, crop_boxes, draw_window
from detloom.trainer_module.data.example_parser import ParsedExample, sample_of
from detloom.trainer_module.data.sample import Sample, keep_boxes
from detloom.trainer_module.detectors.preprocess import decode_image

_MARGIN_PX = 2  # JPEG stores colors at half the size, so the outermost pixels of a window would differ


def decode_sample(parsed: ParsedExample) -> Sample:
    """Decode the whole image; keep the boxes that can be learned.

    Crowds are left out because a group is not one object. Boxes that are inverted or not finite are left out because
    their loss would not be finite, boxes without an area because no anchor overlaps them: they would be forced onto an
    arbitrary one.
    """
    image = decode_image(parsed.image_bytes)
    return _learnable(sample_of(parsed, image, tf.shape(image)[:2]))


def decode_crop(parsed: ParsedExample, crop: WindowCrop, seed: tf.Tensor) -> Sample:
    """Return the same pixels as `decode_sample` followed by the crop."""
    is_jpeg = tf.io.is_jpeg(parsed.image_bytes)

    def size_of_jpeg() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros([0, 0, 3], tf.uint8), tf.io.extract_jpeg_shape(parsed.image_bytes)[:2]

    def whole_and_size() -> tuple[tf.Tensor, tf.Tensor]:
        image = decode_image(parsed.image_bytes)
        return image, tf.shape(image)[:2]

    whole, image_hw = tf.cond(is_jpeg, size_of_jpeg, whole_and_size)
    sample = _learnable(sample_of(parsed, whole, image_hw))
    window = draw_window(crop, sample[BOXES], image_hw, seed)
    image = tf.cond(
        is_jpeg,
        lambda: decode_jpeg_window(parsed.image_bytes, window, image_hw),
        lambda: _slice(whole, window.begin_yx, window.size_hw),
    )
    image.set_shape([None, None, 3])
    return {**crop_boxes(sample, window, image_hw), IMAGE: image}


def decode_jpeg_window(image_bytes: tf.Tensor, window: Window, image_hw: tf.Tensor) -> tf.Tensor:
    """Decode the window of a JPEG, uint8 [height, width, 3], equal to that part of the whole image."""
    begin_yx = tf.maximum(window.begin_yx - _MARGIN_PX, 0)
    end_yx = tf.minimum(window.begin_yx + window.size_hw + _MARGIN_PX, image_hw)
    with_margin = tf.image.decode_and_crop_jpeg(image_bytes, tf.concat([begin_yx, end_yx - begin_yx], 0), channels=3)
    return _slice(with_margin, window.begin_yx - begin_yx, window.size_hw)


def _slice(image: tf.Tensor, begin_yx: tf.Tensor, size_hw: tf.Tensor) -> tf.Tensor:
    return tf.slice(image, tf.concat([begin_yx, [0]], 0), tf.concat([size_hw, [3]], 0))


def _learnable(sample: Sample) -> Sample:
    corners_G4 = sample[BOXES]
    has_area = tf.reduce_all(corners_G4[:, 2:] > corners_G4[:, :2], axis=1)
    is_finite = tf.reduce_all(tf.math.is_finite(corners_G4), axis=1)
    return keep_boxes(sample, ~sample[CROWD] & has_area & is_finite)
