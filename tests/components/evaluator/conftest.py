"""Fixtures with models, images and splits; TensorFlow is imported lazily because most tests do not need it."""

import importlib
import io
import shutil

import numpy as np
import pytest
from PIL import Image

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

LABEL_MAP = LabelMap(((1, "cat"), (3, "dog"), (4, "owl")))


@pytest.fixture(scope="session")
def tiny_detector():
    return importlib.import_module("tiny_detector")


@pytest.fixture(scope="session")
def evaluation():
    return importlib.import_module("evaluations").make_evaluation()


@pytest.fixture(scope="session")
def good_model_uri(tmp_path_factory, tiny_detector):
    """The folder of a Model artifact with a detector that makes no errors."""
    uri = tmp_path_factory.mktemp("good_model")
    tiny_detector.write_tiny_detector(uri / "Format-Serving")
    return uri


@pytest.fixture(scope="session")
def shifted_model_uri(tmp_path_factory, tiny_detector):
    """The folder of a Model artifact with boxes shifted down by a tenth of the image, still correct at IoU 0.50."""
    uri = tmp_path_factory.mktemp("shifted_model")
    tiny_detector.write_tiny_detector(uri / "Format-Serving", shift=0.1)
    return uri


@pytest.fixture
def copy_model(good_model_uri):
    """Copy the SavedModel without errors to `folder`, with another label map or without some signatures."""
    from tensorflow.core.protobuf import saved_model_pb2

    def copy(folder, label_map=None, without=()):
        shutil.copytree(good_model_uri / "Format-Serving", folder)
        if label_map is not None:
            write_label_map(folder / "assets" / LABEL_MAP_FILE, label_map)
        if without:
            saved_model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
            for name in without:
                del saved_model.meta_graphs[0].signature_def[name]
            (folder / "saved_model.pb").write_bytes(saved_model.SerializeToString())
        return folder

    return copy


def make_image_example(source_id, red=None, green=None, image_hw=(60, 80), truth=True, **changes):
    """Make a tf.Example with a red and a green rectangle at the given pixels (top, left, bottom, right)."""
    import tensorflow as tf

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
    import tensorflow as tf

    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


@pytest.fixture
def make_record():
    return make_image_example


@pytest.fixture(scope="session")
def make_one_box():
    """Make a tf.Example with a red object at (0.1, 0.2, 0.3, 0.4), the box of `tiny_onnx`."""
    return lambda source_id: make_image_example(source_id, red=(10, 20, 30, 40), image_hw=(100, 100))


@pytest.fixture(scope="session")
def write_split():
    """Write shards of examples below `uri` and return the split's folder."""
    import tensorflow as tf

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


@pytest.fixture(scope="session")
def five_examples():
    """Five images with six boxes; the last image is empty."""
    return [
        make_image_example("e", red=(5, 5, 25, 45), green=(30, 10, 55, 70)),
        make_image_example("a", red=(10, 30, 50, 75)),
        make_image_example("d", green=(0, 0, 60, 80), image_hw=(60, 80)),
        make_image_example("b", red=(20, 20, 100, 120), green=(110, 10, 190, 200), image_hw=(200, 300)),
        make_image_example("c"),
    ]


# --- random splits with hard cases of the COCO API's rules: crowds, tied scores, equal overlaps, empty images


@pytest.fixture(scope="session")
def label_map():
    return LABEL_MAP


@pytest.fixture(scope="session")
def make_image():
    """Make (truth, found) of an image of 100 x 100 pixels; boxes are (class id, ymin, xmin, ymax, xmax[, score])."""

    def make(image_id, truth=(), found=(), crowds=()):
        truth, found = np.reshape(truth, (-1, 5)).astype(float), np.reshape(found, (-1, 6)).astype(float)
        is_crowd = np.isin(np.arange(len(truth)), crowds)
        return (
            ImageGroundTruth(image_id, (100, 100), truth[:, 1:] / 100, truth[:, 0].astype(int), is_crowd),
            ImageDetections(image_id, found[:, 1:5] / 100, found[:, 5], found[:, 0].astype(int)),
        )

    return make


@pytest.fixture(scope="session")
def make_split():
    """Make (ground truth, detections) of random images with detections near objects, tied scores and corners."""

    def make(seed, num_images=12, max_boxes=7, max_found=12, crowd_share=0.15):
        generator = np.random.default_rng(seed)
        truth, found = [], []
        for image_id in range(1, num_images + 1):
            count = int(generator.integers(0, max_boxes + 1))
            boxes = _random_boxes(generator, count)
            class_ids = generator.choice(LABEL_MAP.class_ids, count)
            crowd = generator.random(count) < crowd_share
            truth.append(ImageGroundTruth(image_id, (100, 100), boxes, class_ids, crowd))
            near = generator.integers(0, count, int(generator.integers(0, max_found + 1))) if count else []
            moved = np.clip(boxes[near] + generator.integers(-8, 9, (len(near), 4)) / 100, 0, 1)
            moved = np.concatenate([np.minimum(moved[:, :2], moved[:, 2:]), np.maximum(moved[:, :2], moved[:, 2:])], 1)
            strange = _random_boxes(generator, int(generator.integers(0, 4)))
            ids = np.concatenate([class_ids[near], generator.choice(LABEL_MAP.class_ids, len(strange))]).astype(int)
            is_other = generator.random(len(ids)) < 0.15
            ids[is_other] = generator.choice(LABEL_MAP.class_ids, int(is_other.sum()))
            scores = generator.integers(1, 11, len(ids)) / 10
            found.append(ImageDetections(image_id, np.concatenate([moved, strange]), scores, ids))
        return truth, found

    return make


@pytest.fixture(scope="session")
def make_good_split():
    """Make (ground truth, detections of two models) that look real: mostly correct, a few extras with low scores."""

    def make(seed, num_images):
        generator = np.random.default_rng(seed)
        truth, models = [], ([], [])
        for image_id in range(num_images):
            count = int(generator.integers(1, 9))
            low = generator.random((count, 2)) * 0.7
            boxes = np.concatenate([low, low + 0.1 + 0.2 * generator.random((count, 2))], axis=1)
            class_ids = generator.choice([1, 1, 1, 3, 3, 4], count)
            truth.append(ImageGroundTruth(image_id, (300, 300), boxes, class_ids, np.zeros(count, bool)))
            for found, sigma, missed in zip(models, (0.012, 0.013), (0.1, 0.13), strict=True):
                keep = generator.random(count) > missed
                strange = _random_boxes(generator, int(generator.integers(0, 3)))
                near = boxes[keep] + generator.normal(0, sigma, (int(keep.sum()), 4))
                scores = generator.normal([0.75] * len(near) + [0.4] * len(strange), 0.15).clip(0, 1)
                ids = np.concatenate([class_ids[keep], generator.choice(LABEL_MAP.class_ids, len(strange))])
                found.append(ImageDetections(image_id, np.concatenate([near, strange]), scores, ids.astype(int)))
        return truth, *models

    return make


def _random_boxes(generator, count):
    corners = generator.integers(0, 21, (count, 2, 2)) * 0.05
    low, high = corners.min(axis=1), corners.max(axis=1)
    return np.concatenate([low, np.maximum(high, low + 0.05)], axis=1).clip(0, 1)
