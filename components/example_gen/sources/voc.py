"""Read Pascal VOC: ImageSets/Main/<list>.txt, Annotations/<stem>.xml, JPEGImages/<file>; or XML files beside their
images.

Coordinates are used unchanged (not shifted by one), as in the Object Detection API's conversion of Pascal VOC, so that
a model trained on its TFRecords sees the same boxes as one trained on ours.

A source is the name of a list, or without lists a folder such as `train` that contains XML files; "" is all XML files.
An image without an XML file is not a record. Annotations/ may be in lower case, and may be inside the folders of the
splits.
"""

import itertools
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources.image_entries import ImageEntry, read_record
from detloom.components.example_gen.sources.layout import (
    IMAGE_SUFFIXES,
    find_image,
    find_split_word,
    list_stems,
    name_splits,
    read_names,
)
from detloom.components.example_gen.sources.name_index import find_folder, index_of, reject_ambiguous
from detloom.components.example_gen.sources.shapes import parse_hw
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceObject,
    cut_into_chunks,
)
from detloom.components.example_gen.sources.xml_file import has_root, parse_xml
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "Annotations/*.xml, or XML files beside their images, with the root <annotation>"
ANNOTATIONS_DIRS = ("Annotations", "Annotation")  # in any case; the first is VOC's own
LISTS_DIR = "ImageSets/Main"
IMAGES_DIRS = ("JPEGImages", "images", "Images", "imgs")
_XML_DIRS = ("annotations", "annotation", "xml", "xmls", "labels")  # in lower case; the images are beside them
_CLASS_LIST_LINE = re.compile(r".*\S\s+-?[01]$")  # lists of one class ("aeroplane_train") end in -1, 0 or 1
_BOX_FIELDS = ("xmin", "ymin", "xmax", "ymax")
_ROOT = "annotation"
_MAX_SAMPLES = 20  # XML files that are read to detect the format
_MAX_FILES = 100_000  # files


def list_path(list_name: str) -> str:
    return f"{LISTS_DIR}/{list_name}.txt"


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find XML files with VOC's root: in Annotations/, in folders named after splits, at the top, or anywhere below."""
    for annotations_dir in filter(None, (find_folder(folder, name) for name in ANNOTATIONS_DIRS)):
        annotation = _first_annotation(folder, annotations_dir)
        if annotation:
            lists = [name for name in list_stems(folder, LISTS_DIR) if name.isalpha() and find_split_word(name)]
            parts = lists or _find_parts(folder, annotations_dir)
            return FormatEvidence(f"{annotation} is a VOC annotation", name_splits(parts) if parts else {})
    parts = _find_parts(folder, "") or _find_parts(folder, "images")
    annotation = _first_annotation(folder, parts[0] if parts else "")
    if annotation is None or _has_lists_of_its_own(folder, annotation):
        return None
    return FormatEvidence(f"{annotation} is a VOC annotation", name_splits(parts) if parts else {})


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """List the stems of the list, or the XML files below the folder."""
    if source and not folder.is_folder(source):
        path = list_path(source)
        lines, ahead = itertools.tee(read_names(folder, path, split))  # holds the lines that only one has read
        is_class_list = all(map(_CLASS_LIST_LINE.match, ahead))  # "photo 1" is a name if the next line is "photo 2"
        names = (line.rsplit(None, 1)[0] if is_class_list else line for line in lines)
        return cut_into_chunks(split, path, names)
    root = source or _find_annotations_dir(folder)
    paths = folder.iter_files(root, (".xml",))
    start = len(root) + 1 if root else 0
    if_empty = f"{posixpath.join(folder.root, root)}: no XML files found; give the folder of a VOC data set."
    return cut_into_chunks(split, root or ".", (path[start:] for path in paths), if_empty)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield one record per stem. A missing or damaged annotation file quarantines its record.

    The image is the file that `<filename>` names; if it does not exist, the one with the annotation's stem (files are
    often renamed after labelling).
    """
    is_list = chunk.source.startswith(LISTS_DIR + "/")
    annotations_dir = (
        _find_annotations_dir(folder) or ANNOTATIONS_DIRS[0] if is_list else chunk.source.removeprefix(".")
    )
    images = _ImageFinder(folder, settings.images_dir)
    suffix = ".xml" if is_list else ""
    paths = [join_inside(annotations_dir, name + suffix) for name in chunk.names]
    folder.expect(filter(None, paths), MAX_ANNOTATION_BYTES)
    for name, path in zip(chunk.names, paths, strict=True):
        stem = name if is_list else name[:-4]
        if is_list and (path is None or not folder.is_file(path)):
            found = index_of(folder).find(name, (".xml",))
            if len(found) > 1:
                yield reject_ambiguous(chunk, stem, f"the listed name {name!r:.120}", found)
                continue
            path = found[0] if found else path
        if path is None:
            detail = f"the listed name {stem!r:.60} leads out of {annotations_dir}/"
            yield chunk.reject_record(Reason.PATH_OUTSIDE, stem, detail)
            continue
        try:
            root = _read_root(folder, path)
        except SourceError as error:
            yield chunk.reject_record(error.reason, stem, error.detail, file=path)
            continue
        image_path = images.find(path, (root.findtext("filename") or "").strip())
        objects = ((f"object {index}", element) for index, element in enumerate(root.iterchildren("object")))
        declared_hw = parse_hw(root.findtext("size/height"), root.findtext("size/width"))
        entry = ImageEntry((), objects, _read_object, declared_hw)
        yield from read_record(Chunk(chunk.split, path), stem, image_path, entry)


def _find_parts(folder: DataFolder, parent: str) -> list[str]:
    """Return the folders with names of splits that contain annotations."""
    parts = folder.list_folders(parent)
    return [path for path in parts if find_split_word(posixpath.basename(path)) and _first_annotation(folder, path)]


def _has_lists_of_its_own(folder: DataFolder, annotation: str) -> bool:
    """Return whether the file belongs to a nested VOC folder, whose splits would be mixed if all were read as one."""
    parents = annotation.split("/")[:-1]
    return any(folder.is_folder("/".join((*parents[:depth], LISTS_DIR))) for depth in range(1, len(parents)))


def _first_annotation(folder: DataFolder, annotations_dir: str) -> str | None:
    """Return a file with VOC's root among the first XML files below a folder."""
    files = itertools.islice(folder.iter_files(annotations_dir), _MAX_FILES)
    paths = (path for path in files if path.lower().endswith(".xml"))
    return next((path for path in itertools.islice(paths, _MAX_SAMPLES) if has_root(folder, path, _ROOT)), None)


def _find_annotations_dir(folder: DataFolder) -> str:
    return next(filter(None, (find_folder(folder, name) for name in ANNOTATIONS_DIRS)), "")


def _read_root(folder: DataFolder, path: str) -> Any:
    root = parse_xml(folder.read_bytes(path, MAX_ANNOTATION_BYTES))
    if root.tag != _ROOT:
        raise unreadable(f"the root element is not <{_ROOT}>")
    return root


class _ImageFinder:
    """Find the image of an annotation: in JPEGImages/ or images/ beside Annotations/, else beside the XML file."""

    def __init__(self, folder: DataFolder, images_dir: str) -> None:
        self._folder, self._images_dir = folder, images_dir
        self._images_dirs: dict[str, tuple[str, ...]] = {}  # by folder of annotations

    def find(self, path: str, filename: str) -> str:
        """Return the image's path, whether or not it exists."""
        here, name = posixpath.split(path)
        images_dirs = self._images_dirs.get(here)
        if images_dirs is None:
            images_dirs = self._images_dirs[here] = self._find_images_dirs(here)
        filename = filename.replace("\\", "/")  # written by tools on Windows
        stem = name[:-4]
        first = join_inside(images_dirs[0], filename or stem + IMAGE_SUFFIXES[0])
        if first is not None and self._folder.is_file(first):
            return first
        for images_dir in images_dirs:
            named = join_inside(images_dir, filename)
            if named is not None and self._folder.is_file(named):
                return named
            by_stem = find_image(self._folder, posixpath.join(images_dir, stem))
            if by_stem is not None:
                return by_stem
        return first or filename

    def _find_images_dirs(self, here: str) -> tuple[str, ...]:
        """Return the folders to search, the most likely first; the image of Annotations/part/a.xml may be in
        JPEGImages/part/.
        """
        parts = here.split("/") if here else []
        at = max((i for i, part in enumerate(parts) if part.lower() in _XML_DIRS), default=len(parts))
        base, tail = "/".join(parts[:at]), "/".join(parts[at + 1 :])
        usual = [self._images_dir] if self._images_dir else [posixpath.join(base, name) for name in IMAGES_DIRS]
        existing = [path for path in usual if self._folder.is_folder(path)]
        below = [path for existing_dir in existing if tail and self._folder.is_folder(path := f"{existing_dir}/{tail}")]
        if self._images_dir:
            return (*below, self._images_dir)
        if at == len(parts):
            return (here, *existing)
        return tuple(dict.fromkeys((*below, *(existing or usual[:1]), here, base)))


def _read_object(element: Any) -> list[SourceObject]:
    """Return the object. One pass over the children takes a quarter of the time of look-ups."""
    fields: dict[str, str] = {}
    sides: dict[str, str] = {}
    for child in element:
        if child.tag == "bndbox":
            for side in child:
                sides.setdefault(side.tag, side.text or "")
        else:
            fields.setdefault(child.tag, child.text or "")
    name = fields.get("name", "").strip()
    if not name:
        raise unreadable("<name> is missing or empty")
    box = []
    for key in _BOX_FIELDS:
        try:
            box.append(float(sides[key]))
        except (KeyError, ValueError):
            got = f"{sides.get(key)!r:.60}"
            raise unreadable(f"class {name!r:.60}: <bndbox> needs a number {key}, got {got}") from None
    difficult, truncated = (fields.get(key, "").strip() == "1" for key in ("difficult", "truncated"))
    return [SourceObject(name, (box[0], box[1], box[2], box[3]), difficult, truncated)]
