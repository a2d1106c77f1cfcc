"""Drawn images of a page."""

import base64
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detloom.components.dataset_validator.report.page_parts import MAX_DRAWN_BOXES, DrawnImage, draw_images
from detloom.components.dataset_validator.statistics.image_sample import (
    RecordPlace,
)
from detloom.schemas.contracts.label_map import LabelMap

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
BOX = (0.1, 0.1, 0.6, 0.6)
MAX_PIXELS = 1_000_000


def places_in(path, records, split="train"):
    """Return the places of records written to one file."""
    offset, found = 0, []
    for number, record in enumerate(records):
        found.append(RecordPlace(split, f"img_{number}", str(path), number, offset))
        offset += 16 + len(record)
    return found


def open_uri(image: DrawnImage):
    head, _, data = image.data_uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.fixture
def draw(tmp_path, write_records):
    """Draw records of one file."""

    def call(*records, label_map=LABEL_MAP, max_pixels=MAX_PIXELS):
        path = write_records(tmp_path / "shard", records)
        return draw_images(places_in(path, records), label_map, max_pixels=max_pixels)

    return call


def test_an_image_is_read_from_its_place_and_drawn_at_a_small_size(draw, make_example):
    images = draw(*(make_example([BOX] * i, image_hw=(400, 800), name=f"img_{i}") for i in range(3)))
    assert [(key, image.num_boxes, image.image_hw) for key, image in images.items()] == [
        (("train", f"img_{i}"), i, (400, 800)) for i in range(3)
    ]
    assert open_uri(images["train", "img_1"]).size == (480, 240)


def test_boxes_have_the_colour_of_their_class(draw, make_example):
    [image] = draw(make_example([BOX], [2], (100, 100))).values()
    assert (image.class_names, image.box_sizes) == (("dog",), ("medium, 32 to 96 px",))  # 50 x 50 pixels
    pixel = np.asarray(open_uri(image).convert("RGB"))[30, 10].astype(int)  # left edge of the box: x = 0.1 * 99
    assert np.abs(pixel - (230, 159, 0)).max() < 60  # orange, blurred by JPEG


def test_a_gzip_file_is_read_by_number(tmp_path, make_example):
    records = [make_example([BOX] * i, name=f"img_{i}") for i in range(4)]
    path = tmp_path / "shard.gz"
    with tf.io.TFRecordWriter(str(path), options="GZIP") as writer:
        for record in records:
            writer.write(record)
    places = places_in(path, records)
    images = draw_images([places[3], places[1]], LABEL_MAP, max_pixels=MAX_PIXELS)
    assert [(key[1], image.num_boxes) for key, image in images.items()] == [("img_3", 3), ("img_1", 1)]


def test_records_that_cannot_be_drawn_are_omitted(tmp_path, make_example, write_records):
    no_image = tf.train.Example().SerializeToString()
    records = [make_example([BOX]), b"no example", no_image]
    path = write_records(tmp_path / "shard", records)
    missing = RecordPlace("train", "gone", str(tmp_path / "gone"), 0, 0)
    missing_gz = RecordPlace("train", "gone", str(tmp_path / "gone.gz"), 0, 0)
    beyond = RecordPlace("train", "beyond", str(path), 9, 10**12)
    inside = RecordPlace("train", "inside", str(path), 9, 5)  # not the start of a record, so its length is meaningless
    places = [missing, missing_gz, beyond, inside, *places_in(path, records)]
    assert list(draw_images(places, LABEL_MAP, max_pixels=MAX_PIXELS)) == [("train", "img_0")]


@pytest.mark.reliability("hostile input", "validate")
def test_an_image_with_too_many_pixels_is_omitted(draw, make_example):
    assert draw(make_example([BOX], image_hw=(100, 100)), max_pixels=9_999) == {}


@pytest.mark.parametrize(("uses", "shown"), [([2, 1, 0], ["img_2", "img_1"]), ([0, 0, 1], ["img_0"])])
def test_the_last_images_are_omitted_if_the_page_is_full(tmp_path, make_example, write_records, uses, shown):
    """An image counts once for each of its uses on the page."""
    records = [make_example([BOX]) for _ in range(3)]
    places = places_in(write_records(tmp_path / "shard", records), records)
    size = len(draw_images(places[:1], LABEL_MAP, max_pixels=MAX_PIXELS)["train", "img_0"].data_uri)
    found = draw_images([places[i] for i in uses], LABEL_MAP, max_pixels=MAX_PIXELS, max_bytes=2 * size)
    assert [key for _, key in found] == shown


@pytest.mark.reliability("hostile input", "validate")
def test_hostile_labels_are_drawn_without_an_error(draw, make_example):
    label_map = LabelMap.from_names(["two\nlines \u202e and \x00 more" * 50])
    bad = [(float("nan"), 0.0, 1.0, 1.0), (0.9, 0.9, 0.1, 0.1), (-1e30, 0.0, 1e30, 1.0)]
    example = tf.train.Example.FromString(make_example([BOX] * 4, [1, 2**62, -(2**63), 1], image_hw=(1, 900)))
    for i, key in enumerate(("ymin", "xmin", "ymax", "xmax")):
        values = example.features.feature[f"image/object/bbox/{key}"].float_list.value
        values[:] = [box[i] for box in [*bad, BOX]]
    [image] = draw(example.SerializeToString(), label_map=label_map).values()
    assert open_uri(image).size == (480, 1)
    assert image.box_sizes == ("small, below 32 px",)  # of the only valid box: the square root of 450 * 0.5


def test_the_number_of_drawn_boxes_is_limited_with_a_note(draw, make_example):
    [image] = draw(make_example([BOX] * (MAX_DRAWN_BOXES + 1))).values()
    assert image.num_boxes == 301
    assert "300" in image.note
