"""From encoded bytes to what the network takes; training, evaluation and the exported model call the same functions.

The order is the Object Detection API's: normalize, resize, then pad. So padding is 0 in the network's units, whatever
colour that is. For CenterNet it is resize, pad, then normalize: padding is black.
"""

import tensorflow as tf

from detloom.schemas.center_net_config import CenterNet, CenterNetFeatureExtractor
from detloom.schemas.config import Model
from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import Backbone, FixedShapeResizer, ImageResizer, KeepAspectRatioResizer

_METHODS = {
    "BILINEAR": tf.image.ResizeMethod.BILINEAR,
    "NEAREST_NEIGHBOR": tf.image.ResizeMethod.NEAREST_NEIGHBOR,
    "BICUBIC": tf.image.ResizeMethod.BICUBIC,
    "AREA": tf.image.ResizeMethod.AREA,
}


_VGG_MEANS = (123.68, 116.779, 103.939)  # of red, green, blue (arXiv:1409.1556), in the released ResNets too
_IMAGENET_MEANS, _IMAGENET_STDS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def network_hw(resizer: ImageResizer) -> tuple[int, int]:
    """Height and width of the pictures that the network takes."""
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    assert resizer.pad_to_max_dimension, "without padding there is no one size"
    return resizer.max_dimension, resizer.max_dimension


def decode_image(image_bytes: tf.Tensor) -> tf.Tensor:
    """JPEG, PNG, BMP or the first frame of a GIF to uint8 [H, W, 3]; grey and alpha become RGB."""
    image = tf.io.decode_image(image_bytes, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def prepare_image(image_HW3: tf.Tensor, model: Model) -> tuple[tf.Tensor, tf.Tensor]:
    """Normalize, resize and pad: the network's input, and which part of it is picture.

    Args:
        image_HW3: [H, W, 3], or a batch of pictures of one size, of any numeric type, 0 to 255.

    Returns:
        float32 of `network_hw`, and int32 [2]: the rows and columns that are picture; the rest is padding.
    """
    if isinstance(model, Ssd):
        # Before the resize, as in the reference: after it the last bits are others, and in training mode batch norm on
        # levels of a few pixels makes more than 1e-3 of that.
        image_HW3 = normalize_image(tf.cast(image_HW3, tf.float32), model)
        return _pad_to_network(resize_image(image_HW3, model.image_resizer), model)
    return normalize_and_pad(resize_image(image_HW3, model.image_resizer), model)


def resize_image(image_HW3: tf.Tensor, resizer: ImageResizer) -> tf.Tensor:
    """[..., H, W, 3] of any numeric type to float32 [..., height, width, 3], not yet padded.

    The value range stays what it is, but bicubic interpolation can go beyond it at sharp edges. Without
    `half_pixel_centers` sampled as by the reference, which is TensorFlow 1's way: output pixel (i, j) shows input pixel
    (i, j) * scale, corners instead of centres, so that the picture is a fraction of a pixel off.
    """
    resize = tf.image.resize if resizer.half_pixel_centers else tf.compat.v1.image.resize
    resized = resize(image_HW3, _resized_hw(image_HW3, resizer), _METHODS[resizer.resize_method])
    return tf.cast(resized, tf.float32)


def _resized_hw(image_HW3: tf.Tensor, resizer: ImageResizer) -> tuple[int, int] | tf.Tensor:
    if isinstance(resizer, FixedShapeResizer):
        return resizer.height, resizer.width
    image_hw = tf.cast(tf.shape(image_HW3)[-3:-1], tf.float32)
    sides = tf.constant([resizer.min_dimension, resizer.max_dimension], tf.float32)
    largest_hw = tf.where(image_hw[0] < image_hw[1], sides, tf.reverse(sides, [0]))
    scale = tf.reduce_min(largest_hw / image_hw)
    return tf.cast(tf.round(scale * image_hw), tf.int32)  # as the reference: halves go to the even number


def normalize_and_pad(resized_HW3: tf.Tensor, model: Model) -> tuple[tf.Tensor, tf.Tensor]:
    """What is left to do after `resize_image` and augmentations; see `prepare_image`."""
    return _pad_to_network(normalize_image(resized_HW3, model), model)


def _pad_to_network(image_HW3: tf.Tensor, model: Model) -> tuple[tf.Tensor, tf.Tensor]:
    true_hw, resizer = tf.shape(image_HW3)[-3:-1], model.image_resizer
    if isinstance(resizer, KeepAspectRatioResizer):
        image_HW3 = _pad(image_HW3, true_hw, resizer, _padding_colour(model, resizer))
    return image_HW3, true_hw


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def normalize_image(image_HW3: tf.Tensor, model: Model) -> tf.Tensor:
    """Float colours of 0 to 255 to what the backbone is trained with, in the reference's order of operations."""
    match model:
        case Ssd():
            return _normalize_for_ssd(image_HW3, model.feature_extractor.backbone)
        case CenterNet():
            return _normalize_for_center_net(image_HW3, model.feature_extractor)
    raise AssertionError(f"no such detector: {model}")


def _normalize_for_ssd(image_HW3: tf.Tensor, backbone: Backbone) -> tf.Tensor:
    match backbone:
        case "mobilenet_v1" | "mobilenet_v2":
            return (2.0 / 255.0) * image_HW3 - 1.0
        case "resnet50_v1" | "resnet101_v1" | "resnet152_v1":
            return image_HW3 - tf.constant(_VGG_MEANS)
        case _:
            assert backbone.startswith("efficientnet"), backbone
            return (image_HW3 / 255.0 - tf.constant(_IMAGENET_MEANS)) / tf.constant(_IMAGENET_STDS)


def _normalize_for_center_net(image_HW3: tf.Tensor, extractor: CenterNetFeatureExtractor) -> tf.Tensor:
    """With its own means and deviations, and after them as keras.applications does, which feeds ResNets with BGR."""
    if extractor.bgr_ordering:
        image_HW3 = image_HW3[..., ::-1]
    means, stds = extractor.channel_means or (0.0,) * 3, extractor.channel_stds or (1.0,) * 3
    image_HW3 = (image_HW3 - tf.constant(means)) / tf.constant(stds)
    if extractor.backbone == "mobilenet_v2":
        return image_HW3 / 127.5 - 1.0
    return image_HW3[..., ::-1] - tf.constant(_VGG_MEANS[::-1])


def _padding_colour(model: Model, resizer: KeepAspectRatioResizer) -> tf.Tensor | None:
    """[3] in the network's units; None is 0."""
    colour = resizer.per_channel_pad_value
    if isinstance(model, CenterNet):
        return normalize_image(tf.constant(colour or (0.0,) * 3), model)
    return tf.constant(colour) if colour else None


def _pad(
    image_HW3: tf.Tensor, true_hw: tf.Tensor, resizer: KeepAspectRatioResizer, colour_3: tf.Tensor | None
) -> tf.Tensor:
    """Below and to the right, up to `network_hw`."""
    height, width = network_hw(resizer)
    missing_hw = [height, width] - true_hw
    paddings = [[0, 0]] * (len(image_HW3.shape) - 3) + [[0, missing_hw[0]], [0, missing_hw[1]], [0, 0]]
    padded = tf.pad(image_HW3, paddings)
    if colour_3 is not None:
        is_padding = tf.pad(tf.zeros_like(image_HW3[..., :1]), paddings, constant_values=1.0)
        padded += is_padding * colour_3
    padded.set_shape([*image_HW3.shape[:-3], height, width, 3])
    return padded
