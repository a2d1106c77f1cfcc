"""Detect a folder's format, and select the reader of a format; each reader is imported only when used."""

import posixpath
from collections.abc import Iterator
from typing import Protocol

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources.file_parts import PartFiles
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.source_record import Chunk, Evidence, ReaderSettings, SourceItem
from detloom.schemas.errors import InputError

FORMATS = ("coco", "voc", "yolo", "open_images", "kitti", "labelme", "cvat", "tfrecord", "images")
UNLABELLED = "images"  # a labelled folder also matches this format, so labelled formats take precedence

_DESCRIPTIONS = {
    "coco": "a JSON file with `images` and `annotations`, at the top, in annotations/ or in train/, valid/, test/",
    "voc": "Annotations/*.xml, or XML files beside their images, with the root <annotation>",
    "yolo": "data.yaml, or .txt files with lines of numbers in labels/ or beside their images",
    "open_images": "a CSV file with the columns ImageID, LabelName, XMin, XMax, YMin, YMax",
    "kitti": "label_2/*.txt with 15 columns and image_2/, or labels/ and images/",
    "labelme": "JSON files with `shapes` and `imagePath`",
    "cvat": "an XML file with the root <annotations>",
    "tfrecord": "*.tfrecord, *.record, *-00000-of-00001",
    "images": "image files",
}
# Suffixes of files that may contain labels in an unknown form; .txt is checked separately.
_LABEL_SUFFIXES = (".xml", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".mat", ".tfrecord", ".record")
_LABEL_WORDS = ("label", "annot")


class _Reader(Protocol):
    """The functions that each format's module provides."""

    def detect(self, folder: DataFolder) -> Evidence | None: ...

    def list_chunks(self, folder: DataFolder, split: str, source: str, settings: ReaderSettings) -> Iterator[Chunk]: ...

    def read_chunk(self, folder: DataFolder, chunk: Chunk, settings: ReaderSettings) -> Iterator[SourceItem]: ...


class _FileReader(_Reader, Protocol):
    """The functions of a format with one file for many images."""

    def split_file(self, folder: DataFolder, chunk: Chunk, settings: ReaderSettings, parts: PartFiles) -> None: ...

    def read_part(
        self, folder: DataFolder, chunk: Chunk, settings: ReaderSettings, parts: PartFiles
    ) -> Iterator[SourceItem]: ...


def list_chunks(
    data_format: str, folder: DataFolder, split: str, source: str, settings: ReaderSettings
) -> Iterator[Chunk]:
    """Return the parts of a source, each of which one worker reads.

    Raises:
        InputError: if the source is missing, unreadable or empty.
    """
    reader = _build_reader(data_format)
    _check_is_no_file(folder)
    return reader.list_chunks(folder, split, source, settings)


def split_file(data_format: str, folder: DataFolder, chunk: Chunk, settings: ReaderSettings, parts: PartFiles) -> None:
    """Divide the file of a chunk with several parts, before these are read. A file that cannot be used is told to them.

    The file is streamed once, in bounded memory.
    """
    try:
        _build_file_reader(data_format).split_file(folder, chunk, settings, parts)
    except InputError as error:
        parts.write_error(str(error))


def read_chunk(
    data_format: str, folder: DataFolder, chunk: Chunk, settings: ReaderSettings, parts: PartFiles | None = None
) -> Iterator[SourceItem]:
    """Stream the records, rejects and classes of one chunk.

    Args:
        parts: what `split_file` wrote; needed for a chunk that is one of several parts.

    Raises:
        InputError: if a file that the whole split depends on is damaged.
    """
    if chunk.num_parts > 1:
        assert parts is not None
        return _build_file_reader(data_format).read_part(folder, chunk, settings, parts)
    return _build_reader(data_format).read_chunk(folder, chunk, settings)


def find_evidence(data_format: str, folder: DataFolder) -> Evidence | None:
    """Return the folder's evidence for one format; None if it does not look like it."""
    return _build_reader(data_format).detect(folder)


def detect_format(folder: DataFolder) -> tuple[str, Evidence]:
    """Return the format of the folder, and the evidence for it.

    Every format is checked. Labels take precedence over the images they belong to. Two labelled formats have no
    precedence, because either could be outdated. Images count as unlabelled only if nothing looks like labels.

    Raises:
        InputError: if no labelled format or more than one is found, or images with labels of an unknown form.
    """
    _check_is_no_file(folder)
    found: dict[str, Evidence] = {}
    for name in FORMATS:
        evidence = _build_reader(name).detect(folder)
        if evidence is not None:
            found[name] = evidence
    labelled = [name for name in found if name != UNLABELLED] or list(found)
    if labelled == [UNLABELLED]:
        _check_has_no_labels(folder, found[UNLABELLED])
    if len(labelled) == 1:
        return labelled[0], found[labelled[0]]
    if labelled:
        reasons = "; ".join(f"{name}: {found[name].sentence}" for name in labelled)
        raise InputError(
            f"{folder.root}: matches more than one format ({reasons}); choose one with --format or data.format."
        )
    if not folder.is_folder(""):
        raise InputError(f"{folder.root}: the folder does not exist; give the folder with the data set.")
    looked_for = "; ".join(f"{name}: {what}" for name, what in _DESCRIPTIONS.items())
    raise InputError(
        f"{folder.root}: no format is recognised; looked for {looked_for}. Check the folder, or choose by --format or "
        "data.format."
    )


def _check_is_no_file(folder: DataFolder) -> None:
    if folder.is_file(""):
        parent = posixpath.dirname(folder.root) or "."
        raise InputError(f"{folder.root}: this is a file; give the folder with the data set, such as {parent}.")


def _check_has_no_labels(folder: DataFolder, images: Evidence) -> None:
    label = _find_label_like(folder)
    if label:
        looked_for = "; ".join(f"{name}: {what}" for name, what in _DESCRIPTIONS.items() if name != UNLABELLED)
        raise InputError(
            f"{folder.root}: contains {images.sentence}, and {label}, which may contain labels of an unknown format; "
            f"looked for {looked_for}. Choose with --format or data.format; for images without labels, use "
            f"{UNLABELLED} (--format {UNLABELLED})."
        )


def _find_label_like(folder: DataFolder) -> str:
    """Return a file that may contain labels: by suffix, or a .txt in a label folder or with an image's name."""
    image_stems: set[str] = set()
    text_stems: dict[str, str] = {}
    current = ""
    for path in folder.iter_files():
        parent, _, name = path.rpartition("/")
        stem, suffix = posixpath.splitext(name)
        suffix = suffix.lower()
        if suffix in _LABEL_SUFFIXES:
            return path
        if parent != current:
            current, image_stems, text_stems = parent, set(), {}
        if suffix == ".txt":
            if any(word in parent.lower() for word in _LABEL_WORDS) or stem in image_stems:
                return path
            text_stems[stem] = path
        elif suffix in IMAGE_SUFFIXES:
            if stem in text_stems:
                return text_stems[stem]
            image_stems.add(stem)
    return ""


def _build_file_reader(data_format: str) -> _FileReader:
    match data_format:
        case "coco":
            from detloom.components.example_gen.sources import coco

            return coco
        case "open_images":
            from detloom.components.example_gen.sources import open_images

            return open_images
        case "cvat":
            from detloom.components.example_gen.sources import cvat

            return cvat
    raise AssertionError(f"{data_format}: a file of this format has one part")


def _build_reader(data_format: str) -> _Reader:
    # One `case` and one import per format, so that type checkers compare every module with the protocol.
    match data_format:
        case "coco":
            from detloom.components.example_gen.sources import coco

            return coco
        case "voc":
            from detloom.components.example_gen.sources import voc

            return voc
        case "yolo":
            from detloom.components.example_gen.sources import yolo

            return yolo
        case "open_images":
            from detloom.components.example_gen.sources import open_images

            return open_images
        case "kitti":
            from detloom.components.example_gen.sources import kitti

            return kitti
        case "labelme":
            from detloom.components.example_gen.sources import labelme

            return labelme
        case "cvat":
            from detloom.components.example_gen.sources import cvat

            return cvat
        case "tfrecord":
            from detloom.components.example_gen.sources import tfrecord

            return tfrecord
        case "images":
            from detloom.components.example_gen.sources import image_folder

            return image_folder
    raise InputError(f"data format: got {data_format!r}, allowed: auto, {', '.join(FORMATS)}.")
