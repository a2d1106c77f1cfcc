"""A real SavedModel with the three signatures that needs no training: it detects red and green areas.

Class 1 is "red", class 2 is "green". A red area has score 0.9, a green one 0.8.
"""

import functools
import json
import tempfile
from pathlib import Path

import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys
from detloom.schemas.contracts.label_map import LabelMap, write_label_map

RED_GREEN = LabelMap.from_names(["red", "green"])


class TinyDetector(tf.Module):
    """Detector of colours; `shift` moves boxes down by a share of the image, `score_factor` scales scores.

    Areas have the ids of "red" and "green" in the label map, else 1 and 2. With `has_shapes` it also returns masks of
    3 x 5 cells, which fill the boxes, and as keypoints the upper left and lower right corners of red boxes.
    """

    def __init__(
        self,
        label_map_path: str,
        shift: float = 0.0,
        score_factor: float = 1.0,
        has_shapes: bool = False,
        class_ids: tuple[int, int] = (1, 2),
    ) -> None:
        super().__init__()
        self.has_shapes, self.class_ids = has_shapes, tuple(map(float, class_ids))
        self.label_map = tf.saved_model.Asset(label_map_path)
        self.shift, self.score_factor = tf.Variable(shift), score_factor

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
        scores = tf.gather(tf.constant([0.9, 0.8]) * self.score_factor, order) * mask
        class_ids = tf.gather(tf.constant(self.class_ids), order) * mask
        return boxes, scores, class_ids, tf.reduce_sum(mask)

    def _detect(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        types = (tf.float32,) * 4
        return self._named(tf.map_fn(self._detect_one, images, fn_output_signature=types))

    def _named(self, outputs: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        found = dict(zip(names.OUTPUT_NAMES, outputs, strict=True))
        if self.has_shapes:
            is_red = tf.cast(found[names.CLASSES] == 1, tf.float32)
            found[names.MASKS] = tf.ones([tf.shape(is_red)[0], 2, 3, 5])
            found[names.KEYPOINTS] = tf.reshape(found[names.BOXES], [-1, 2, 2, 2])
            found[names.KEYPOINT_SCORES] = tf.stack([is_red, is_red], axis=-1)
        return found

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, "input_tensor")])
    def from_images(self, input_tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(input_tensor)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    def from_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        types = (tf.float32,) * 4

        def detect(encoded: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return self._detect_one(tf.io.decode_image(encoded, channels=3, expand_animations=False))

        return self._named(tf.map_fn(detect, image_bytes, fn_output_signature=types))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def from_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = {example_keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string)}
        return self.from_encoded(tf.io.parse_example(examples, feature)[example_keys.IMAGE_ENCODED])


_ASSETS = tempfile.TemporaryDirectory()


@functools.cache  # tracing takes longer than saving
def _trace_detector(label_map: LabelMap, score_factor: float, has_shapes: bool) -> TinyDetector:
    # `save` copies the label map into assets/ under its own name.
    label_map_path = Path(tempfile.mkdtemp(dir=_ASSETS.name)) / names.ASSET_LABEL_MAP
    write_label_map(label_map_path, label_map)
    ids = {name: class_id for class_id, name in label_map.names_by_id}
    class_ids = (ids.get("red", 1), ids.get("green", 2))
    return TinyDetector(str(label_map_path), 0.0, score_factor, has_shapes, class_ids)


def write_tiny_detector(
    folder: Path,
    *,
    label_map: LabelMap = RED_GREEN,
    shift: float = 0.0,
    score_factor: float = 1.0,
    signatures: tuple[str, ...] = tuple(names.SIGNATURE_INPUTS),
    has_shapes: bool = False,
) -> Path:
    """Write the SavedModel into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = _trace_detector(label_map, score_factor, has_shapes)
    model.shift.assign(shift)
    functions = {
        names.SIGNATURE_IMAGES: model.from_images,
        names.SIGNATURE_ENCODED: model.from_encoded,
        names.SIGNATURE_EXAMPLES: model.from_examples,
    }
    tf.saved_model.save(model, str(folder), {name: functions[name] for name in signatures})
    if has_shapes:
        keypoints = {"class_name": "red", "names": ["upper left", "lower right"], "sigmas": [0.05, 0.1]}
        contract = {"box_units": "relative", "keypoints": keypoints}
        (folder / "assets" / names.ASSET_CONTRACT).write_text(json.dumps(contract))
    return folder


class TinyTflite(tf.Module):
    """The same detector for one image of 60 x 80 pixels, with operations that TFLite supports."""

    def __init__(self, shift: float, dtype: tf.DType) -> None:
        super().__init__()
        self.shift, self.dtype = shift, dtype

    def detect(self, input_tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        image = tf.cast(input_tensor, tf.float32)[0]
        boxes, found = [], []
        for channel in (0, 1):
            others = tf.maximum(image[..., 1 - channel], image[..., 2])
            mask = tf.cast((image[..., channel] > 200) & (others < 100), tf.float32)
            ends = []
            for axis, length in ((0, 60), (1, 80)):
                along = tf.reduce_max(mask, axis=1 - axis)
                first = tf.cast(tf.argmax(along), tf.float32)
                last = length - tf.cast(tf.argmax(tf.reverse(along, [0])), tf.float32)
                ends.append((first / length, last / length))
            (ymin, ymax), (xmin, xmax) = ends
            boxes.append(tf.stack([ymin + self.shift, xmin, ymax + self.shift, xmax]))
            found.append(tf.reduce_max(mask))
        is_found = tf.stack(found)
        scores, order = tf.math.top_k(tf.constant([0.9, 0.8]) * is_found, 2)
        return {
            names.BOXES: tf.clip_by_value(tf.gather(tf.stack(boxes), order), 0, 1)[tf.newaxis],
            names.SCORES: scores[tf.newaxis],
            names.CLASSES: (tf.cast(order, tf.float32) + 1)[tf.newaxis],
            names.NUM_DETECTIONS: tf.reduce_sum(is_found)[tf.newaxis],
        }


def write_tiny_tflite(path: Path, *, shift: float = 0.0, dtype: tf.DType = tf.uint8, output: str = names.BOXES) -> Path:
    """Write the model to `path`; `output` is the name of its first output."""
    module = TinyTflite(shift, dtype)

    @tf.function(input_signature=[tf.TensorSpec([1, 60, 80, 3], dtype, "input_tensor")])
    def detect(input_tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = module.detect(input_tensor)
        return {output if name == names.BOXES else name: value for name, value in outputs.items()}

    folder = path.parent / f".{path.stem}"
    tf.saved_model.save(module, str(folder), {names.SIGNATURE_IMAGES: detect})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=[names.SIGNATURE_IMAGES])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(converter.convert())
    return path
