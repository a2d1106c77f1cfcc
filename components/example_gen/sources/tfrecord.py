"""Existing TFRecords of tf.Examples with the Object Detection API's keys (schemas/example_keys.py).

Records are located by our own reader of the framing, since TensorFlow's tells no offsets; only labels are kept, the
example itself is read again when it is written.
"""

import fnmatch
import itertools
import posixpath
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.image_groups import MAX_OBJECTS_PER_IMAGE
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.source_record import (
    Chunk,
    Evidence,
    ReaderSettings,
    SourceClass,
    SourceItem,
    SourceObject,
    SourceRecord,
    reject_box,
    reject_record,
)
from detloom.components.example_gen.sources.tfrecord_classes import LabelMapFile, NoClass, read_label_map
from detloom.schemas import example_keys as keys
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE
from detloom.schemas.rejects import Reason

_FILE_NAME = re.compile(r"\.tfrecords?(\W|$)|\.records?(\W|$)|^data_tfrecord-|-\d{5}-of-\d{5}(\W|$)", re.IGNORECASE)
_SHARD_NUMBER = re.compile(r"-\d{5}-of-")
_TFX_SPLIT = "Split-"  # the folders of an examples artifact
_HEADER = struct.Struct("<QI")  # length of the payload, its masked checksum
_FOOTER = struct.Struct("<I")
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_RECORD_BYTES = 256 * 2**20  # held in memory twice while it is read
_MAX_CLASSES = 100_000
_MAX_MASK_PIXELS = 100_000_000


def detect(folder: DataFolder) -> Evidence | None:
    """Names of records files, at the top and one folder below."""
    found = _find_files(folder)
    if not found:
        return None
    sources = dict.fromkeys(_source_of(path) for path in found)
    if all(source.startswith(_TFX_SPLIT) for source in sources):
        splits = layout.name_sources(list(sources), [source.removeprefix(_TFX_SPLIT) for source in sources])
    else:
        splits = layout.name_splits(list(sources))
    return Evidence(f"TFRecord files such as {found[0]}", splits)


def list_chunks(folder: DataFolder, split: str, source: str, settings: ReaderSettings) -> Iterator[Chunk]:
    """One chunk a file. `source` is a file, a folder, or a pattern such as "train.record-?????-of-00010"; "" is all."""
    paths = _list_source(folder, source)
    if not paths:
        raise InputError(
            f"{folder.root}/{source}: split {split!r} has no TFRecord file; "
            'allowed: a file, a folder, or a pattern such as "train.record-?????-of-00010".'
        )
    for path in paths:
        try:
            with folder.open(path) as file:
                _check_not_compressed(f"{folder.root}/{path}", file.read(_HEADER.size))
        except SourceError as error:
            raise InputError(f"{folder.root}/{path}: cannot be read ({error.detail}).") from None
        yield Chunk(split, source, (path,))


def read_chunk(folder: DataFolder, chunk: Chunk, settings: ReaderSettings) -> Iterator[SourceItem]:
    """The record key is `image/source_id`, else `image/filename`, else the file and the number of the record in it.

    Classes are those of a label map beside the file, else the pairs of text and id that the examples hold.
    """
    for path in chunk.names:
        yield from _FileReader(folder, chunk.split, path, settings).read()


@dataclass(frozen=True)
class _Payload:
    """One record of a file; `data` is None where `problem` says why it cannot be used."""

    offset: int
    data: bytes | None
    reason: Reason = Reason.UNREADABLE_FILE
    problem: str = ""


class _BadExample(Exception):
    """Why an example as a whole cannot be read; the number of boxes lost with it."""

    def __init__(self, detail: str, num_boxes: int = 0, reason: Reason = Reason.UNREADABLE_ANNOTATION) -> None:
        super().__init__(detail)
        self.num_boxes, self.reason = num_boxes, reason


class _FileReader:
    def __init__(self, folder: DataFolder, split: str, path: str, settings: ReaderSettings) -> None:
        self._folder, self._split, self._path, self._settings = folder, split, path, settings
        self._label_map = LabelMapFile("", {}, {})
        self._ids_by_name: dict[str, int] = {}  # of the pairs that stand in no label map

    def read(self) -> Iterator[SourceItem]:
        self._label_map = read_label_map(self._folder, self._path)
        for class_id, name in self._label_map.names_by_id.items():
            yield SourceClass(name, class_id)
        for number, payload in enumerate(_read_payloads(self._folder, self._path)):
            key = f"{self._path}#{number}"
            if payload.data is None:
                detail = f"byte {payload.offset}: {payload.problem}"
                yield reject_record(self._split, payload.reason, self._path, key, detail)
                continue
            try:
                yield from self._read_example(payload.data, payload.offset, key)
            except _BadExample as error:
                detail = f"record {number}: {error}"
                yield reject_record(self._split, error.reason, self._path, key, detail, error.num_boxes)

    def _read_example(self, data: bytes, offset: int, key: str) -> Iterator[SourceItem]:
        features = _parse_example(data)
        columns = [_values(features, name, "float_list", MAX_OBJECTS_PER_IMAGE) for name in keys.BOX_KEYS_YXYX]
        num_boxes = max(map(len, columns))
        if any(len(column) != num_boxes for column in columns):
            lengths = ", ".join(str(len(column)) for column in columns)
            raise _BadExample(f"ymin, xmin, ymax, xmax must be of one length, got {lengths}", num_boxes)
        key = _read_name(features, keys.IMAGE_SOURCE_ID) or _read_name(features, keys.IMAGE_FILENAME) or key
        texts = _aligned(features, keys.CLASS_TEXT, "bytes_list", num_boxes)
        ids = _aligned(features, keys.CLASS_ID, "int64_list", num_boxes)
        flags = {
            name: [value == 1 for value in _aligned(features, key_of, "int64_list", num_boxes)]
            for name, key_of in _FLAG_KEYS.items()
        }
        areas = _aligned(features, keys.AREA, "float_list", num_boxes)
        masks = self._read_masks(features, num_boxes)
        keypoints = self._read_keypoints(features, num_boxes)
        height, width = (_read_size(features, name, num_boxes) for name in (keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH))
        objects = []
        for index in range(num_boxes):
            class_id = ids[index] if ids else None
            try:
                name = self._label_map.find_class(texts[index] if texts else b"", class_id)
            except NoClass as error:
                yield reject_box(self._split, Reason.UNKNOWN_CLASS, self._path, key, f"object {index}: {error}")
                continue
            if class_id is not None and class_id > 0 and self._is_new(name, class_id, key):
                yield SourceClass(name, class_id)
            ymin, xmin, ymax, xmax = (column[index] for column in columns)
            objects.append(
                SourceObject(
                    name,
                    (xmin, ymin, xmax, ymax),
                    area_px=areas[index] if areas else None,
                    mask=masks[index] if masks else None,
                    keypoints=keypoints[index] if keypoints else None,
                    **{flag: values[index] for flag, values in flags.items() if values},
                )
            )
        yield SourceRecord(
            split=self._split,
            record_key=key,
            image_path=self._path,
            annotation_path=self._path,
            declared_hw=(height, width) if height and width else None,
            objects=tuple(objects),
            is_relative=True,
            example_at=(offset, len(data)),
        )

    def _is_new(self, name: str, class_id: int, key: str) -> bool:
        """Whether this pair of name and id, which stands in no label map, has not been told yet.

        Raises:
            InputError: if the name has had another id before: which of them the model should give cannot be told.
        """
        if self._label_map.path:
            return False
        known_id = self._ids_by_name.get(name)
        if known_id == class_id:
            return False
        if known_id is not None:
            raise InputError(
                f"{self._folder.root}/{self._path}: class {show(name)} has id {class_id} in record {show(key)}, in "
                f"another {known_id}; make them equal, or put a {LABEL_MAP_FILE} with the right ids beside the file."
            )
        if len(self._ids_by_name) >= _MAX_CLASSES:
            raise InputError(f"{self._folder.root}/{self._path}: got more than {_MAX_CLASSES} classes.")
        self._ids_by_name[name] = class_id
        return True

    def _read_masks(self, features: Any, num_boxes: int) -> list[Any]:
        if not self._settings.with_masks:
            return []
        from detloom.components.example_gen.mask_png import decode_mask_png

        return [
            decode_mask_png(data, _MAX_MASK_PIXELS) for data in _aligned(features, keys.MASK, "bytes_list", num_boxes)
        ]

    def _read_keypoints(self, features: Any, num_boxes: int) -> list[tuple[tuple[float, float, int], ...]]:
        """By object, of equal number unless `image/object/keypoint/num` says otherwise."""
        if not self._settings.with_keypoints or not num_boxes:
            return []
        limit = MAX_OBJECTS_PER_IMAGE * 10
        xs = _values(features, keys.KEYPOINT_X, "float_list", limit, num_boxes)
        ys = _values(features, keys.KEYPOINT_Y, "float_list", limit, num_boxes)
        seen = _values(features, keys.KEYPOINT_VISIBILITY, "int64_list", limit, num_boxes) or [2] * len(xs)
        counts = _aligned(features, keys.NUM_KEYPOINTS, "int64_list", num_boxes)
        counts = counts or [len(xs) // num_boxes] * num_boxes
        if not len(xs) == len(ys) == len(seen) == sum(counts) or min(counts) < 0:
            detail = f"{len(xs)} x, {len(ys)} y, {len(seen)} visibilities of keypoints do not fit {num_boxes} objects"
            raise _BadExample(detail, num_boxes, Reason.UNREADABLE_KEYPOINTS)
        points = iter(zip(xs, ys, (value if value in (0, 1, 2) else 0 for value in seen), strict=True))
        return [tuple(itertools.islice(points, count)) for count in counts]


_FLAG_KEYS = {
    "difficult": keys.DIFFICULT,
    "truncated": keys.TRUNCATED,
    "is_crowd": keys.IS_CROWD,
    "group_of": keys.GROUP_OF,
}


def mask_checksum(data: bytes) -> int:
    """The checksum of TFRecord's framing: CRC-32C, rotated and shifted.

    https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
    """
    checksum = google_crc32c.value(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _read_payloads(folder: DataFolder, path: str) -> Iterator[_Payload]:
    """All records of a file; where the framing itself is damaged, the rest of the file is one.

    Raises:
        InputError: if the file cannot be read, or is compressed.
    """
    where = f"{folder.root}/{path}"
    try:
        status = folder.status(path)
        with folder.open(path) as file:
            size = status.size if status else 0
            offset = 0
            while header := file.read(_HEADER.size):
                offset += len(header)
                if offset == len(header):
                    _check_not_compressed(where, header)
                rest = f"the rest of the file, {size - offset + len(header)} bytes, cannot be read"
                if len(header) < _HEADER.size or mask_checksum(header[:8]) != _HEADER.unpack(header)[1]:
                    yield _Payload(offset - len(header), None, problem=f"damaged length of a record; {rest}")
                    return
                length = _HEADER.unpack(header)[0]
                if length > size - offset - _FOOTER.size:
                    yield _Payload(offset, None, problem=f"the file ends within a record of {length} bytes; {rest}")
                    return
                end = offset + length + _FOOTER.size
                if length > _MAX_RECORD_BYTES:
                    problem = f"a record of {length} bytes, allowed: {_MAX_RECORD_BYTES}"
                    yield _Payload(offset, None, Reason.RECORD_TOO_LARGE, problem)
                    file.seek(end)
                else:
                    data, footer = file.read(length), file.read(_FOOTER.size)
                    if len(footer) < _FOOTER.size or mask_checksum(data) != _FOOTER.unpack(footer)[0]:
                        yield _Payload(offset, None, problem="the record's checksum is wrong")
                    else:
                        yield _Payload(offset, data)
                offset = end
    except SourceError as error:
        raise InputError(f"{where}: cannot be read ({error.detail}).") from None
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error}).") from None


def _check_not_compressed(where: str, header: bytes) -> None:
    # A length may begin with the same two bytes; then its checksum is right.
    if header.startswith(_GZIP_MAGIC) and mask_checksum(header[:8]) != int.from_bytes(header[8:12], "little"):
        raise InputError(
            f"{where}: is compressed with GZIP, allowed: plain TFRecords, whose records can be read one by one; "
            "decompress it first (gunzip FILE), or ingest what it was made of again without --gzip."
        )


def _parse_example(data: bytes) -> Any:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(data).features.feature
    except DecodeError:
        raise _BadExample("not a tf.Example") from None


def _values(features: Any, key: str, kind: str, limit: int, num_boxes: int = 0) -> list[Any]:
    """The values of a feature, none where it is absent."""
    if key not in features:
        return []
    found = features[key].WhichOneof("kind")
    if found is None:
        return []
    if found != kind:
        raise _BadExample(f"{key} must be of kind {kind}, got {found}", num_boxes)
    values = getattr(features[key], kind).value
    if len(values) > limit:
        detail = f"{len(values)} values of {key}, which is more than can be held"
        raise _BadExample(detail, num_boxes or len(values), Reason.TOO_MANY_BOXES)
    return list(values)


def _aligned(features: Any, key: str, kind: str, num_boxes: int) -> list[Any]:
    """One value a box, or none at all."""
    values = _values(features, key, kind, MAX_OBJECTS_PER_IMAGE, num_boxes)
    if values and len(values) != num_boxes:
        raise _BadExample(f"{key} has {len(values)} values for {num_boxes} boxes", num_boxes)
    return values


def _read_name(features: Any, key: str) -> str:
    """The text of a feature; "" where there is none that can name a record."""
    if key not in features or features[key].WhichOneof("kind") != "bytes_list":
        return ""
    values = features[key].bytes_list.value
    try:
        name = values[0].decode().strip() if values and len(values[0]) <= 4096 else ""
    except UnicodeDecodeError:
        return ""
    return name if is_text(name) else ""


def _read_size(features: Any, key: str, num_boxes: int) -> int:
    values = _values(features, key, "int64_list", MAX_OBJECTS_PER_IMAGE, num_boxes)
    return values[0] if values and values[0] > 0 else 0


def _find_files(folder: DataFolder) -> list[str]:
    parts = ("", *folder.list_folders())
    return [path for part in parts for path in folder.list_files(part) if _FILE_NAME.search(posixpath.basename(path))]


def _source_of(path: str) -> str:
    """The folder where that names a split, else the pattern of the file's shards."""
    part = posixpath.dirname(path)
    if part.startswith(_TFX_SPLIT) or layout.find_split_word(part):
        return part
    return _SHARD_NUMBER.sub("-?????-of-", path)


def _list_source(folder: DataFolder, source: str) -> list[str]:
    if not source:
        return _find_files(folder)
    if folder.is_folder(source):
        return [path for path in folder.list_files(source) if _FILE_NAME.search(posixpath.basename(path))]
    if folder.is_file(source):
        return [source]
    return [path for path in folder.list_files(posixpath.dirname(source)) if fnmatch.fnmatchcase(path, source)]
