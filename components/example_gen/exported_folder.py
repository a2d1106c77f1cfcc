"""Read an examples folder, choose safe file names, write the output atomically (both exporters)."""

import itertools
import math
import os
import posixpath
import re
import shutil
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from detloom.components.example_gen.build_example import OWN_KEYS
from detloom.components.examples_folder import ExamplesFolder
from detloom.components.image_header import remove_rotation
from detloom.components.record_files import count_missing, read_records
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.records import ExampleFeatures

EXIF_NEUTRALISED = "exif_neutralised"
UNSOUND_BOX = "box that is inverted, empty or outside the image (left out)"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_USUAL_ROOTS = ("images", "JPEGImages")  # removed from file names, because every export has its own folder of images
_SUFFIX_BY_FORMAT = {"jpeg": ".jpg", "png": ".png"}
_SUFFIXES_BY_FORMAT = {"jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"), "png": (".png",)}
_UNSAFE_CHARS = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')  # including characters that Windows and archives reject
_MAX_PART_BYTES = 200  # of one folder or file name; file systems allow 255, and a number and suffix may be appended
_MAX_PARTS = 16


@dataclass(frozen=True)
class ExportedObject:
    """One object of an example; the box is float32, as stored."""

    class_id: int
    box_yxyx_rel: tuple[float, float, float, float]
    area_px: float | None
    is_crowd: bool
    is_group: bool
    is_difficult: bool
    is_truncated: bool

    @property
    def is_sound(self) -> bool:
        """Return whether the box is inside the image and has an area."""
        ymin, xmin, ymax, xmax = self.box_yxyx_rel
        return 0 <= ymin < ymax <= 1 and 0 <= xmin < xmax <= 1


@dataclass(frozen=True)
class ExportedExample:
    """One example, and the features that only one of the exporters needs.

    Attributes:
        is_neutralised: `image` had Exif data with a rotation, which were removed.
    """

    image: bytes
    image_format: str
    image_hw: tuple[int, int]
    filename: str
    source_id: str
    objects: tuple[ExportedObject, ...]
    features: ExampleFeatures
    is_neutralised: bool = False

    @property
    def num_other_features(self) -> int:
        """Count the non-empty features unknown to this project and the formats, such as `image/context/...`."""
        return sum(key not in OWN_KEYS and self.features.raw(key).ByteSize() > 2 for key in self.features)


@dataclass
class ExportCounts:
    """Counts of an export.

    Attributes:
        lost: data that the format cannot store.
        changed: data written differently than stored.
        empty_splits: splits left out because they have no examples.
    """

    num_images: Counter[str] = field(default_factory=Counter)
    num_objects: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    empty_splits: tuple[str, ...] = ()

    def add_image(self, split: str, example: ExportedExample) -> int:
        """Count an image and what no format keeps of it; return its number in the split, from 1."""
        self.num_images[split] += 1
        if example.is_neutralised:
            self.changed[EXIF_NEUTRALISED] += 1
        if example.num_other_features:
            self.lost["other features"] += example.num_other_features
        return self.num_images[split]


def find_splits(examples: Path) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return the non-empty shards by split, and the splits without examples.

    Raises:
        InputError: if `examples` is not a complete examples folder, a shard is missing, or the start of a shard is
            damaged.
    """
    folder = ExamplesFolder(examples)
    splits = {split: [Path(path) for path in folder.list_shards(split)] for split in folder.check_splits()}
    for split in splits:
        if not _SPLIT_NAME.fullmatch(split):
            raise InputError(f"{examples}: split {split!r}, allowed: letters, digits, '-', '_' and '.'.")
    for split, shards in splits.items():
        num_missing, num_expected = count_missing(map(str, shards))
        if num_missing:
            raise InputError(f"{folder.split_folder(split)}: {num_missing} of {num_expected} shards are missing.")
    filled = {split: [shard for shard in shards if not _is_empty(shard)] for split, shards in splits.items()}
    empty = tuple(split for split, shards in filled.items() if not shards)
    if len(empty) == len(filled):
        raise InputError(f"{examples}: no examples in any split ({', '.join(empty)}).")
    return {split: shards for split, shards in filled.items() if shards}, empty


def _is_empty(shard: Path) -> bool:
    return next(read_examples(shard), None) is None


def read_examples(shard: Path) -> Iterator[ExportedExample]:
    """Yield the examples of one shard.

    Raises:
        InputError: naming the shard and the number of the example that cannot be exported.
    """
    number = 0
    try:
        for _, record in read_records(str(shard)):
            yield _parse(record, f"{shard}, example {number}")
            number += 1
    except tf.errors.OpError as error:
        raise InputError(f"{shard}: damaged after {number} examples ({error.message}).") from None


def safe_file_name(example: ExportedExample, fallback: str) -> str:
    """Return a relative path with forward slashes that is valid on every file system and stays in its folder.

    The name of the source image is kept as far as possible; a suffix that contradicts the content is replaced.
    """
    parts = [_safe_part(part) for part in example.filename.replace("\\", "/").split("/")]
    parts = [part for part in parts if part]
    if len(parts) > 1 and parts[0] in _USUAL_ROOTS:
        parts = parts[1:]
    name = "/".join(parts[-_MAX_PARTS:]) or _safe_part(example.source_id.replace("/", "_")) or fallback
    stem, suffix = posixpath.splitext(name)
    if suffix.lower() not in _SUFFIXES_BY_FORMAT.get(example.image_format, (suffix.lower(),)):
        # "scan.v2" is a name without a suffix, "scan.png" has the wrong suffix
        known = suffix.lower() in (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
        name = (stem if known else name) + _SUFFIX_BY_FORMAT[example.image_format]
    return name


def write_image(root: Path, name: str, image: bytes, is_free: Callable[[str], bool] = lambda _: True) -> str:
    """Write `root/name`, or a numbered name if another image has that name; return the name.

    The file system decides whether a name is taken, so names that differ only in case are distinct only where it says
    so.
    """
    try:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):  # an image has the name of this one's folder
        name = name.replace("/", "_")
    stem, suffix = posixpath.splitext(name)
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{stem}-{number}{suffix}"
        path = root / candidate
        if not is_free(candidate):
            continue
        try:
            with path.open("xb") as file:
                file.write(image)
            return candidate
        except FileExistsError:
            if path.is_file() and path.stat().st_size == len(image) and path.read_bytes() == image:
                return candidate
    raise AssertionError("unreachable")


@contextmanager
def atomic_folder(output: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `output` on success, and removed on failure.

    Raises:
        InputError: if `output` is not empty or cannot be created.
    """
    target = Path(os.path.realpath(output))  # a link to an empty folder is kept, and its target is filled
    temporary = target.parent / f".{target.name}.incomplete-{uuid.uuid4().hex[:8]}"
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(f"{output}: already exists; give a folder that does not exist or is empty.")
        if target == Path.cwd():
            raise InputError(f"{output}: is the working directory, which would be replaced; give a folder in it.")
        temporary.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{output}: the folder cannot be created ({error}).") from None
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error}).") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _parse(record: bytes, where: str) -> ExportedExample:
    try:
        features = ExampleFeatures(record)
    except ValueError:
        raise InputError(f"{where}: not a tf.Example.") from None
    images = features.texts(keys.IMAGE_ENCODED)
    sizes = [int(size) for key in (keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH) for size in features.ints(key)[:1]]
    image_format = _text(features, keys.IMAGE_FORMAT).lower().replace("jpg", "jpeg")
    if len(images) != 1 or len(sizes) != 2 or min(sizes) < 1 or image_format not in _SUFFIX_BY_FORMAT:
        raise InputError(
            f"{where}: needs one image, its height and width, and the format 'jpeg' or 'png'; got {len(images)} "
            f"images, sizes {sizes}, format {image_format!r:.20}."
        )
    image, is_neutralised = remove_rotation(images[0])
    return ExportedExample(
        image=image,
        image_format=image_format,
        image_hw=(sizes[0], sizes[1]),
        filename=_text(features, keys.IMAGE_FILENAME),
        source_id=_text(features, keys.IMAGE_SOURCE_ID),
        objects=_parse_objects(features, where),
        features=features,
        is_neutralised=is_neutralised,
    )


def _parse_objects(features: ExampleFeatures, where: str) -> tuple[ExportedObject, ...]:
    class_ids = features.ints(keys.CLASS_ID).tolist()
    columns = [features.floats(key).tolist() for key in keys.BOX_KEYS_YXYX]
    if any(len(column) != len(class_ids) for column in columns):
        raise InputError(f"{where}: {len(class_ids)} class ids, but {[len(column) for column in columns]} coordinates.")
    if not all(math.isfinite(value) for column in columns for value in column):
        raise InputError(f"{where}: a box coordinate is not finite.")

    def flags(key: str) -> list[bool]:
        values = features.ints(key)
        return [bool(value) for value in values] if len(values) == len(class_ids) else [False] * len(class_ids)

    areas: list[float | None] = [*features.floats(keys.AREA).tolist()]
    if len(areas) != len(class_ids):
        areas = [None] * len(class_ids)
    return tuple(
        ExportedObject(class_id, (box[0], box[1], box[2], box[3]), area, crowd, group, difficult, truncated)
        for class_id, box, area, crowd, group, difficult, truncated in zip(
            class_ids,
            zip(*columns, strict=True),
            areas,
            flags(keys.IS_CROWD),
            flags(keys.GROUP_OF),
            flags(keys.DIFFICULT),
            flags(keys.TRUNCATED),
            strict=True,
        )
    )


def _text(features: ExampleFeatures, key: str) -> str:
    values = features.texts(key)
    return values[0].decode("utf-8", "replace") if values else ""


def _safe_part(part: str) -> str:
    """Return one folder or file name without characters that file systems treat specially; "" for "", "." and ".."."""
    part = _UNSAFE_CHARS.sub("_", unicodedata.normalize("NFC", part)).strip(" ").lstrip(".").rstrip(". ")
    raw = part.encode("utf-8", "replace")
    if len(raw) > _MAX_PART_BYTES:  # keep the end, which has the suffix and usually the number
        part = raw[-_MAX_PART_BYTES:].decode("utf-8", "ignore")
    return part
