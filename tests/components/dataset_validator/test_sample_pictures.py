import base64
import io
import pickle
import random

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detloom.components.dataset_validator.sample_pictures import (
    MAX_CLASSES,
    MAX_DRAWN_BOXES,
    MAX_PER_CLASS,
    MAX_PER_PROBLEM,
    MAX_PER_SPLIT,
    Picture,
    PictureSample,
    Place,
    choose,
    draw_pictures,
)
from detloom.schemas.label_map import LabelMap

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
BOX = (0.1, 0.1, 0.6, 0.6)
MAX_PIXELS = 1_000_000


def place(number, split="train", path="shard", offset=0):
    return Place(split, f"img_{number:04d}", path, number, offset)


def sample_of(places, class_ids=(1,), problems=()):
    sample = PictureSample()
    for one in places:
        sample.add(one, class_ids, problems)
    return sample


def places_in(path, records, split="train"):
    """The places of records written to one file."""
    offset, found = 0, []
    for number, record in enumerate(records):
        found.append(Place(split, f"img_{number}", str(path), number, offset))
        offset += 16 + len(record)
    return found


def open_uri(picture: Picture):
    head, _, data = picture.data_uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize("num_parts", [1, 3])
def test_the_same_pictures_are_chosen_whatever_the_order_and_the_parts(num_parts):
    places = [place(i) for i in range(200)]
    expected = sample_of(places, (1, 2), ["boxes"])
    shuffled = random.Random(0).sample(places, len(places))
    merged = PictureSample()
    for i in range(num_parts):
        merged.merge(pickle.loads(pickle.dumps(sample_of(shuffled[i::num_parts], (1, 2), ["boxes"]))))
    for topic in ("sample:train", "class:1", "class:2", "problem:boxes"):
        assert merged.places(topic) == expected.places(topic)


def test_a_bounded_number_of_places_is_remembered():
    sample = sample_of([place(i) for i in range(1000)], (1,), ["boxes"])
    topics = ("sample:train", "class:1", "problem:boxes")
    assert [len(sample.places(t)) for t in topics] == [MAX_PER_SPLIT, MAX_PER_CLASS, MAX_PER_PROBLEM]
    assert len(pickle.dumps(sample)) < 5000


def test_samples_are_not_the_first_records():
    sample = sample_of([place(i) for i in range(1000)])
    assert max(chosen.number for chosen in sample.places("sample:train")) > 100


def test_problems_are_shown_by_the_first_records_in_order():
    sample = sample_of([place(i) for i in (9, 3, 7, 1, 5, 2)], problems=["boxes"])
    assert [chosen.number for chosen in sample.places("problem:boxes")] == [1, 2, 3, 5]


def test_of_too_many_classes_the_smallest_ids_are_kept_in_any_order():
    ids = list(range(1, MAX_CLASSES + 50))
    random.Random(1).shuffle(ids)
    first, second = PictureSample(), PictureSample()
    for i, class_id in enumerate(ids):
        (first if i % 2 else second).add(place(i), (class_id,))
    first.merge(second)
    assert sorted(map(int, first.topics("class"))) == list(range(1, MAX_CLASSES + 1))


def test_the_page_has_problems_first_then_samples_then_classes():
    sample = sample_of([place(1)], (1,), ["boxes"])
    topics = [topic for topic, _ in choose(sample, LABEL_MAP, ["train"])]
    assert topics == ["problem:boxes", "sample", "class:cat"]


def test_a_picture_is_read_from_its_place_and_drawn_small(tmp_path, make_example, write_records):
    records = [make_example([BOX] * i, image_hw=(400, 800), name=f"img_{i}") for i in range(3)]
    path = write_records(tmp_path / "shard", records)
    pictures = draw_pictures(places_in(path, records)[1:], LABEL_MAP, max_pixels=MAX_PIXELS)
    assert {key: (picture.num_boxes, picture.image_hw) for key, picture in pictures.items()} == {
        ("train", "img_1"): (1, (400, 800)),
        ("train", "img_2"): (2, (400, 800)),
    }
    assert open_uri(pictures["train", "img_1"]).size == (360, 180)


def test_boxes_are_drawn_in_the_colour_of_their_class(tmp_path, make_example, write_records):
    records = [make_example([BOX], [2], (100, 100))]
    path = write_records(tmp_path / "shard", records)
    [picture] = draw_pictures(places_in(path, records), LABEL_MAP, max_pixels=MAX_PIXELS).values()
    pixel = np.asarray(open_uri(picture).convert("RGB"))[30, 10].astype(int)  # left edge of the box: x = 0.1 * 99
    assert np.abs(pixel - (230, 159, 0)).max() < 60  # orange, blurred by JPEG


def test_a_gzip_file_is_read_by_number(tmp_path, make_example):
    records = [make_example([BOX] * i, name=f"img_{i}") for i in range(4)]
    path = tmp_path / "shard.gz"
    with tf.io.TFRecordWriter(str(path), options="GZIP") as writer:
        for record in records:
            writer.write(record)
    places = places_in(path, records)
    pictures = draw_pictures([places[3], places[1]], LABEL_MAP, max_pixels=MAX_PIXELS)
    assert [(key[1], picture.num_boxes) for key, picture in pictures.items()] == [("img_3", 3), ("img_1", 1)]


def test_what_cannot_be_drawn_is_left_out(tmp_path, make_example, write_records):
    no_image = tf.train.Example().SerializeToString()
    records = [make_example([BOX]), b"no example", no_image]
    path = write_records(tmp_path / "shard", records)
    missing = Place("train", "gone", str(tmp_path / "gone"), 0, 0)
    missing_gz = Place("train", "gone", str(tmp_path / "gone.gz"), 0, 0)
    beyond = Place("train", "beyond", str(path), 9, 10**12)
    inside = Place("train", "inside", str(path), 9, 5)  # not where a record begins: a length of nonsense
    places = [missing, missing_gz, beyond, inside, *places_in(path, records)]
    assert list(draw_pictures(places, LABEL_MAP, max_pixels=MAX_PIXELS)) == [("train", "img_0")]


def test_a_picture_with_too_many_pixels_is_left_out(tmp_path, make_example, write_records):
    records = [make_example([BOX], image_hw=(100, 100))]
    path = write_records(tmp_path / "shard", records)
    assert draw_pictures(places_in(path, records), LABEL_MAP, max_pixels=9_999) == {}


def test_a_page_that_is_full_leaves_out_the_last_pictures(tmp_path, make_example, write_records):
    records = [make_example([BOX]) for _ in range(3)]
    path = write_records(tmp_path / "shard", records)
    places = places_in(path, records)[::-1]
    size = len(draw_pictures(places[:1], LABEL_MAP, max_pixels=MAX_PIXELS)["train", "img_2"].data_uri)
    found = draw_pictures(places, LABEL_MAP, max_pixels=MAX_PIXELS, max_bytes=2 * size)
    assert list(found) == [("train", "img_2"), ("train", "img_1")]


def test_a_picture_counts_as_often_as_the_page_shows_it(tmp_path, make_example, write_records):
    records = [make_example([BOX]) for _ in range(2)]
    path = write_records(tmp_path / "shard", records)
    first, second = places_in(path, records)
    size = len(draw_pictures([first], LABEL_MAP, max_pixels=MAX_PIXELS)["train", "img_0"].data_uri)
    found = draw_pictures([first, first, second], LABEL_MAP, max_pixels=MAX_PIXELS, max_bytes=2 * size)
    assert list(found) == [("train", "img_0")]


def test_hostile_labels_are_drawn_as_far_as_they_can_be(tmp_path, make_example, write_records):
    label_map = LabelMap.from_names(["two\nlines \u202e and \x00 more" * 50])
    bad = [(float("nan"), 0.0, 1.0, 1.0), (0.9, 0.9, 0.1, 0.1), (-1e30, 0.0, 1e30, 1.0)]
    example = tf.train.Example.FromString(make_example([BOX] * 4, [1, 2**62, -(2**63), 1], image_hw=(1, 900)))
    for i, key in enumerate(("ymin", "xmin", "ymax", "xmax")):
        values = example.features.feature[f"image/object/bbox/{key}"].float_list.value
        values[:] = [box[i] for box in [*bad, BOX]]
    records = [example.SerializeToString()]
    path = write_records(tmp_path / "shard", records)
    [picture] = draw_pictures(places_in(path, records), label_map, max_pixels=MAX_PIXELS).values()
    assert open_uri(picture).size == (360, 1)


def test_of_very_many_boxes_the_first_are_drawn_and_the_picture_says_so(tmp_path, make_example, write_records):
    records = [make_example([BOX] * (MAX_DRAWN_BOXES + 1))]
    path = write_records(tmp_path / "shard", records)
    [picture] = draw_pictures(places_in(path, records), LABEL_MAP, max_pixels=MAX_PIXELS).values()
    assert (picture.num_boxes, picture.note) == (301, "only the first 300 boxes are drawn")
