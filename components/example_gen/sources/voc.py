"""Pascal VOC: ImageSets/Main/<list>.txt, Annotations/<stem>.xml, JPEGImages/<file>; or XML files beside their images.

Coordinates are taken as they stand (no shift by one), as the Object Detection API's conversion of Pascal VOC does, so
that a model trained on its TFRecords and one trained on ours see the same boxes.

A source is the name of a list, or without lists a folder such as `train` that holds XML files; "" is all XML files. An
image without an XML file is no record.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from lxml import etree

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside
from detloom.components.example_gen.sources.layout import find_split_word, name_splits
from detloom.components.example_gen.sources.name_list import IMAGE_SUFFIXES, find_image, list_stems, read_names
from detloom.components.example_gen.sources.source_record import (
    Chunk,
    Evidence,
    ReaderSettings,
    SourceItem,
    SourceObject,
    SourceRecord,
    cut_into_chunks,
    reject_box,
    reject_record,
)
from detloom.components.example_gen.sources.xml_file import parse_xml
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason

ANNOTATIONS_DIR = "Annotations"
LISTS_DIR = "ImageSets/Main"
DEFAULT_IMAGES_DIR = "JPEGImages"
OTHER_IMAGES_DIR = "images"
_CLASS_LIST_LINE = re.compile(r"^(.*\S)\s+-?[01]$")  # lists of one class ("aeroplane_train") end in -1, 0 or 1
_BOX_FIELDS = ("xmin", "ymin", "xmax", "ymax")
_PLAIN_FIELDS = ("name", "difficult", "truncated", "bndbox", *_BOX_FIELDS)
_NEEDED_PATHS = ("object/name", *(f"object/bndbox/{side}" for side in _BOX_FIELDS))
_NEEDED_FIELDS = frozenset(("name", "bndbox", *_BOX_FIELDS))
_count_needed = etree.XPath(" + ".join(f"count({path})" for path in _NEEDED_PATHS))
_FIRST_BYTES = 4096


def list_path(list_name: str) -> str:
    return f"{LISTS_DIR}/{list_name}.txt"


def detect(folder: DataFolder) -> Evidence | None:
    """Annotations/ with an XML file, or XML files in the folder or in folders named after splits, with VOC's root."""
    annotation = _first_annotation(folder, ANNOTATIONS_DIR)
    if annotation:
        lists = [name for name in list_stems(folder, LISTS_DIR) if name.isalpha() and find_split_word(name)]
        return Evidence(f"{annotation} is a VOC annotation", name_splits(lists) if lists else {})
    parts = [path for path in folder.list_folders() if find_split_word(path) and _first_annotation(folder, path)]
    annotation = _first_annotation(folder, parts[0] if parts else "")
    if annotation is None:
        return None
    return Evidence(f"{annotation} is a VOC annotation", name_splits(parts) if parts else {})


def list_chunks(folder: DataFolder, split: str, source: str, settings: ReaderSettings) -> Iterator[Chunk]:
    """Stems, of the list or of the XML files found."""
    if source and not folder.is_folder(source):
        path = list_path(source)
        names = (
            match.group(1) if (match := _CLASS_LIST_LINE.match(line)) else line
            for line in read_names(folder, path, split)
        )
        return cut_into_chunks(split, path, names, settings)
    root = source or (ANNOTATIONS_DIR if folder.is_folder(ANNOTATIONS_DIR) else "")
    paths = folder.list_files(root, (".xml",), recursive=True)
    if not paths:
        raise InputError(f"{posixpath.join(folder.root, root)}: no XML files there; give the folder of a VOC data set.")
    start = len(root) + 1 if root else 0
    return cut_into_chunks(split, root or ".", (path[start:-4] for path in paths), settings)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: ReaderSettings) -> Iterator[SourceItem]:
    """One record a stem. A missing or damaged annotation file quarantines its record.

    The image is the file that `<filename>` names; where there is no such file, the one with the stem of the annotation
    (files are often renamed after labelling).
    """
    is_list = chunk.source.startswith(LISTS_DIR + "/")
    annotations_dir = ANNOTATIONS_DIR if is_list else chunk.source.removeprefix(".")
    images_dir = settings.images_dir or _find_images_dir(folder, annotations_dir)
    for stem in chunk.names:
        path = join_inside(annotations_dir, stem + ".xml")
        if path is None:
            detail = f"the listed name {stem!r:.60} leads out of {annotations_dir}/"
            yield reject_record(chunk.split, Reason.PATH_OUTSIDE, chunk.source, stem, detail)
            continue
        try:
            root = _read_root(folder, path, settings.max_annotation_bytes)
        except SourceError as error:
            yield reject_record(chunk.split, error.reason, path, stem, error.detail)
            continue
        yield from _read_record(folder, chunk.split, stem, path, images_dir, root)


def _first_annotation(folder: DataFolder, annotations_dir: str) -> str | None:
    """The first XML file, if its root is VOC's."""
    path = next((item.path for item in folder.walk(annotations_dir, recursive=False) if _is_xml(item.path)), None)
    if path is None:
        return None
    try:
        with folder.open(path) as file:
            return path if b"<annotation>" in file.read(_FIRST_BYTES).replace(b"\0", b"") else None
    except (OSError, SourceError):
        return None


def _is_xml(path: str) -> bool:
    return path.lower().endswith(".xml")


def _find_images_dir(folder: DataFolder, annotations_dir: str) -> str:
    """VOC's own folder; without Annotations/, the images lie beside the XML files."""
    if annotations_dir != ANNOTATIONS_DIR:
        return annotations_dir
    usual = (DEFAULT_IMAGES_DIR, OTHER_IMAGES_DIR)
    return next((name for name in usual if folder.is_folder(name)), DEFAULT_IMAGES_DIR)


def _read_root(folder: DataFolder, path: str, max_bytes: int) -> Any:
    try:
        data = folder.read_bytes(path, max_bytes)
    except SourceError as error:
        if error.reason is Reason.MISSING_FILE:
            raise SourceError(error.reason, "the annotation file is missing") from None
        raise
    root = parse_xml(data)
    if root.tag != "annotation":
        raise SourceError(Reason.UNREADABLE_ANNOTATION, "the root element is not <annotation>")
    return root


def _read_record(
    folder: DataFolder, split: str, stem: str, path: str, images_dir: str, root: Any
) -> Iterator[SourceItem]:
    filename = (root.findtext("filename") or "").strip()
    image_path = _find_image(folder, images_dir, filename, stem)
    if image_path is None:
        detail = f"<filename> {filename!r:.60} leads out of {images_dir}/"
        num_boxes = len(root.findall("object"))
        yield reject_record(split, Reason.PATH_OUTSIDE, path, stem, detail, num_boxes)
        return
    objects = _read_plain_objects(root)
    if objects is None:
        read = [_read_object(element) for element in root.iterchildren("object")]
        objects = [item for item in read if isinstance(item, SourceObject)]
        for index, item in enumerate(read):
            if isinstance(item, str):
                detail = f"object {index}: {item}"
                yield reject_box(split, Reason.UNREADABLE_ANNOTATION, path, stem, detail)
    yield SourceRecord(split, stem, image_path, path, _declared_hw(root), tuple(objects))


def _find_image(folder: DataFolder, images_dir: str, filename: str, stem: str) -> str | None:
    """The image's path, whether or not there is such a file; None if it leads outside."""
    named = join_inside(images_dir, filename or stem + IMAGE_SUFFIXES[0])
    if named is None or folder.is_file(named):
        return named
    if "/" in stem:  # of Annotations/part/a.xml the image may lie in JPEGImages/part/
        beside = join_inside(posixpath.join(images_dir, posixpath.dirname(stem)), filename)
        if beside is not None and folder.is_file(beside):
            return beside
    by_stem = join_inside(images_dir, stem)
    return (find_image(folder, by_stem) if by_stem else None) or named


def _declared_hw(root: Any) -> tuple[int, int] | None:
    """Height and width of `<size>`; None where it is absent, unreadable or zero, as some tools write it."""
    try:
        height, width = int(float(root.findtext("size/height"))), int(float(root.findtext("size/width")))
    except (TypeError, ValueError, OverflowError):
        return None
    return (height, width) if height > 0 and width > 0 else None


def _read_plain_objects(root: Any) -> list[SourceObject] | None:
    """All objects at once, if each has the same plain fields in the same order; None for `_read_object` to look closer.

    Most files are like that, and this takes a quarter of the time.
    """
    found = [(element.tag, element.text) for element in root.iter("object", *_PLAIN_FIELDS)]
    tags = [tag for tag, _ in found]
    num_objects = tags.count("object")
    if num_objects == 0:
        return []
    start = tags.index("object")  # <owner> has a <name> too
    del found[:start], tags[:start]
    stride = len(tags) // num_objects
    fields = tags[:stride]
    if fields * num_objects != tags or len(set(fields)) != stride:
        return None
    # Each occurs once an object; that all of them stand where they belong is left to see.
    if not _NEEDED_FIELDS.issubset(fields) or _count_needed(root) != len(_NEEDED_PATHS) * num_objects:
        return None
    texts = [text for _, text in found]
    names = [(text or "").strip() for text in texts[fields.index("name") :: stride]]
    try:
        sides = [map(float, texts[fields.index(side) :: stride]) for side in _BOX_FIELDS]
        boxes = list(zip(*sides, strict=True))
    except (TypeError, ValueError):
        return None
    difficult, truncated = (_read_flags(texts, fields, name, num_objects) for name in ("difficult", "truncated"))
    return list(map(SourceObject, names, boxes, difficult, truncated)) if all(names) else None


def _read_flags(texts: list[str | None], fields: list[str], name: str, num_objects: int) -> list[bool]:
    if name not in fields:
        return [False] * num_objects
    return [(text or "").strip() == "1" for text in texts[fields.index(name) :: len(fields)]]


def _read_object(element: Any) -> SourceObject | str:
    """The object, or what is wrong with it."""
    name = (element.findtext("name") or "").strip()
    if not name:
        return "<name> is missing or empty"
    box = []
    for key in _BOX_FIELDS:
        text = element.findtext(f"bndbox/{key}")
        try:
            box.append(float(text))
        except (TypeError, ValueError):
            return f"class {name!r:.60}: <bndbox> needs a number {key}, got {text!r:.60}"
    return SourceObject(
        class_name=name,
        box_xyxy=(box[0], box[1], box[2], box[3]),
        difficult=(element.findtext("difficult") or "").strip() == "1",
        truncated=(element.findtext("truncated") or "").strip() == "1",
    )
