"""The selection of sample images."""

import pickle
import random

from detloom.components.dataset_validator.statistics.image_sample import (
    MAX_CLASSES,
    MAX_PER_CLASS,
    MAX_PER_PROBLEM,
    MAX_PER_SPLIT,
    ImageSample,
    RecordPlace,
    choose,
)
from detloom.schemas.contracts.label_map import LabelMap

LABEL_MAP = LabelMap.from_names(["cat", "dog"])


def place(number, split="train", path="shard", offset=0):
    return RecordPlace(split, f"img_{number:04d}", path, number, offset)


def sample_of(places, class_ids=(1,), problems=()):
    sample = ImageSample()
    for one in places:
        sample.add(one, class_ids, problems)
    return sample


def test_the_selection_is_bounded_and_does_not_depend_on_order_or_partition():
    places = [place(i) for i in range(1000)]
    expected = sample_of(places, (1, 2), ["boxes"])
    shuffled = random.Random(0).sample(places, len(places))
    merged = ImageSample()
    for i in range(3):
        merged.merge(pickle.loads(pickle.dumps(sample_of(shuffled[i::3], (1, 2), ["boxes"]))))
    limits = {"sample:train": MAX_PER_SPLIT, "class:1": MAX_PER_CLASS, "class:2": MAX_PER_CLASS}
    for topic, limit in {**limits, "problem:boxes": MAX_PER_PROBLEM}.items():
        assert len(merged.places(topic)) == limit
        assert merged.places(topic) == expected.places(topic)
    assert max(chosen.number for chosen in merged.places("sample:train")) > 100  # not the first records


def test_problems_keep_the_first_records_in_order():
    sample = sample_of([place(i) for i in (9, 3, 7, 1, 5, 2)], problems=["boxes"])
    assert [chosen.number for chosen in sample.places("problem:boxes")] == [1, 2, 3, 5]


def test_the_smallest_ids_of_too_many_classes_are_kept():
    ids = list(range(1, MAX_CLASSES + 50))
    random.Random(1).shuffle(ids)
    first, second = ImageSample(), ImageSample()
    for i, class_id in enumerate(ids):
        (first if i % 2 else second).add(place(i), (class_id,))
    first.merge(second)
    assert sorted(map(int, first.topics("class"))) == list(range(1, MAX_CLASSES + 1))


def test_the_page_order_is_problems_samples_classes():
    sample = sample_of([place(1)], (1,), ["boxes"])
    topics = [topic for topic, _ in choose(sample, LABEL_MAP, ["train"])]
    assert topics == ["problem:boxes", "sample", "class:cat"]
