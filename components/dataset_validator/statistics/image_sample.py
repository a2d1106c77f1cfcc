"""Select sample images while reading the data, and read the selected records.

The pass over the data keeps only a bounded number of places: those with the smallest hash of the record key, so that
the selection does not depend on the workers. The selected records are read again afterwards by seeking.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from detloom.components.record_files import read_records
from detloom.components.similarity.image_hash import hash_text
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.files.tfrecord import read_frames

MAX_PER_SPLIT = 12  # places kept
MAX_PER_CLASS = 4
MAX_PER_PROBLEM = 4
MAX_CLASSES = 400  # classes with places, those with the smallest ids; a page cannot usefully show more
_SHOWN_PER_SPLIT, _SHOWN_PER_CLASS, _SHOWN_CLASSES = 6, 1, 24


class RecordPlace(NamedTuple):
    """Location of a record: `number` is its index in the file, `offset` its byte offset in the uncompressed content."""

    split: str
    record_key: str
    path: str
    number: int
    offset: int


_Ranked = tuple[Any, RecordPlace]


@dataclass
class ImageSample:
    """Places by topic: "sample:<split>", "class:<id>" or "problem:<check>"; merged parts must have equal limits."""

    max_per_split: int = MAX_PER_SPLIT
    _places: dict[str, list[_Ranked]] = field(default_factory=dict)
    _class_ids: set[int] = field(default_factory=set)

    def add(self, place: RecordPlace, class_ids: Iterable[int], problems: Iterable[str] = ()) -> None:
        """Consider one record; `problems` are the names of the checks that it affects."""
        rank = hash_text(f"{place.split}/{place.record_key}")
        self._insert(f"sample:{place.split}", (rank, place), self.max_per_split)
        unique_ids = set(class_ids)
        for class_id in unique_ids:
            self._insert(f"class:{class_id}", (rank, place), MAX_PER_CLASS)
        for problem in set(problems):
            self._insert(f"problem:{problem}", ((place.split, place.record_key), place), MAX_PER_PROBLEM)
        self._drop_classes(unique_ids)

    def merge(self, other: "ImageSample") -> None:
        for topic, ranked in other._places.items():
            mine = self._places.get(topic, [])
            self._places[topic] = sorted({*mine, *ranked})[: self._limit_of(topic)]
        self._drop_classes(other._class_ids)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON values for `of_plain`."""
        return {"max_per_split": self.max_per_split, "places": self._places, "class_ids": sorted(self._class_ids)}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "ImageSample":
        places = {
            str(topic): [
                (tuple(rank) if isinstance(rank, list) else rank, RecordPlace(*place)) for rank, place in ranked
            ]
            for topic, ranked in plain["places"].items()
        }
        return cls(int(plain["max_per_split"]), places, {int(class_id) for class_id in plain["class_ids"]})

    def places(self, topic: str) -> list[RecordPlace]:
        """Return the places of a topic in order of rank; empty for a topic that did not occur."""
        return [place for _, place in self._places.get(topic, [])]

    def topics(self, kind: str) -> list[str]:
        """Return the sorted topic names of this kind, without the prefix."""
        return sorted(topic.partition(":")[2] for topic in self._places if topic.startswith(f"{kind}:"))

    def _limit_of(self, topic: str) -> int:
        limits = {"sample": self.max_per_split, "class": MAX_PER_CLASS, "problem": MAX_PER_PROBLEM}
        return limits[topic.partition(":")[0]]

    def _insert(self, topic: str, ranked: _Ranked, limit: int) -> None:
        places = self._places.setdefault(topic, [])
        if len(places) < limit or ranked < places[-1]:
            bisect.insort(places, ranked)
            del places[limit:]

    def _drop_classes(self, class_ids: Iterable[int]) -> None:
        """Drop the classes with the largest ids if there are too many, independent of the order of arrival."""
        self._class_ids.update(class_ids)
        while len(self._class_ids) > MAX_CLASSES:
            dropped = max(self._class_ids)
            self._class_ids.remove(dropped)
            self._places.pop(f"class:{dropped}", None)


def choose(sample: ImageSample, label_map: LabelMap, splits: Sequence[str]) -> list[tuple[str, RecordPlace]]:
    """Return topic and place of each image on the validator's page, in page order: problems, samples, classes.

    Topics are "problem:<check>", "sample" and "class:<class name>"; one place can occur in several.
    """
    chosen = [
        (f"problem:{name}", place) for name in sample.topics("problem") for place in sample.places(f"problem:{name}")
    ]
    for split in splits:
        chosen += [("sample", place) for place in sample.places(f"sample:{split}")[:_SHOWN_PER_SPLIT]]
    for class_id, name in label_map.names_by_id[:_SHOWN_CLASSES]:
        chosen += [(f"class:{name}", place) for place in sample.places(f"class:{class_id}")[:_SHOWN_PER_CLASS]]
    return chosen


def read_places(places: Iterable[RecordPlace]) -> Iterator[tuple[RecordPlace, bytes]]:
    """Read the records at these places, file by file; skip those that their file does not contain."""
    by_path: dict[str, list[RecordPlace]] = defaultdict(list)
    for place in places:
        by_path[place.path].append(place)
    for path, in_file in by_path.items():
        yield from _read_file(path, in_file)


def _read_file(path: str, places: Sequence[RecordPlace]) -> Iterator[tuple[RecordPlace, bytes]]:
    if path.endswith(".gz"):
        yield from _read_by_number(path, {place.number: place for place in places})
        return
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            size = file.size()
            for place in sorted(places, key=lambda place: place.offset):
                file.seek(place.offset)
                frame = next(read_frames(file, size - place.offset), None)
                if frame is not None and frame.damage is None:
                    yield place, frame.data
    except tf.errors.OpError:
        return


def _read_by_number(path: str, places: Mapping[int, RecordPlace]) -> Iterator[tuple[RecordPlace, bytes]]:
    try:
        for number, (_, serialized) in enumerate(itertools.islice(read_records(path), max(places) + 1)):
            if number in places:
                yield places[number], serialized
    except tf.errors.OpError:
        return
