"""Generate records for benchmarks."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from detloom.schemas.contracts import example_keys as keys

_LAST_BEGIN, _LARGEST_SIDE = 0.6, 0.4  # so that every box ends inside the image


def make_boxes(random: np.random.Generator, count: int, smallest_side: float) -> npt.NDArray[np.float64]:
    """Return [count, 4] as yxyx, relative to the image."""
    begins, sizes = random.uniform(0, _LAST_BEGIN, (count, 2)), random.uniform(smallest_side, _LARGEST_SIDE, (count, 2))
    return np.hstack([begins, begins + sizes])


def serialize(
    image: Image.Image,
    number: int,
    boxes_yxyx_rel: npt.NDArray[np.float64],
    class_ids: npt.NDArray[np.int64],
    *,
    jpeg_quality: int = 75,
) -> bytes:
    """Return a tf.Example that both we and the Object Detection API can read; `number` is its source id."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=jpeg_quality)
    example = tf.train.Example()
    feature = example.features.feature
    feature[keys.IMAGE_ENCODED].bytes_list.value.append(buffer.getvalue())
    feature[keys.IMAGE_FORMAT].bytes_list.value.append(b"jpeg")
    feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(str(number).encode())
    feature[keys.IMAGE_HEIGHT].int64_list.value.append(image.height)
    feature[keys.IMAGE_WIDTH].int64_list.value.append(image.width)
    for key, values in zip(keys.BOX_KEYS_YXYX, boxes_yxyx_rel.T, strict=True):
        feature[key].float_list.value.extend(values)
    feature[keys.CLASS_ID].int64_list.value.extend(class_ids)
    return bytes(example.SerializeToString())


def write_records(path: Path, records: Iterable[bytes]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
