"""A real SavedModel with the three signatures that needs no training: it finds the red and the green area of a picture.

Class 1 is "red", class 2 is "green". A red area has score 0.9, a green one 0.8.
"""

from pathlib import Path

import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas import example_keys
from detloom.schemas.label_map import LabelMap, write_label_map

RED_GREEN = LabelMap.from_names(["red", "green"])


class TinyDetector(tf.Module):
    """`shift` moves every box down by that share of the picture; `class_offset` is added to every class id."""

    def __init__(self, label_map_path: str, shift: float = 0.0, class_offset: int = 0) -> None:
        super().__init__()
        self.label_map = tf.saved_model.Asset(label_map_path)
        self.shift, self.class_offset = tf.Variable(shift), class_offset

    def _detect_one(self, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        height_width = tf.cast(tf.shape(image)[:2], tf.float32)
        boxes, found = [], []
        for channel in (0, 1):
            others = tf.reduce_max(tf.gather(image, [1 - channel, 2], axis=-1), axis=-1)
            pixels = tf.where((image[..., channel] > 200) & (others < 100))
            has_any = tf.shape(pixels)[0] > 0
            ends = tf.cond(
                has_any,
                lambda pixels=pixels: tf.concat([tf.reduce_min(pixels, 0), tf.reduce_max(pixels, 0) + 1], 0),
                lambda: tf.zeros(4, tf.int64),
            )
            boxes.append(tf.cast(ends, tf.float32) / tf.tile(height_width, [2]) + self.shift * [1.0, 0.0, 1.0, 0.0])
            found.append(has_any)
        found = tf.stack(found)
        order = tf.argsort(tf.cast(found, tf.int32), direction="DESCENDING", stable=True)
        mask = tf.cast(tf.gather(found, order), tf.float32)
        boxes = tf.clip_by_value(tf.gather(tf.stack(boxes), order), 0.0, 1.0) * mask[:, None]
        scores = tf.gather(tf.constant([0.9, 0.8]), order) * mask
        class_ids = tf.gather(tf.constant([1.0, 2.0]) + self.class_offset, order) * mask
        return boxes, scores, class_ids, tf.reduce_sum(mask)

    def _detect(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        types = (tf.float32,) * 4
        return dict(
            zip(names.OUTPUT_NAMES, tf.map_fn(self._detect_one, images, fn_output_signature=types), strict=True)
        )

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, "input_tensor")])
    def from_images(self, input_tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(input_tensor)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    def from_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        types = (tf.float32,) * 4

        def detect(encoded: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return self._detect_one(tf.io.decode_image(encoded, channels=3, expand_animations=False))

        return dict(zip(names.OUTPUT_NAMES, tf.map_fn(detect, image_bytes, fn_output_signature=types), strict=True))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def from_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = {example_keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string)}
        return self.from_encoded(tf.io.parse_example(examples, feature)[example_keys.IMAGE_ENCODED])


def write_tiny_detector(
    folder: Path,
    *,
    label_map: LabelMap = RED_GREEN,
    shift: float = 0.0,
    class_offset: int = 0,
    signatures: tuple[str, ...] = tuple(names.SIGNATURE_INPUTS),
) -> Path:
    """Write the SavedModel into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    label_map_path = folder.parent / names.ASSET_LABEL_MAP  # `save` copies it into assets/ under its own name
    write_label_map(label_map_path, label_map)
    model = TinyDetector(str(label_map_path), shift, class_offset)
    functions = {
        names.SIGNATURE_IMAGES: model.from_images,
        names.SIGNATURE_ENCODED: model.from_encoded,
        names.SIGNATURE_EXAMPLES: model.from_examples,
    }
    tf.saved_model.save(model, str(folder), {name: functions[name] for name in signatures})
    return folder
