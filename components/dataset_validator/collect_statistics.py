"""One pass over the shards of all splits: serialized examples in, statistics by split out."""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.components.dataset_validator.anchor_fit import AnchorFit, is_supported
from detloom.components.dataset_validator.image_hash import hash_image, read_stored_hw
from detloom.components.dataset_validator.image_table import ImageTable, RowBuilder
from detloom.components.dataset_validator.model_input import boxes_in_input, resize_geometry
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.sample_pictures import PictureSample, Place
from detloom.components.dataset_validator.split_statistics import (
    BoxLimits,
    ImageLabels,
    SplitStatistics,
)
from detloom.components.record_files import count_missing, read_records
from detloom.schemas import example_keys as keys
from detloom.schemas.label_map import LabelMap

_MAX_SIDE_PX = 1 << 24  # far beyond any picture; products of sides stay exact


@dataclass(frozen=True)
class PassSettings:
    """What is looked at, beside the plain counts.

    Attributes:
        anchors_of: split whose boxes are compared with the anchors of `limits.model_input`; None: no split's.
        content_hashes: find the bytes of images that come twice.
        looks: decode every image for its perceptual hash; it costs several times the rest.
        max_pixels: a larger image is not decoded.
    """

    limits: BoxLimits = BoxLimits()
    anchors_of: str | None = None
    content_hashes: bool = True
    looks: bool = False
    max_pixels: int = 100_000_000

    @classmethod
    def of_params(cls, params: DatasetValidatorParams) -> "PassSettings":
        """What the checks that are not off need."""
        checks, model_input = params.checks, params.model_input
        wants_anchors = checks.anchor_recall.severity != "off" and model_input is not None
        exact = (checks.exact_duplicates, checks.exact_duplicates_within_split)
        return cls(
            limits=BoxLimits(
                model_input=model_input,
                min_side_px=checks.tiny_boxes.min_side_px,
                max_area=checks.huge_boxes.max_area,
                min_iou=None if checks.overlapping_boxes.severity == "off" else checks.overlapping_boxes.min_iou,
            ),
            anchors_of=params.train_split if wants_anchors else None,
            content_hashes=any(check.severity != "off" for check in exact),
            looks=checks.near_duplicates.severity != "off",
            max_pixels=params.max_pixels,
        )


@dataclass
class Collected:
    """What one pass gathers; parts are merged in any order.

    Attributes:
        anchors: None where none were asked for, or the generator is not supported.
    """

    splits: dict[str, SplitStatistics] = field(default_factory=dict)
    images: ImageTable = field(default_factory=ImageTable)
    sample: PictureSample = field(default_factory=PictureSample)
    anchors: AnchorFit | None = None

    def merge(self, other: "Collected") -> None:
        """Add another part; that one is not to be used any more."""
        for split, statistics in other.splits.items():
            self.splits.setdefault(split, SplitStatistics()).merge(statistics)
        self.images.merge(other.images)
        self.sample.merge(other.sample)
        if self.anchors is not None and other.anchors is not None:
            self.anchors.merge(other.anchors)
        elif other.anchors is not None:
            self.anchors = other.anchors


class UnreadableExample(Exception):
    """An example that cannot be used; the message is its record key, or what stands for it."""


def parse_example(serialized: bytes) -> tuple[ImageLabels, bytes, bytes]:
    """The labels, the encoded image, and its SHA-256 in hexadecimal; that one is empty where it is missing.

    Raises:
        UnreadableExample: no tf.Example, without one possible size, without an image, or with features of boxes that
            differ in length.
    """
    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except DecodeError:
        raise UnreadableExample("(not a tf.Example)") from None

    def first_bytes(key: str) -> bytes:
        return b"".join(feature[key].bytes_list.value[:1])

    record_key = first_bytes(keys.IMAGE_SOURCE_ID).decode("utf-8", "replace")
    heights, widths = feature[keys.IMAGE_HEIGHT].int64_list.value, feature[keys.IMAGE_WIDTH].int64_list.value
    boxes_4N = [feature[key].float_list.value for key in keys.BOX_KEYS_YXYX]
    class_ids_N = np.array(feature[keys.CLASS_ID].int64_list.value, np.int64)
    crowds = feature[keys.IS_CROWD].int64_list.value
    encoded = first_bytes(keys.IMAGE_ENCODED)
    has_one_size = len(heights) == len(widths) == 1 and all(1 <= side <= _MAX_SIDE_PX for side in (*heights, *widths))
    lengths = {len(class_ids_N), *(len(column) for column in boxes_4N), len(crowds) or len(class_ids_N)}
    if not has_one_size or not encoded or len(lengths) > 1:
        raise UnreadableExample(record_key or "(without image/source_id)")
    labels = ImageLabels(
        record_key=record_key,
        image_hw=(heights[0], widths[0]),
        boxes_yxyx_rel_N4=np.array(boxes_4N, np.float64).reshape(4, -1).T,
        class_ids_N=class_ids_N,
        is_crowd_N=np.array(crowds, np.bool_) if crowds else np.zeros(len(class_ids_N), np.bool_),
        num_difficult=sum(map(bool, feature[keys.DIFFICULT].int64_list.value)),
    )
    return labels, encoded, first_bytes(keys.IMAGE_SHA256)


class _ShardReader:
    """Gathers one shard."""

    def __init__(self, split: str, path: str, known_ids: frozenset[int], settings: PassSettings) -> None:
        self._split, self._path, self._known_ids, self._settings = split, path, known_ids, settings
        self._statistics, self._rows = SplitStatistics(), RowBuilder(split, path)
        model_input = settings.limits.model_input
        self.collected = Collected(splits={split: self._statistics})
        if model_input is not None and settings.anchors_of == split and is_supported(model_input.anchor_generator):
            self.collected.anchors = AnchorFit(model_input.anchor_generator)

    def read(self) -> Collected:
        try:
            for number, (offset, serialized) in enumerate(read_records(self._path)):
                self._add(number, offset, serialized)
        except tf.errors.OpError:
            self._statistics.num_damaged_shards += 1
            self._statistics.add_unreadable(f"(damaged file {self._split}/{Path(self._path).name})")
        self.collected.images.parts.append(self._rows.build())
        return self.collected

    def _add(self, number: int, offset: int, serialized: bytes) -> None:
        try:
            labels, encoded, sha256 = parse_example(serialized)
            if self._settings.looks and read_stored_hw(encoded) not in (None, labels.image_hw):
                raise UnreadableExample(labels.record_key or "(without image/source_id)")
        except UnreadableExample as error:
            self._statistics.add_unreadable(str(error))
            return
        problems = self._statistics.update(labels, self._known_ids, self._settings.limits)
        look = None
        if self._settings.looks:
            look = hash_image(encoded, self._settings.max_pixels)
            if look is None:
                is_too_large = labels.image_hw[0] * labels.image_hw[1] > self._settings.max_pixels
                self._statistics.add_undecodable(labels.record_key, is_too_large=is_too_large)
        place = Place(self._split, labels.record_key, self._path, number, offset)
        self.collected.sample.add(place, self._known_ids.intersection(labels.class_ids_N.tolist()), problems)
        if self.collected.anchors is not None:
            self._add_to_anchors(labels)
        if self._settings.content_hashes or self._settings.looks:
            self._rows.add(place, _content_hash(encoded, sha256), look)

    def _add_to_anchors(self, labels: ImageLabels) -> None:
        model_input = self._settings.limits.model_input
        assert model_input is not None
        assert self.collected.anchors is not None
        is_object_N = labels.is_object_N
        if not self._known_ids.issuperset(labels.class_ids_N.tolist()):
            is_object_N = is_object_N & np.isin(labels.class_ids_N, list(self._known_ids))
        resized_hw, input_hw = resize_geometry(model_input.image_resizer, labels.image_hw)
        boxes_px_N4 = boxes_in_input(labels.boxes_yxyx_rel_N4[is_object_N], resized_hw)
        self.collected.anchors.add(labels.record_key, boxes_px_N4, labels.class_ids_N[is_object_N], input_hw)


def _content_hash(encoded: bytes, sha256: bytes) -> int:
    """The first 64 bits of the SHA-256 that the example states, or that its image has."""
    try:
        digest = bytes.fromhex(sha256.decode("ascii"))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        digest = hashlib.sha256(encoded).digest()
    return int.from_bytes(digest[:8], "big")


def read_shard(split: str, path: str, known_ids: frozenset[int], settings: PassSettings) -> Collected:
    """What one TFRecord file holds, streamed; from where it is damaged, it counts as one unreadable record."""
    return _ShardReader(split, path, known_ids, settings).read()


class _Merge(beam.CombineFn):
    """Merges what was collected; the order does not matter."""

    def create_accumulator(self) -> Collected:
        return Collected()

    def add_input(self, accumulator: Collected, element: Collected) -> Collected:
        accumulator.merge(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Collected]) -> Collected:
        merged = Collected()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: Collected) -> Collected:
        return accumulator


def collect_statistics(
    shards_by_split: Mapping[str, Sequence[str]],
    label_map: LabelMap,
    settings: PassSettings,
    scratch: Path,
    make_pipeline: Callable[[], beam.Pipeline],
) -> Collected:
    """What is in the splits, in the order of `shards_by_split`; a split without a record has all counts zero.

    Args:
        shards_by_split: its TFRecord files, plain or .gz.
        scratch: a folder that the Beam workers can write to; a file is made there and removed.
    """
    shards = [(split, path) for split, paths in shards_by_split.items() for path in paths]
    file, name = tempfile.mkstemp(prefix=".statistics-", dir=scratch)
    os.close(file)
    outcome = Path(name)
    try:
        with make_pipeline() as pipeline:
            _ = (
                pipeline
                | "Shards" >> beam.Create(shards)
                | "Spread" >> beam.Reshuffle()
                | "ReadShard" >> beam.Map(_read, frozenset(label_map.class_ids), settings)
                | "MergeStatistics" >> beam.CombineGlobally(_Merge())
                | "WriteStatistics" >> beam.Map(_write, name)
            )
        collected: Collected = pickle.loads(outcome.read_bytes())  # noqa: S301 - written by us, just now
    finally:
        outcome.unlink(missing_ok=True)
    collected.splits = {split: collected.splits.get(split, SplitStatistics()) for split in shards_by_split}
    for split, statistics in collected.splits.items():
        statistics.num_missing_shards, statistics.num_expected_shards = count_missing(shards_by_split[split])
    return collected


def _read(split_and_path: tuple[str, str], known_ids: frozenset[int], settings: PassSettings) -> Collected:
    return read_shard(*split_and_path, known_ids, settings)


def _write(collected: Collected, path: str) -> None:
    Path(path).write_bytes(pickle.dumps(collected))
