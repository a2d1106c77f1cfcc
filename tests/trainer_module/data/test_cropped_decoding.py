import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.crop_augmentations import RandomCropImage
from detloom.trainer_module.data.augmentations.apply import apply_augmentation
from detloom.trainer_module.data.augmentations.crops import Window
from detloom.trainer_module.data.class_lookup import ClassLookup, ClassTables
from detloom.trainer_module.data.cropped_decoding import decode_crop, decode_jpeg_window, decode_sample
from detloom.trainer_module.data.example_parser import parse_ground_truth
from detloom.trainer_module.detectors.preprocess import decode_image

BOXES = [(0.1, 0.2, 0.5, 0.6), (0.0, 0.0, 1.0, 0.3), (0.6, 0.7, 0.7, 0.9)]
FORMATS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"subsampling": 2, "progressive": True},
    "grey": {},
    "cmyk": {},
}
MODES = {"grey": "L", "cmyk": "CMYK"}


@pytest.fixture(scope="module")
def photograph():
    """427 x 640 pixels."""
    return Image.fromarray(load_sample_image("china.jpg"))


def encode(image, name):
    buffer = io.BytesIO()
    if name == "png":
        image.save(buffer, format="PNG")
    else:
        image.convert(MODES.get(name, "RGB")).save(buffer, format="JPEG", quality=85, **FORMATS[name])
    return buffer.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_a_window_of_a_jpeg_has_the_pixels_of_the_whole_image(photograph, name):
    """Windows at the edges, inside, of one pixel, and the whole; odd places, where colours are shared by two pixels."""
    image_bytes = encode(photograph, name)
    whole = decode_image(image_bytes).numpy()
    for y, x, height, width in [
        (0, 0, 427, 640),
        (0, 0, 33, 57),
        (13, 7, 100, 201),
        (394, 583, 33, 57),
        (211, 301, 1, 1),
    ]:
        window = Window(tf.constant([y, x]), tf.constant([height, width]), tf.constant(0.0), tf.constant(True))
        pixels = decode_jpeg_window(tf.constant(image_bytes), window, tf.constant([427, 640]))
        np.testing.assert_array_equal(pixels, whole[y : y + height, x : x + width])


@pytest.mark.parametrize("name", ["4:2:0", "png"])
def test_decoding_a_crop_is_decoding_and_then_cropping(make_example, photograph, name):
    example = tf.train.Example.FromString(make_example(BOXES, crowds=[0, 1, 0]))
    example.features.feature[keys.IMAGE_ENCODED].bytes_list.value[:] = [encode(photograph, name)]
    table, crop = ClassTables(ClassLookup(LabelMap.from_names(["cat"]))), RandomCropImage(min_object_covered=0.5)

    parsed, sizes = parse_ground_truth(tf.constant(example.SerializeToString()), table), set()
    for number in range(8):
        seed = tf.constant([7, number], tf.int64)
        at_once, one_by_one = decode_crop(parsed, crop, seed), apply_augmentation(crop, decode_sample(parsed), seed)
        assert set(at_once) == set(one_by_one)
        for column in at_once:
            np.testing.assert_array_equal(at_once[column], one_by_one[column])
        sizes.add(tuple(at_once["image"].shape))
    assert len(sizes) > 4


def test_crowds_and_invalid_boxes_are_left_out(make_example):
    """Inverted in y, inverted in x, not a number, infinite, a point. The reference keeps the point."""
    nan, infinity = float("nan"), float("inf")
    example = tf.train.Example.FromString(make_example([BOXES[0]] * 7, range(1, 8), crowds=[0, 0, 0, 0, 0, 1, 0]))
    corners = [
        BOXES[0],
        (0.5, 0.2, 0.1, 0.6),
        (0.1, 0.6, 0.5, 0.2),
        (nan, 0.2, 0.5, 0.6),
        (0.1, 0.2, 0.5, infinity),
        BOXES[0],
        (0.3, 0.3, 0.3, 0.3),
    ]
    for key, column in zip(keys.BOX_KEYS_YXYX, zip(*corners, strict=True), strict=True):
        example.features.feature[key].float_list.value[:] = column
    parsed = parse_ground_truth(
        tf.constant(example.SerializeToString()), ClassTables(ClassLookup(LabelMap.from_names("abcdefg")))
    )
    np.testing.assert_array_equal(decode_sample(parsed)["class_indices"], [0])
    never = RandomCropImage(random_coef=1.0)
    np.testing.assert_array_equal(decode_crop(parsed, never, tf.constant([1, 2]))["class_indices"], [0])
