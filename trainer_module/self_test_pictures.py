"""The few pictures of the overfit test: from the user's shards, or made on the spot."""

import colorsys
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from detloom.schemas import example_keys as keys
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.records import read_records

NUM_PICTURES = 16
_MAX_SIDE_PX = 640  # of pictures that are made here
_MAX_MADE_CLASSES = 6  # told apart by colour alone


def first_with_boxes(files: Sequence[str]) -> list[bytes]:
    records: list[bytes] = []
    for serialized in read_records(files).as_numpy_iterator():
        if boxes_of(serialized)[0].size:
            records.append(serialized)
        if len(records) == NUM_PICTURES:
            return records
    if not records:
        raise InputError(f"{Path(files[0]).parent}: got no picture with a box, needed: one or more for the self-test.")
    return records


def make_pictures(label_map: LabelMap, image_hw: tuple[int, int]) -> Iterator[bytes]:
    """Serialized examples: one to three rectangles on noise, a colour for each of the first few classes."""
    random = np.random.default_rng(0)
    scale = min(1.0, _MAX_SIDE_PX / max(image_hw))
    height, width = (round(side * scale) for side in image_hw)
    num_classes = min(label_map.num_classes, _MAX_MADE_CLASSES)
    next_class = 0
    for number in range(NUM_PICTURES):
        pixels = random.integers(96, 160, (height, width, 3)).astype(np.uint8)
        boxes, class_ids = [], []
        for quarter in random.permutation(4)[: 1 + number % 3]:
            size_yx = random.uniform(0.25, 0.45, 2)  # a quarter of the picture is 0.5 wide
            begin_yx = np.array(divmod(int(quarter), 2)) / 2 + random.uniform(0, 0.5 - size_yx)
            (top, left), (bottom, right) = (
                np.round(corner * [height, width]).astype(int) for corner in (begin_yx, begin_yx + size_yx)
            )
            rgb = colorsys.hsv_to_rgb(next_class / num_classes, 1, 0.9)
            pixels[top:bottom, left:right] = np.round(np.multiply(rgb, 255))
            boxes.append((top / height, left / width, bottom / height, right / width))
            class_ids.append(label_map.class_ids[next_class])
            next_class = (next_class + 1) % num_classes
        yield _make_example(f"made-{number}", pixels, boxes, class_ids)


def _make_example(name: str, pixels: np.ndarray, boxes_yxyx_rel: Sequence[Any], class_ids: Sequence[int]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    example = tf.train.Example()
    feature = example.features.feature
    feature[keys.IMAGE_ENCODED].bytes_list.value.append(buffer.getvalue())
    feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(name.encode())
    for side, key in enumerate(keys.BOX_KEYS_YXYX):
        feature[key].float_list.value.extend(box[side] for box in boxes_yxyx_rel)
    feature[keys.CLASS_ID].int64_list.value.extend(class_ids)
    return bytes(example.SerializeToString(deterministic=True))


def boxes_of(serialized: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [N, 4] and class ids [N] of a record, without crowds; a record of another kind has none."""
    feature = tf.train.Example.FromString(serialized).features.feature
    columns = [feature[key].float_list.value for key in keys.BOX_KEYS_YXYX]
    class_ids = np.array(feature[keys.CLASS_ID].int64_list.value, int)
    crowds = np.array(feature[keys.IS_CROWD].int64_list.value, bool)
    if any(len(column) != len(class_ids) for column in columns):
        return np.zeros([0, 4]), np.zeros([0], int)
    kept = ~crowds if len(crowds) == len(class_ids) else np.ones(len(class_ids), bool)
    return np.stack(columns, axis=-1).reshape(-1, 4)[kept], class_ids[kept]
