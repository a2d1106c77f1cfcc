"""Pictures for the page: which ones, found while reading without keeping any of them, and how they are drawn.

The pass over the data remembers only places, a bounded number of them, and always the same ones whoever reads what:
those with the smallest hash of their key. The chosen records are read again afterwards, by seeking.
"""

import base64
import bisect
import io
import itertools
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.components.dataset_validator.image_hash import hash_text, open_small_picture
from detloom.components.record_files import read_records
from detloom.schemas import example_keys as keys
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.draw import draw_detections

MAX_PER_SPLIT = 12  # places remembered
MAX_PER_CLASS = 4
MAX_PER_PROBLEM = 4
MAX_CLASSES = 400  # with the smallest ids: beyond them a page with pictures of each would be of no use
_SHOWN_PER_SPLIT, _SHOWN_PER_CLASS, _SHOWN_CLASSES = 6, 1, 24
MAX_PAGE_BYTES = 4_000_000  # of all pictures as they stand in the page, so that it stays below 5 MB
MAX_DRAWN_BOXES = 300  # more hide the picture
_SIDE_PX = 360  # of the longer side: three beside each other on a usual page
_JPEG_QUALITY = 75
_MAX_NAME_CHARS = 24  # of a class name drawn at a box
_LENGTH_BYTES, _RECORD_HEAD = 8, 12  # TFRecord: uint64 length, its checksum, then the data


class Place(NamedTuple):
    """Where a record is stored: `number` counts from 0 in the file, `offset` is bytes of its uncompressed content."""

    split: str
    record_key: str
    path: str
    number: int
    offset: int


_Ranked = tuple[Any, Place]


@dataclass
class PictureSample:
    """Places by topic: "sample:<split>", "class:<id>", "problem:<name>"; parts that are merged have equal limits."""

    max_per_split: int = MAX_PER_SPLIT
    _places: dict[str, list[_Ranked]] = field(default_factory=dict)
    _class_ids: set[int] = field(default_factory=set)

    def add(self, place: Place, class_ids: Iterable[int], problems: Iterable[str] = ()) -> None:
        """Consider one record. `problems` names what is wrong with it: their first records in order are kept."""
        rank = hash_text(f"{place.split}/{place.record_key}")
        self._insert(f"sample:{place.split}", (rank, place), self.max_per_split)
        unique_ids = set(class_ids)
        for class_id in unique_ids:
            self._insert(f"class:{class_id}", (rank, place), MAX_PER_CLASS)
        for problem in set(problems):
            self._insert(f"problem:{problem}", ((place.split, place.record_key), place), MAX_PER_PROBLEM)
        self._drop_classes(unique_ids)

    def merge(self, other: "PictureSample") -> None:
        for topic, ranked in other._places.items():
            mine = self._places.get(topic, [])
            self._places[topic] = sorted({*mine, *ranked})[: self._limit_of(topic)]
        self._drop_classes(other._class_ids)

    def places(self, topic: str) -> list[Place]:
        """In the order of their ranks; none for a topic that did not occur."""
        return [place for _, place in self._places.get(topic, [])]

    def topics(self, kind: str) -> list[str]:
        """What stands behind the colon in the topics of this kind, sorted."""
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
        """Of too many classes those with the largest ids go, whatever the order they came in."""
        self._class_ids.update(class_ids)
        while len(self._class_ids) > MAX_CLASSES:
            dropped = max(self._class_ids)
            self._class_ids.remove(dropped)
            self._places.pop(f"class:{dropped}", None)


def choose(sample: PictureSample, label_map: LabelMap, splits: Sequence[str]) -> list[tuple[str, Place]]:
    """Topic and place of each picture of the validator's page, in its order: problems, samples, then classes.

    Topics are "problem:<name>", "sample" and "class:<class name>"; one place may serve several.
    """
    chosen = [
        (f"problem:{name}", place) for name in sample.topics("problem") for place in sample.places(f"problem:{name}")
    ]
    for split in splits:
        chosen += [("sample", place) for place in sample.places(f"sample:{split}")[:_SHOWN_PER_SPLIT]]
    for class_id, name in label_map.names_by_id[:_SHOWN_CLASSES]:
        chosen += [(f"class:{name}", place) for place in sample.places(f"class:{class_id}")[:_SHOWN_PER_CLASS]]
    return chosen


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One record as the page shows it.

    Attributes:
        data_uri: JPEG, boxes drawn in.
        note: what the picture does not show, or "".
    """

    split: str
    record_key: str
    image_hw: tuple[int, int]
    num_boxes: int
    data_uri: str
    note: str = ""


def draw_pictures(
    places: Iterable[Place], label_map: LabelMap, *, max_pixels: int, max_bytes: int = MAX_PAGE_BYTES
) -> dict[tuple[str, str], Picture]:
    """Pictures by (split, record key); those that cannot be read or drawn are missing.

    The order of `places` is that of their importance: what does not fit into `max_bytes` is left out from the end. A
    place that comes several times is shown, and counted, as often.
    """
    shown = list(places)
    wanted = list(dict.fromkeys(shown))
    num_uses = Counter((place.split, place.record_key) for place in shown)
    by_path: dict[str, list[Place]] = defaultdict(list)
    for place in wanted:
        by_path[place.path].append(place)
    drawn: dict[Place, Picture] = {}
    for path, in_file in by_path.items():
        for place, serialized in read_places(path, in_file):
            picture = draw_record(place, serialized, label_map, max_pixels)
            if picture is not None:
                drawn[place] = picture
    pictures: dict[tuple[str, str], Picture] = {}
    num_bytes = 0
    for place in wanted:
        picture = drawn.get(place)
        record = place.split, place.record_key
        if picture is None or record in pictures:
            continue
        size = len(picture.data_uri) * num_uses[record]
        if num_bytes + size <= max_bytes:
            num_bytes += size
            pictures[record] = picture
    return pictures


def read_places(path: str, places: Sequence[Place]) -> Iterator[tuple[Place, bytes]]:
    """The records, as far as the file still has them."""
    if path.endswith(".gz"):
        yield from _read_by_number(path, {place.number: place for place in places})
        return
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            size = file.size()
            for place in sorted(places, key=lambda place: place.offset):
                file.seek(place.offset)
                head = file.read(_RECORD_HEAD)
                length = struct.unpack("<Q", head[:_LENGTH_BYTES])[0] if len(head) == _RECORD_HEAD else size
                if place.offset + _RECORD_HEAD + length <= size:
                    yield place, file.read(length)
    except tf.errors.OpError:
        return


def _read_by_number(path: str, places: Mapping[int, Place]) -> Iterator[tuple[Place, bytes]]:
    try:
        for number, (_, serialized) in enumerate(itertools.islice(read_records(path), max(places) + 1)):
            if number in places:
                yield places[number], serialized
    except tf.errors.OpError:
        return


def draw_record(place: Place, serialized: bytes, label_map: LabelMap, max_pixels: int) -> Picture | None:
    """One tf.Example small, with its boxes; None if it has no picture that can be decoded."""
    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except DecodeError:
        return None
    encoded = b"".join(feature[keys.IMAGE_ENCODED].bytes_list.value[:1])
    small = open_small_picture(encoded, (_SIDE_PX, _SIDE_PX), "RGB", max_pixels)
    if small is None:
        return None
    small.thumbnail((_SIDE_PX, _SIDE_PX))
    heights, widths = feature[keys.IMAGE_HEIGHT].int64_list.value, feature[keys.IMAGE_WIDTH].int64_list.value
    columns = [feature[key].float_list.value for key in keys.BOX_KEYS_YXYX]
    class_ids = list(feature[keys.CLASS_ID].int64_list.value)
    num_boxes = min(len(class_ids), *(len(column) for column in columns))
    num_drawn = min(num_boxes, MAX_DRAWN_BOXES)
    boxes: npt.NDArray[np.float64] = np.array([column[:num_drawn] for column in columns], np.float64).T
    names = [_one_line(label_map.name_of(class_id)) for class_id in class_ids[:num_drawn]]
    picture = draw_detections(np.asarray(small), boxes, class_ids[:num_drawn], names)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_JPEG_QUALITY)
    return Picture(
        split=place.split,
        record_key=place.record_key,
        image_hw=(heights[0] if heights else small.height, widths[0] if widths else small.width),
        num_boxes=num_boxes,
        data_uri="data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii"),
        note=f"only the first {num_drawn} boxes are drawn" if num_drawn < num_boxes else "",
    )


def _one_line(name: str) -> str:
    """What Pillow can set on one line."""
    printable = "".join(char if char.isprintable() else " " for char in name)
    return printable if len(printable) <= _MAX_NAME_CHARS else printable[: _MAX_NAME_CHARS - 1] + "…"
