import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detloom.schemas import example_keys as keys
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, write_label_map

_SPEC = importlib.util.spec_from_file_location("tiny_detector", Path(__file__).with_name("tiny_detector.py"))
tiny_detector = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny_detector)


@pytest.fixture(scope="session")
def write_tiny_detector():
    return tiny_detector.write_tiny_detector


@pytest.fixture(scope="session")
def good_model_uri(tmp_path_factory):
    """A Model artifact's folder whose detector is always right."""
    uri = tmp_path_factory.mktemp("good_model")
    tiny_detector.write_tiny_detector(uri / "Format-Serving")
    return uri


@pytest.fixture(scope="session")
def shifted_model_uri(tmp_path_factory):
    """A Model artifact's folder whose boxes lie a tenth of the picture too low: still right at IoU 0.50."""
    uri = tmp_path_factory.mktemp("shifted_model")
    tiny_detector.write_tiny_detector(uri / "Format-Serving", shift=0.1)
    return uri


def make_picture_example(source_id, red=None, green=None, image_hw=(60, 80), truth=True, **changes):
    """A serialized tf.Example with a red and a green rectangle at the given pixels (top, left, bottom, right)."""
    image = np.zeros((*image_hw, 3), np.uint8)
    boxes, class_ids = [], []
    for class_id, color, corners in ((1, (255, 0, 0), red), (2, (0, 255, 0), green)):
        if corners:
            top, left, bottom, right = corners
            image[top:bottom, left:right] = color
            boxes.append([top / image_hw[0], left / image_hw[1], bottom / image_hw[0], right / image_hw[1]])
            class_ids.append(class_id)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    boxes, class_ids = (boxes, class_ids) if truth else ([], [])
    values = {
        keys.IMAGE_ENCODED: file.getvalue(),
        keys.IMAGE_SOURCE_ID: source_id.encode(),
        keys.IMAGE_HEIGHT: image_hw[0],
        keys.IMAGE_WIDTH: image_hw[1],
        keys.CLASS_ID: class_ids,
        **{key: [box[side] for box in boxes] for side, key in enumerate(keys.BOX_KEYS_YXYX)},
        **changes,
    }
    return tf.train.Example(
        features=tf.train.Features(feature={k: _feature(v) for k, v in values.items() if v is not None})
    )


def _feature(value):
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


@pytest.fixture
def make_picture():
    return make_picture_example


@pytest.fixture(scope="session")
def write_split():
    """Writes shards of examples below `uri` and returns the split's folder."""

    def write(uri, examples, split="test", num_shards=2, label_map=None):
        folder = uri / f"Split-{split}"
        folder.mkdir(parents=True, exist_ok=True)
        write_label_map(uri / LABEL_MAP_FILE, label_map or LabelMap.from_names(["red", "green"]))
        for shard in range(num_shards):
            with tf.io.TFRecordWriter(str(folder / f"examples-{shard:05d}-of-{num_shards:05d}")) as writer:
                for example in examples[shard::num_shards]:
                    writer.write(example if isinstance(example, bytes) else example.SerializeToString())
        return folder

    return write


@pytest.fixture
def five_examples():
    """Six boxes on five pictures; the last one is empty."""
    return [
        make_picture_example("e", red=(5, 5, 25, 45), green=(30, 10, 55, 70)),
        make_picture_example("a", red=(10, 30, 50, 75)),
        make_picture_example("d", green=(0, 0, 60, 80), image_hw=(60, 80)),
        make_picture_example("b", red=(20, 20, 100, 120), green=(110, 10, 190, 200), image_hw=(200, 300)),
        make_picture_example("c"),
    ]
