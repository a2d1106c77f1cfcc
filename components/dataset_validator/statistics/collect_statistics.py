"""Collect the statistics of all splits in one Beam pass over their shards."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
from absl import logging

from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.statistics.anchor_fit import AnchorFit, is_supported
from detloom.components.dataset_validator.statistics.duplicates import RowBuilder
from detloom.components.dataset_validator.statistics.image_sample import MAX_PER_SPLIT, ImageSample, RecordPlace
from detloom.components.dataset_validator.statistics.model_input import boxes_in_input, resize_geometry
from detloom.components.dataset_validator.statistics.pass_result import PassResult, decode_result, encode_result
from detloom.components.dataset_validator.statistics.split_statistics import (
    BoxLimits,
    ImageLabels,
    SplitStatistics,
)
from detloom.components.record_files import count_missing, read_records
from detloom.components.similarity.image_hash import hash_image, read_stored_hw
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import MAX_PIXELS
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.detectors.preprocess import find_decoding_problem

DAMAGED_FILE = "(damaged file "  # beginning of the placeholder for the record keys after a damage
_FOLDER = ".statistics"  # in the scratch folder
_MAX_PARTS = 256  # files that workers write, each for many shards
_MAX_SIDE_PX = 1 << 24  # far larger than any image; products of two sides stay exact in float64


@dataclass(frozen=True)
class PassSettings:
    """Optional measurements in addition to the plain counts.

    Attributes:
        anchor_split: split whose boxes are compared with the anchors of `limits.model_input`; None for none.
        content_hashes: hash the encoded images to find identical ones.
        perceptual_hashes: decode every image at a small size for its perceptual hash.
        decodability: decode every image as training does, to find those that it cannot decode. This and the hashes cost
            several times the rest.
        max_pixels: larger images are not decoded.
        sampled_class_id: the class that sample images contain; None for any.
        max_per_split: number of sample images of a split.
    """

    limits: BoxLimits = BoxLimits()
    anchor_split: str | None = None
    content_hashes: bool = True
    perceptual_hashes: bool = False
    decodability: bool = False
    max_pixels: int = MAX_PIXELS
    sampled_class_id: int | None = None
    max_per_split: int = MAX_PER_SPLIT

    @classmethod
    def of_params(cls, params: DatasetValidatorParams) -> "PassSettings":
        """Select the measurements that the enabled checks need."""
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
            anchor_split=params.train_split if wants_anchors else None,
            content_hashes=any(check.severity != "off" for check in exact),
            perceptual_hashes=checks.near_duplicates.severity != "off",
            decodability=checks.undecodable_images.severity != "off",
            max_pixels=params.max_pixels,
        )

    @property
    def decodes_images(self) -> bool:
        return self.perceptual_hashes or self.decodability


class UnreadableExample(Exception):
    """An example that cannot be used; the message is its record key or a placeholder in parentheses."""


def parse_example(serialized: bytes) -> tuple[ImageLabels, bytes, bytes]:
    """Parse a tf.Example.

    Returns:
        The labels, the encoded image, and the hexadecimal SHA-256 that the example stores (empty if it has none).

    Raises:
        UnreadableExample: if it is not a tf.Example, its size is missing or impossible, it has no image, or its box
            features differ in length.
    """
    try:
        features = ExampleFeatures(serialized)
    except ValueError as error:
        raise UnreadableExample(f"({error})") from None

    def first_bytes(key: str) -> bytes:
        return next(iter(features.texts(key)), b"")

    record_key = first_bytes(keys.IMAGE_SOURCE_ID).decode("utf-8", "replace")
    heights, widths = features.ints(keys.IMAGE_HEIGHT).tolist(), features.ints(keys.IMAGE_WIDTH).tolist()
    boxes_4N = [features.floats(key) for key in keys.BOX_KEYS_YXYX]
    class_ids_N, crowds = features.ints(keys.CLASS_ID), features.ints(keys.IS_CROWD)
    has_one_size = len(heights) == len(widths) == 1 and all(1 <= side <= _MAX_SIDE_PX for side in (*heights, *widths))
    lengths = {len(class_ids_N), *(len(column) for column in boxes_4N), len(crowds) or len(class_ids_N)}
    if not has_one_size or not features.image_bytes or len(lengths) > 1:
        raise UnreadableExample(record_key or "(without image/source_id)")
    labels = ImageLabels(
        record_key=record_key,
        image_hw=(heights[0], widths[0]),
        boxes_yxyx_rel_N4=np.array(boxes_4N, np.float64).reshape(4, -1).T,
        class_ids_N=class_ids_N,
        is_crowd_N=crowds.astype(np.bool_) if len(crowds) else np.zeros(len(class_ids_N), np.bool_),
        num_difficult=int(np.count_nonzero(features.ints(keys.DIFFICULT))),
    )
    return labels, features.image_bytes, first_bytes(keys.IMAGE_SHA256)


class _ShardReader:
    """Collect the statistics of one shard."""

    def __init__(self, split: str, path: str, known_ids: frozenset[int], settings: PassSettings) -> None:
        self._split, self._path, self._known_ids, self._settings = split, path, known_ids, settings
        self._statistics, self._rows = SplitStatistics(), RowBuilder(split, path)
        model_input = settings.limits.model_input
        self.collected = PassResult({split: self._statistics}, sample=ImageSample(settings.max_per_split))
        if model_input is not None and settings.anchor_split == split and is_supported(model_input.anchor_generator):
            self.collected.anchors = AnchorFit(model_input.anchor_generator)

    def read(self) -> PassResult:
        try:
            for number, (offset, serialized) in enumerate(read_records(self._path)):
                self._add(number, offset, serialized)
        except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
            self._statistics.num_damaged_shards += 1
            self._statistics.add_unreadable(f"{DAMAGED_FILE}{self._split}/{Path(self._path).name})")
        self.collected.images.append(self._rows.build())
        return self.collected

    def _add(self, number: int, offset: int, serialized: bytes) -> None:
        try:
            labels, encoded, sha256 = parse_example(serialized)
            stored_hw = read_stored_hw(encoded) if self._settings.decodes_images else None
            if stored_hw not in (None, labels.image_hw):
                raise UnreadableExample(labels.record_key or "(without image/source_id)")
        except UnreadableExample as error:
            self._statistics.add_unreadable(str(error))
            return
        problems = self._statistics.update(labels, self._known_ids, self._settings.limits)
        perceptual_hash = self._decode(labels, encoded) if self._settings.decodes_images else None
        place = RecordPlace(self._split, labels.record_key, self._path, number, offset)
        class_ids = set(labels.class_ids_N.tolist())
        if self._settings.sampled_class_id is None or self._settings.sampled_class_id in class_ids:
            self.collected.sample.add(place, self._known_ids & class_ids, problems)
        if self.collected.anchors is not None:
            self._add_to_anchors(labels)
        if self._settings.content_hashes or self._settings.perceptual_hashes:
            self._rows.add(place, _content_hash(encoded, sha256), perceptual_hash)

    def _decode(self, labels: ImageLabels, encoded: bytes) -> int | None:
        """Return the perceptual hash, if it is wanted; count an image that cannot be decoded."""
        max_pixels = self._settings.max_pixels
        found = hash_image(encoded, max_pixels)
        if found is None or (self._settings.decodability and find_decoding_problem(encoded)):
            is_too_large = labels.image_hw[0] * labels.image_hw[1] > max_pixels
            self._statistics.add_undecodable(labels.record_key, is_too_large=is_too_large)
        return found if self._settings.perceptual_hashes else None

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
    """Return the first 64 bits of the SHA-256 that the example stores, or else of its encoded image."""
    try:
        digest = bytes.fromhex(sha256.decode("ascii"))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        digest = hashlib.sha256(encoded).digest()
    return int.from_bytes(digest[:8], "big")


def read_shard(split: str, path: str, known_ids: frozenset[int], settings: PassSettings) -> PassResult:
    """Stream one TFRecord file; everything after damage counts as one unreadable record."""
    return _ShardReader(split, path, known_ids, settings).read()


def collect_statistics(
    shards_by_split: Mapping[str, Sequence[str]],
    label_map: LabelMap,
    settings: PassSettings,
    scratch: str,
    make_pipeline: Callable[[], beam.Pipeline],
) -> PassResult:
    """Collect the statistics of all splits, in the order of `shards_by_split`; without records all counts are zero.

    Args:
        shards_by_split: TFRecord files of each split, plain or .gz.
        scratch: folder or address that the Beam workers can write to; its folder `.statistics` is emptied and removed.

    Raises:
        InputError: another program has changed a temporary file.
    """
    shards = [(split, path) for split, paths in shards_by_split.items() for path in paths]
    collected = _run_pass(shards, frozenset(label_map.class_ids), settings, scratch, make_pipeline)
    collected.splits = {split: collected.splits.get(split, SplitStatistics()) for split in shards_by_split}
    for split, statistics in collected.splits.items():
        statistics.num_missing_shards, statistics.num_expected_shards = count_missing(shards_by_split[split])
    return collected


def _run_pass(
    shards: Sequence[tuple[str, str]],
    known_ids: frozenset[int],
    settings: PassSettings,
    scratch: str,
    make_pipeline: Callable[[], beam.Pipeline],
) -> PassResult:
    """Read all shards, given as (split, path), in a Beam pipeline whose workers write files, and merge these."""
    storage = open_storage(scratch)
    storage.delete_tree(_FOLDER)  # left by a killed run
    storage.make_folder(_FOLDER)
    num_parts = min(len(shards), _MAX_PARTS)
    parts = [_Part(number, shards[number::num_parts]) for number in range(num_parts)]
    merged = PassResult()
    try:
        with make_pipeline() as pipeline:
            _ = (
                pipeline
                | "Shards" >> beam.Create(parts)
                | "Spread" >> beam.Reshuffle()
                | "ReadShards" >> beam.Map(_read, known_ids, settings, scratch)
            )
        model_input = settings.limits.model_input
        generator = model_input.anchor_generator if model_input is not None else None
        for part in parts:
            where, content = storage.address(part.file), storage.read(part.file)
            if content is None:
                raise InputError(f"{where}: a Beam worker's result is missing; all workers have to see this folder.")
            merged.merge(decode_result(content, where, generator))
        return merged
    finally:
        try:
            storage.delete_tree(_FOLDER)
        except OSError as error:  # must not hide why the job failed
            logging.warning("%s: not deleted (%s).", storage.address(_FOLDER), error.strerror)


@dataclass(frozen=True)
class _Part:
    """Shards as (split, path) that one worker reads and merges."""

    number: int
    shards: Sequence[tuple[str, str]]

    @property
    def file(self) -> str:
        return f"{_FOLDER}/part-{self.number:05}"


def _read(part: _Part, known_ids: frozenset[int], settings: PassSettings, scratch: str) -> None:
    """Write the statistics of the shards to the part's file; again with the same bytes, if Beam repeats it."""
    merged = PassResult()
    for split, path in part.shards:
        merged.merge(read_shard(split, path, known_ids, settings))
    open_storage(scratch).write(part.file, encode_result(merged))
