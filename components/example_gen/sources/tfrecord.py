"""Read existing TFRecords of tf.Examples with the Object Detection API's keys (schemas/contracts/example_keys.py).

Records are located by our own reader of the framing, because TensorFlow's gives no offsets. Only labels are kept; the
example is read again when it is written.
"""

import fnmatch
import itertools
import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, unreadable
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.image_groups import MAX_OBJECTS_PER_IMAGE
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.source_record import (
    Chunk,
    FormatEvidence,
    SourceClass,
    SourceItem,
    SourceObject,
    SourceRecord,
)
from detloom.components.examples_folder import SPLIT_PREFIX
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, build_label_map, parse_label_map_items
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import MAX_PIXELS, IngestSettings, name_setting
from detloom.trainer_module.files.tfrecord import HEADER, Damage, Frame, mask_checksum, read_frames

DESCRIPTION = "*.tfrecord, *.record, *-00000-of-00001"
_FILE_NAME = re.compile(r"\.tfrecords?(\W|$)|\.records?(\W|$)|^data_tfrecord-|-\d{5}-of-\d{5}(\W|$)", re.IGNORECASE)
_SHARD_NUMBER = re.compile(r"-\d{5}-of-")
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_RECORD_BYTES = 256 * 2**20  # two copies are in memory while it is read
_MAX_CLASSES = 100_000
_FLAG_KEYS = {
    "difficult": keys.DIFFICULT,
    "truncated": keys.TRUNCATED,
    "is_crowd": keys.IS_CROWD,
    "group_of": keys.GROUP_OF,
}
_MAX_LABEL_MAP_BYTES = 2**20


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find records files by name, at the top and one folder below."""
    found = _find_files(folder)
    if not found:
        return None
    sources = dict.fromkeys(_source_of(path) for path in found)
    if all(source.startswith(SPLIT_PREFIX) for source in sources):
        splits = layout.name_sources(list(sources), [source.removeprefix(SPLIT_PREFIX) for source in sources])
    else:
        splits = layout.name_splits(list(sources))
    return FormatEvidence(f"TFRecord files such as {found[0]}", splits)


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """Return one chunk per file. `source` is a file, a folder, or a pattern such as "train.record-?????-of-00010"; ""
    is everything.
    """
    paths = _list_source(folder, source)
    if not paths:
        raise InputError(
            f"{folder.root}/{source}: split {split!r} has no TFRecord file; "
            'allowed: a file, a folder, or a pattern such as "train.record-?????-of-00010".'
        )
    for path in paths:
        with folder.refuse(path), folder.open(path) as file:
            _check_not_compressed(f"{folder.root}/{path}", file.read(HEADER.size))
        yield Chunk(split, source, (path,))


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield the records; a key is `image/source_id`, else `image/filename`, else the file and the record's number.

    Classes come from a label map beside the file, else from the pairs of text and id in the examples.
    """
    for path in chunk.names:
        yield from _FileReader(folder, Chunk(chunk.split, path), settings).read()


class _FileReader:
    """A reader of the only file of a chunk."""

    def __init__(self, folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> None:
        self._folder, self._chunk, self._path, self._settings = folder, chunk, chunk.source, settings
        self._label_map = LabelMapFile("", {}, {})
        self._ids_by_name: dict[str, int] = {}  # pairs that are not in a label map
        self._num_boxes = 0  # of the current example

    def read(self) -> Iterator[SourceItem]:
        self._label_map = read_label_map(self._folder, self._path)
        if not self._label_map.path and self._settings.classes:
            ids = {name: number for number, name in enumerate(self._settings.classes, start=1)}
            names_by_id = {number: name for name, number in ids.items()}
            self._label_map = LabelMapFile(name_setting("classes"), names_by_id, ids)
        self._key_features = self._find_key_features()
        for class_id, name in self._label_map.names_by_id.items():
            yield SourceClass(name, class_id)
        for number, (frame, problem) in enumerate(_read_frames(self._folder, self._path)):
            key = f"{self._path}#{number}"
            if problem:
                reason = Reason.RECORD_TOO_LARGE if frame.damage is Damage.TOO_LARGE else Reason.UNREADABLE_FILE
                yield self._chunk.reject_record(reason, key, f"byte {frame.offset}: {problem}")
                continue
            self._num_boxes = 0
            try:
                yield from self._read_example(frame.data, frame.offset + HEADER.size, key)
            except SourceError as error:
                detail = f"record {number}: {error}"
                yield self._chunk.reject_record(error.reason, key, detail, num_boxes=self._num_boxes)

    def _read_example(self, data: bytes, offset: int, key: str) -> Iterator[SourceItem]:
        features = _parse_example(data)
        self._num_boxes = num_boxes = max(len(features[name].float_list.value) for name in keys.BOX_KEYS_YXYX)
        columns = [_aligned(features, name, "float_list", num_boxes) for name in keys.BOX_KEYS_YXYX]
        if num_boxes and not all(columns):
            raise unreadable("ymin, xmin, ymax or xmax is missing")
        key = next(filter(None, (_read_name(features, name) for name in self._key_features)), key)
        texts = _aligned(features, keys.CLASS_TEXT, "bytes_list", num_boxes)
        ids = _aligned(features, keys.CLASS_ID, "int64_list", num_boxes)
        flags = {
            name: [value == 1 for value in _aligned(features, key_of, "int64_list", num_boxes)]
            for name, key_of in _FLAG_KEYS.items()
        }
        areas = _aligned(features, keys.AREA, "float_list", num_boxes)
        weights = _aligned(features, keys.WEIGHT, "float_list", num_boxes)
        if not all(0 <= weight < math.inf for weight in weights):
            raise unreadable(f"{keys.WEIGHT} has a value that is negative or not finite")
        masks = self._read_masks(features, num_boxes)
        keypoints = self._read_keypoints(features, num_boxes)
        height, width = (_read_size(features, name) for name in (keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH))
        objects = []
        for index in range(num_boxes):
            class_id = ids[index] if ids else None
            try:
                name = self._label_map.find_class(texts[index] if texts else b"", class_id)
            except UnknownClassError as error:
                yield self._chunk.reject_box(Reason.UNKNOWN_CLASS, key, f"object {index}: {error}")
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
            split=self._chunk.split,
            record_key=key,
            image_path=self._path,
            annotation_path=self._path,
            declared_hw=(height, width) if height and width else None,
            objects=tuple(objects),
            is_relative=True,
            example_at=(offset, len(data)),
        )

    def _find_key_features(self) -> list[str]:
        """Return the features that may be a key: some tools write one source id for all records."""
        frames = itertools.islice(_read_frames(self._folder, self._path), 2)
        try:
            first = [_parse_example(frame.data) for frame, problem in frames if not problem]
        except SourceError:
            first = []
        names = [keys.IMAGE_SOURCE_ID, keys.IMAGE_FILENAME]
        return [name for name in names if len(first) < 2 or _read_name(first[0], name) != _read_name(first[1], name)]

    def _is_new(self, name: str, class_id: int, key: str) -> bool:
        """Return whether this pair of name and id, which is in no label map, has not been yielded yet.

        Raises:
            InputError: if the name had another id before, because the correct one is unknown.
        """
        if self._label_map.path:
            return False
        known_id = self._ids_by_name.get(name)
        if known_id == class_id:
            return False
        if known_id is not None:
            raise InputError(
                f"{self._folder.root}/{self._path}: class {show(name)} has id {class_id} in record {show(key)}, but "
                f"{known_id} in another; make them equal, or put a {LABEL_MAP_FILE} with the right ids beside the file."
            )
        if len(self._ids_by_name) >= _MAX_CLASSES:
            raise InputError(f"{self._folder.root}/{self._path}: got more than {_MAX_CLASSES} classes.")
        self._ids_by_name[name] = class_id
        return True

    def _read_masks(self, features: Any, num_boxes: int) -> list[Any]:
        if not self._settings.masks:
            return []
        from detloom.components.example_gen.mask_png import decode_mask_png

        return [decode_mask_png(data, MAX_PIXELS) for data in _aligned(features, keys.MASK, "bytes_list", num_boxes)]

    def _read_keypoints(self, features: Any, num_boxes: int) -> list[tuple[tuple[float, float, int], ...]]:
        """Return keypoints by object; all have the same number unless `image/object/keypoint/num` says otherwise."""
        if not self._settings.keypoints or not num_boxes:
            return []
        limit = MAX_OBJECTS_PER_IMAGE * 10
        xs = _values(features, keys.KEYPOINT_X, "float_list", limit)
        ys = _values(features, keys.KEYPOINT_Y, "float_list", limit)
        seen = _values(features, keys.KEYPOINT_VISIBILITY, "int64_list", limit) or [2] * len(xs)
        counts = _aligned(features, keys.NUM_KEYPOINTS, "int64_list", num_boxes)
        counts = counts or [len(xs) // num_boxes] * num_boxes
        if not len(xs) == len(ys) == len(seen) == sum(counts) or min(counts) < 0:
            detail = f"{len(xs)} x, {len(ys)} y, {len(seen)} visibilities of keypoints do not fit {num_boxes} objects"
            raise SourceError(Reason.UNREADABLE_KEYPOINTS, detail)
        points = iter(zip(xs, ys, (value if value in (0, 1, 2) else 0 for value in seen), strict=True))
        return [tuple(itertools.islice(points, count)) for count in counts]


def _read_frames(folder: DataFolder, path: str) -> Iterator[tuple[Frame, str]]:
    """Yield all records of a file, each with the problem that makes it unreadable, or an empty string.

    Raises:
        InputError: if the file cannot be read, or is compressed.
    """
    where = f"{folder.root}/{path}"
    try:
        status = folder.status(path)
        size = status.size if status else 0
        with folder.refuse(path), folder.open(path) as file:
            _check_not_compressed(where, file.read(HEADER.size))
            file.seek(0)
            for frame in read_frames(file, size, _MAX_RECORD_BYTES):
                yield frame, _describe_damage(frame, size)
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error}).") from None


def _describe_damage(frame: Frame, size: int) -> str:
    if frame.damage is None:
        return ""
    detail = f"the record of {frame.length} bytes: {frame.damage.value}"
    if frame.damage in (Damage.BAD_LENGTH, Damage.TRUNCATED):
        detail += f"; the rest of the file, {size - frame.offset} bytes, cannot be read"
    return detail


def _check_not_compressed(where: str, header: bytes) -> None:
    # A length may start with the same two bytes, but then its checksum is valid.
    if header.startswith(_GZIP_MAGIC) and mask_checksum(header[:8]) != int.from_bytes(header[8:12], "little"):
        raise InputError(
            f"{where}: is compressed with GZIP, allowed: plain TFRecords, whose records can be read one by one; "
            "decompress it first (gunzip FILE), or ingest its source again without --gzip."
        )


def _parse_example(data: bytes) -> Any:
    from detloom.trainer_module.data.records import parse_features  # imports TensorFlow

    try:
        return parse_features(data)
    except ValueError as error:
        raise unreadable(str(error)) from None


def _values(features: Any, key: str, kind: str, limit: int = MAX_OBJECTS_PER_IMAGE) -> list[Any]:
    """Return the values of a feature; an empty list if it is absent."""
    found = features[key].WhichOneof("kind")
    if found not in (None, kind):
        raise unreadable(f"{key} must be of kind {kind}, got {found}")
    values = getattr(features[key], kind).value
    if len(values) > limit:
        raise SourceError(Reason.TOO_MANY_BOXES, f"{len(values)} values of {key}, too many to hold in memory")
    return list(values)


def _aligned(features: Any, key: str, kind: str, num_boxes: int) -> list[Any]:
    """Return one value per box, or an empty list."""
    values = _values(features, key, kind)
    if values and len(values) != num_boxes:
        raise unreadable(f"{key} has {len(values)} values for {num_boxes} boxes")
    return values


def _read_name(features: Any, key: str) -> str:
    """Return the text of a feature; "" if it cannot name a record."""
    values = features[key].bytes_list.value
    try:
        name = values[0].decode().strip() if values and len(values[0]) <= 4096 else ""
    except UnicodeDecodeError:
        return ""
    return name if is_text(name) else ""


def _read_size(features: Any, key: str) -> int:
    values = _values(features, key, "int64_list")
    return values[0] if values and values[0] > 0 else 0


def _find_files(folder: DataFolder) -> list[str]:
    parts = ("", *folder.list_folders())
    return [path for part in parts for path in folder.list_files(part) if _FILE_NAME.search(posixpath.basename(path))]


def _source_of(path: str) -> str:
    """Return the folder if it names a split, else the pattern of the file's shards."""
    part = posixpath.dirname(path)
    if part.startswith(SPLIT_PREFIX) or layout.find_split_word(part):
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


class UnknownClassError(Exception):
    """An object whose class cannot be determined."""


@dataclass(frozen=True)
class LabelMapFile:
    """The label map of a records file; `path` is "" without one.

    Attributes:
        ids_by_text: by the name of each class, and by its code if it also has a display name.
        others: files that may be the label map, if it is not clear which of them is.
    """

    path: str
    names_by_id: Mapping[int, str]
    ids_by_text: Mapping[str, int]
    others: tuple[str, ...] = ()

    def find_class(self, data: bytes, class_id: int | None) -> str:
        """Return the class's name: by its text, else by its id.

        A text that is not in the label map is returned unchanged and later reported as an unknown class: using the name
        of its id could turn a truck into a car. If text and id belong to two items, either may be wrong.

        Raises:
            UnknownClassError: if it has neither, or they contradict each other.
        """
        try:
            text = data.decode().strip()
        except UnicodeDecodeError:
            text = ""
        of_id = None if class_id is None else self.names_by_id.get(class_id)
        if is_text(text):
            of_text = self.ids_by_text.get(text)
            if of_text is None:
                return text
            if class_id is not None and class_id > 0 and class_id != of_text:
                other = f"that is the id of {show(of_id)}" if of_id is not None else "an id that it does not have"
                detail = f"class {show(text)} with id {class_id}, but in {self.path} its id is {of_text} ({other})"
                raise UnknownClassError(detail)
            return self.names_by_id[of_text]
        if of_id is not None:
            return of_id
        got = show(data) if data else "no text"
        if self.path:
            raise UnknownClassError(f"class id {class_id} with {got} is not in {self.path}")
        found = (
            f"; {' and '.join(self.others[:2])} are ambiguous"
            if self.others
            else "; no label map was found beside the file"
        )
        raise UnknownClassError(
            f"class id {class_id} with {got}{found}; put a {LABEL_MAP_FILE} there, or name the classes in the order of "
            f"their ids with {name_setting('classes')}"
        )


def read_label_map(folder: DataFolder, path: str) -> LabelMapFile:
    """Read label_map.pbtxt or the only *.pbtxt, beside the file, else at the top."""
    others: list[str] = []
    for part in dict.fromkeys((posixpath.dirname(path), "")):
        found = folder.list_files(part, (".pbtxt",))
        usual = [each for each in found if posixpath.basename(each) == LABEL_MAP_FILE]
        if usual or len(found) == 1:
            label_map_path = (usual or found)[0]
            where = f"{folder.root}/{label_map_path}"
            with folder.refuse(label_map_path):
                text = folder.read_text(label_map_path, _MAX_LABEL_MAP_BYTES)
            items = parse_label_map_items(text, where)
            names_by_id = dict(build_label_map(items, where).names_by_id)
            # A code that is repeated, or is the name of another class, is not used.
            num_items = Counter(item.name for item in items)
            codes = {item.name.strip(): item.class_id for item in items if item.name and num_items[item.name] == 1}
            return LabelMapFile(
                label_map_path, names_by_id, codes | {name.strip(): each for each, name in names_by_id.items()}
            )
        others += found
    return LabelMapFile("", {}, {}, tuple(others))
