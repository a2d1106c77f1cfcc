import re

import pytest

from detloom.components.dataset_validator.report.examples_page import MAX_IMAGES, render_examples_page
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map

SHARD = "data_tfrecord-00000-of-00001"
BOX = (0.1, 0.1, 0.5, 0.5)


def captions(page):
    return re.findall(r"<figcaption>([^:]*): ([^<]*)<", page)


@pytest.fixture
def write_split(make_example, write_records, tmp_path):
    def write(split, names, shard=SHARD, boxes=(BOX,)):
        records = [make_example(boxes, [1] * len(boxes), name=name) for name in names]
        return write_records(tmp_path / split / shard, records)

    write_label_map(tmp_path / LABEL_MAP_FILE, LabelMap.from_names(["cat"]))
    return write


def render(folder, *splits):
    return render_examples_page(str(folder), {split: str(folder / split) for split in splits})


def test_images_have_their_key_size_and_number_of_boxes(write_split, tmp_path):
    write_split("train", ["a", "b"], boxes=(BOX, BOX))
    write_split("eval", ["<c>"], boxes=())
    page = render(tmp_path, "train", "eval")
    size = "64 × 64 px"
    assert captions(page) == [
        ("train/a", f"{size}, 2 boxes"),
        ("train/b", f"{size}, 2 boxes"),
        ("eval/&lt;c&gt;", f"{size}, 0 boxes"),
    ]


@pytest.mark.parametrize(("num_splits", "num_each"), [(1, 12), (5, 2), (20, 1)])
def test_the_images_are_distributed_over_the_splits(write_split, tmp_path, num_splits, num_each):
    splits = [f"part{number}" for number in range(num_splits)]
    for split in splits:
        write_split(split, [f"image{number}" for number in range(MAX_IMAGES + 1)])
    expected = [f"{split}/image{number}" for split in splits[:MAX_IMAGES] for number in range(num_each)]
    assert [name for name, _ in captions(render(tmp_path, *splits))] == expected


def test_images_come_from_the_next_shards_if_the_first_has_few(write_split, tmp_path):
    for number in range(3):
        write_split("train", [f"image{number}"], shard=f"data_tfrecord-0000{number}-of-00003")
    assert [name for name, _ in captions(render(tmp_path, "train"))] == [f"train/image{number}" for number in range(3)]


def test_records_before_a_damage_and_those_that_can_be_decoded_are_shown(write_split, write_records, tmp_path):
    path = write_split("train", ["a", "b"])
    (tmp_path / LABEL_MAP_FILE).unlink()  # boxes then show the ids of their classes
    path.write_bytes(path.read_bytes()[:-5])
    write_records(tmp_path / "eval" / SHARD, [b"no tf.Example"])
    assert [name for name, _ in captions(render(tmp_path, "train", "eval"))] == ["train/a"]


def test_there_is_no_page_without_images(write_records, tmp_path):
    write_records(tmp_path / "train" / SHARD, [b"no tf.Example", b""])
    assert render(tmp_path, "train", "missing") is None
    assert render(tmp_path) is None
