"""Read YOLO: data.yaml, images/..., and labels/.../<stem>.txt with one line per object, relative to the image's size.

Labels beside their images are read too: labelImg's, with classes.txt, and Darknet's as exported by CVAT (obj.names and
train.txt).

A line is a box `class cx cy w h`, a polygon `class x1 y1 x2 y2 ...` of at least three points, which becomes its
bounding box, or, if data.yaml has `kpt_shape`, a box followed by its keypoints. An image with an empty or missing label
file is an image without boxes.

A source is a key of data.yaml (train, val, test), a folder of images, or a list of image paths (.txt); "" is everything
that data.yaml names, else `images/`. The record key is the image's path without its suffix: relative to the source if
that is one folder, else to the data folder.
"""

import itertools
import posixpath
from collections.abc import Iterable, Iterator

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources.image_entries import ImageEntry, read_record
from detloom.components.example_gen.sources.json_values import show
from detloom.components.example_gen.sources.layout import (
    IMAGE_SUFFIXES,
    find_split_folders,
    find_split_word,
    first_fields,
    name_splits,
    read_label_lines,
    read_names,
)
from detloom.components.example_gen.sources.name_index import find_folder, find_image, index_of, reject_ambiguous
from detloom.components.example_gen.sources.shapes import box_at
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceClass,
    SourceItem,
    SourceObject,
    bounding_box,
    cut_into_chunks,
)
from detloom.components.example_gen.sources.yolo_data import (
    CLASSES_FILES,
    DATA_FILES,
    SPLIT_KEYS,
    DataFile,
    find_data_file,
    read_data_file,
)
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "data.yaml, or .txt files with lines of numbers in labels/ or beside their images"
_LABELS_DIRS = ("labels", "label", "annotations", "annotation", "txt")
IMAGES_DIRS = ("images", "jpegimages", "imgs", "img")  # in lower case; labels/ is beside them
DARKNET_NAMES = "obj.names"
MAX_LINE = 1 << 20  # characters: a polygon of about a hundred thousand points
_MAX_LISTED = 100_000  # files of one folder that are searched for labels beside their images


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find a data.yaml with names or splits, or a label file whose first line is a class number and at least 4 numbers.

    Labels are searched in labels/ and beside their images, at the top and in its folders.
    """
    try:
        path = find_data_file(folder)
    except InputError:
        path = ""  # reading the labels raises it again
    if path:
        try:
            data = read_data_file(folder)
            splits = {key: key for key, _ in data.locations if key in SPLIT_KEYS and _find_locations(folder, data, key)}
        except InputError:
            return FormatEvidence(f"{path} exists", {})
        if data.locations or (data.names and path in DATA_FILES):
            return FormatEvidence(f"{path} names classes", splits)
    lists = _find_darknet_lists(folder)
    if lists:
        return FormatEvidence(f"{DARKNET_NAMES} and {lists[0]} are YOLO's (Darknet)", name_splits(lists))
    found = _find_labelled(folder)
    if not found:
        return None
    places = list(found)
    if places == ["images"]:
        places = [path for path in folder.list_folders("images") if find_split_word(posixpath.basename(path))]
    if any(find_split_word(name) for place in places for name in place.split("/")):
        places += _find_unlabelled_splits(folder, places)
        splits = name_splits(places)
    else:
        splits = {}
    unnamed = "" if read_data_file(folder).names else "; no file names the classes, so that their numbers are the names"
    return FormatEvidence(f"{next(iter(found.values()))} is a YOLO label{unnamed}", splits)


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """List image paths relative to the data folder."""
    data = read_data_file(folder)
    keys = [key for key, _ in data.locations] if not source else [source]
    places = list(dict.fromkeys(place for key in keys for place in _find_locations(folder, data, key)))
    if not places:
        if source and not (folder.is_folder(source) or folder.is_file(source)):
            known = ", ".join(key for key, _ in data.locations) or "none"
            raise InputError(
                f"{folder.root}/{source}: got {source!r} for split {split!r}, allowed: a folder of images, a list of "
                f"image paths (.txt), or a key of data.yaml (existing: {known})."
            )
        places = [source] if source else _find_darknet_lists(folder)
        places = places or [settings.images_dir or find_folder(folder, "images") or ""]
    names = _list_images(folder, split, places)
    named_as = places[0] or "." if len(places) == 1 else data.path
    if_empty = f"{folder.root}/{named_as}: no images for split {split!r}; give a folder with images."
    yield from cut_into_chunks(split, named_as, names, if_empty)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield one record per image; its label file is found by replacing the last `images` in the path by `labels`, else
    beside it.
    """
    data = read_data_file(folder)
    yield from (SourceClass(name) for name in data.names)
    prefix = chunk.source + "/"
    lines = _LineReader(data, settings)
    labels = _LabelFinder(folder)
    images = [_listed_image(folder, chunk, path) for path in chunk.names]
    label_paths = list(map(labels.find, images))
    folder.expect((found[0] for found in label_paths if len(found) == 1), MAX_ANNOTATION_BYTES)
    for path, found in zip(images, label_paths, strict=True):
        key = posixpath.splitext(path[len(prefix) :] if path.startswith(prefix) else path)[0]
        if len(found) > 1:
            yield reject_ambiguous(chunk, key, "the label file of this image", found, file=path)
            continue
        label_path = found[0] if found else ""
        read = read_label_lines(folder, chunk, label_path, key) if label_path else []
        if isinstance(read, Reject):
            yield read
            continue
        entry = ImageEntry((), read, lines.read, is_relative=True)
        yield from read_record(Chunk(chunk.split, label_path), key, path, entry)


def _listed_image(folder: DataFolder, chunk: Chunk, path: str) -> str:
    """Return the path of the image that a list names; as written if it is missing or ambiguous."""
    found = find_image(folder, path, (chunk.split,))
    return found if isinstance(found, str) else path


class _LineReader:
    """A reader of one label line."""

    def __init__(self, data: DataFile, settings: IngestSettings) -> None:
        self._names, self._where = data.names, data.path
        self._pose_size = 5 + data.num_keypoints * data.keypoint_size if data.num_keypoints else 0
        self._keypoint_size = data.keypoint_size
        self._with_keypoints = settings.keypoints

    def read(self, line: str) -> list[SourceObject]:
        """Return the object; raise a SourceError if the line is invalid."""
        if len(line) > MAX_LINE:
            raise unreadable(f"the line is longer than the {MAX_LINE} characters allowed")
        fields = line.split()
        size = len(fields)
        is_pose = size == self._pose_size
        if size != 5 and not is_pose and (size < 7 or size % 2 == 0):
            raise unreadable(f"got {size} values, allowed: a class and 4 numbers (box) or 6, 8, ... numbers (polygon)")
        try:
            values = list(map(float, fields[1:]))
        except ValueError:
            raise unreadable(f"got {show(' '.join(fields))}, allowed: numbers") from None
        name = self._read_class(fields[0])
        if name is None:
            named = f"{self._where} names 0 to {len(self._names) - 1}"
            allowed = named if self._names else "it must be a whole number from 0"
            raise SourceError(Reason.UNKNOWN_CLASS, f"got the class {show(fields[0])}, but {allowed}")
        if size != 5 and not is_pose:
            return [SourceObject(name, bounding_box(values[0::2], values[1::2]))]
        centre_x, centre_y, width, height = values[:4]
        keypoints = self._read_keypoints(values[4:]) if is_pose and self._with_keypoints else None
        return [SourceObject(name, box_at(centre_x, centre_y, width / 2, height / 2), keypoints=keypoints)]

    def _read_class(self, text: str) -> str | None:
        """Return the name by number; some tools write "3.0"."""
        try:
            number = int(text) if text.isdecimal() else int(value) if (value := float(text)).is_integer() else -1
        except (ValueError, OverflowError):
            return None
        if number < 0:
            return None
        if not self._names:
            return str(number)
        return self._names[number] if number < len(self._names) else None

    def _read_keypoints(self, values: list[float]) -> tuple[tuple[float, float, int], ...]:
        """Read the visibility as written; without one, a point at or before the corner 0, 0 was not labelled."""
        size = self._keypoint_size
        points = []
        for at in range(0, len(values), size):
            x, y = values[at], values[at + 1]
            visibility = values[at + 2] if size == 3 else 2.0 * (x >= 0 and y >= 0 and (x > 0 or y > 0))
            points.append((x, y, int(visibility) if visibility in (0.0, 1.0, 2.0) else 0))
        return tuple(points)


class _LabelFinder:
    """Find the label file of an image: in the labels/ that belongs to its folder, if that exists, else beside it."""

    def __init__(self, folder: DataFolder) -> None:
        self._folder = folder
        self._labels_dirs: dict[str, tuple[str, ...]] = {}  # by folder of images

    def find(self, image_path: str) -> list[str]:
        """Return the path of the label file; several if it is ambiguous, none if there is none."""
        images_dir, name = posixpath.split(image_path)
        labels_dirs = self._labels_dirs.get(images_dir)
        if labels_dirs is None:
            labels_dirs = self._labels_dirs[images_dir] = self._find_labels_dirs(images_dir)
        stem = posixpath.splitext(name)[0]
        paths = [posixpath.join(labels_dir, stem + ".txt") for labels_dir in labels_dirs]
        tried = (*paths, *(path[:-4] + ".TXT" for path in paths))
        beside = next(filter(self._folder.is_file, tried), None)
        if beside:
            return [beside]
        elsewhere = index_of(self._folder).find_label(image_path, ".txt")
        return [path for path in elsewhere if is_label(self._folder, path)]

    def _find_labels_dirs(self, images_dir: str) -> tuple[str, ...]:
        parts = images_dir.split("/")
        at = max((i for i, part in enumerate(parts) if part.lower() in IMAGES_DIRS), default=None)
        if at is not None:
            labels_dir = "/".join((*parts[:at], "labels"))
            exists = self._folder.is_folder(labels_dir)
            return ("/".join((labels_dir, *parts[at + 1 :])) if exists else images_dir,)
        labels_dir = posixpath.join(images_dir, "labels")
        return (images_dir, labels_dir) if self._folder.is_folder(labels_dir) else (images_dir,)


def _list_images(folder: DataFolder, split: str, places: list[str]) -> Iterator[str]:
    for place in places:
        if not place.endswith(".txt"):
            yield from folder.iter_files(place, IMAGE_SUFFIXES)
            continue
        base = posixpath.dirname(place)
        has_data = folder.is_folder("data")
        for line in read_names(folder, place, split):
            if not has_data:
                line = line.removeprefix("data/")  # Darknet's own folder, which CVAT's export assumes
            beside = join_inside(base, line) if line.startswith("./") else None
            below = line.removeprefix(folder.root.rstrip("/") + "/")  # an absolute path becomes relative
            yield beside or join_inside("", below) or line


def _find_locations(folder: DataFolder, data: DataFile, key: str) -> list[str]:
    """Return the folders and lists that a split key names, relative to the data folder; an empty list without the key.

    They are searched below `path`, beside data.yaml, and without a leading `../`, which Roboflow writes for folders
    beside data.yaml. Roboflow also names a `test` that it did not write. Nothing outside the data folder is read.
    """
    places = []
    for location in dict(data.locations).get(key, ()):
        location = plain = location.replace("\\", "/")
        while plain.startswith(("../", "./")):
            plain = plain.split("/", 1)[1]
        here = posixpath.dirname(data.path)
        bases = (join_inside(here, data.base) if data.base else None, here)
        tried = [join_inside(base, name) for base in bases if base is not None for name in (location, plain)]
        parts = location.split("/") if posixpath.isabs(location) or ":" in location.split("/", 1)[0] else []
        ends = ["/".join(parts[start:]) for start in range(1, len(parts))]  # of a path of this or another machine
        found = (path if folder.is_file(path) else find_folder(folder, path) for path in (*tried, *ends) if path)
        place = next(filter(None, found), "." if plain in ("", ".") else None)
        if place is None and key == "test":
            continue
        if place is None:
            raise InputError(
                f"{folder.root}/{data.path}: {key}: got {show(location)} (path: {show(data.base)}), allowed: a folder "
                "or a list inside the data folder."
            )
        places.append(place.removeprefix("."))
    return places


def _find_darknet_lists(folder: DataFolder) -> list[str]:
    """Return the lists of images at the top with names of splits, beside obj.names, as CVAT exports them."""
    if not folder.is_file(DARKNET_NAMES) or find_data_file(folder):
        return []
    return [
        path
        for path in folder.iter_files(recursive=False)
        if path.endswith(".txt") and find_split_word(path) and folder.has_content(path)
    ]


def _find_labelled(folder: DataFolder) -> dict[str, str]:
    """Return the folders of images with YOLO labels, each with one of its labels; only "images" if labels/ exists."""
    labels_dirs = [path for path in folder.list_folders() if path.lower() in _LABELS_DIRS]
    label = next(filter(None, (_first_label(folder, _list_texts(folder, path)) for path in labels_dirs)), None)
    if label:
        return {"images": label}
    found = {}
    for part in ("", *folder.list_folders(), *folder.list_folders("images")):
        label = _first_label(folder, _list_texts(folder, posixpath.join(part, "labels"))) if part else None
        images_dir = posixpath.join(part, "images")
        place = images_dir if label and folder.is_folder(images_dir) else part
        label = label or _first_label(folder, _list_texts_beside(folder, part))
        if label:
            found[place] = label
    return found


def _find_unlabelled_splits(folder: DataFolder, places: list[str]) -> list[str]:
    """Return further top-level folders with names of splits, which have images but no labels with content."""
    tops = {place.split("/", 1)[0] for place in places}
    parts = [part for part in find_split_folders(folder, IMAGE_SUFFIXES).values() if part not in tops]
    return [path if folder.is_folder(path := f"{part}/images") else part for part in parts]


def _list_texts(folder: DataFolder, labels_dir: str) -> Iterator[str]:
    for path in folder.iter_files(labels_dir, (".txt",)):
        if posixpath.basename(path) not in CLASSES_FILES and folder.has_content(path):
            yield path


def _list_texts_beside(folder: DataFolder, images_dir: str) -> Iterator[str]:
    """Return the text files with the name of an image beside them."""
    stems, texts = set(), []
    for path in itertools.islice(folder.iter_files(images_dir, recursive=False), _MAX_LISTED):
        stem, suffix = posixpath.splitext(path)
        if suffix.lower() in IMAGE_SUFFIXES:
            stems.add(stem)
        elif suffix.lower() == ".txt":
            texts.append(path)
    beside = (path for path in texts if posixpath.splitext(path)[0] in stems)
    return filter(folder.has_content, beside)


def is_label(folder: DataFolder, path: str) -> bool:
    return _first_label(folder, [path]) is not None


def _first_label(folder: DataFolder, paths: Iterable[str]) -> str | None:
    """Return the first YOLO label among the first files with content: only numbers, the first one whole."""
    for path, fields in first_fields(folder, paths):
        try:
            numbers = [float(field) for field in fields]
        except ValueError:
            continue
        if len(numbers) >= 5 and numbers[0] >= 0 and numbers[0].is_integer():
            return path
    return None
