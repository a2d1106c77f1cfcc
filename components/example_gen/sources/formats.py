"""List the label formats, detect a folder's format, and call the reader of a format.

To add a format: write its module (a `LabelFormat`), add a line to `FORMATS`, and its name to `IngestSettings.format`.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import (
    coco,
    createml,
    csv_boxes,
    cvat,
    image_folder,
    kitti,
    label_studio,
    labelme,
    open_images,
    supervisely,
    tfrecord,
    via,
    voc,
    yolo,
)
from detloom.components.example_gen.sources.layout import find_image
from detloom.components.example_gen.sources.name_index import with_image
from detloom.components.example_gen.sources.source_record import Chunk, FormatEvidence, SourceItem, SourceRecord
from detloom.components.example_gen.sources.unknown_files import describe_unknown
from detloom.schemas.errors import InputError, list_first
from detloom.schemas.run_file.data import IngestSettings

AUTO = "auto"  # format that requests detection
CSV = "csv"  # often made from VOC or into TFRecords, so these take precedence
UNLABELLED = "images"  # a labelled folder also matches this format, so labelled formats take precedence
# Suffixes of files that may contain labels in an unknown form; .txt is checked separately.
_LABEL_SUFFIXES = (
    ".xml",
    ".json",
    ".jsonl",
    ".ndjson",
    ".manifest",
    ".csv",
    ".tsv",
    ".parquet",
    ".mat",
    ".tfrecord",
    ".record",
)
_LABEL_WORDS = ("label", "annot")
_MAX_LEVELS_ABOVE = 3  # folders between the given one and a data set
_MAX_FOLDERS = 50  # of a level that are searched


class LabelFormat(Protocol):
    """A format of labelled data sets: the module or object that detects and reads it."""

    @property
    def DESCRIPTION(self) -> str:
        """Return the files that detection looks for."""

    def detect(self, folder: DataFolder) -> FormatEvidence | None:
        """Return the evidence that the folder has this format; None if it does not look like it."""

    def list_chunks(self, folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
        """Return the parts of a source, each of which one worker reads."""

    def read_chunk(self, folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
        """Stream the records, rejects and classes of one chunk.

        Raises:
            InputError: if a file that the whole split depends on is damaged.
        """


FORMATS: dict[str, LabelFormat] = {
    "coco": coco,
    "voc": voc,
    "yolo": yolo,
    "open_images": open_images,
    "kitti": kitti,
    "labelme": labelme,
    "cvat": cvat,
    "tfrecord": tfrecord,
    CSV: csv_boxes.FORMAT,
    "via": via.FORMAT,
    "label_studio": label_studio.FORMAT,
    "createml": createml.FORMAT,
    "supervisely": supervisely,
    UNLABELLED: image_folder,
}


def list_chunks(
    data_format: str, folder: DataFolder, split: str, source: str, settings: IngestSettings
) -> Iterator[Chunk]:
    """Return the parts of a source, each of which one worker reads.

    Raises:
        InputError: if the source is missing, unreadable or empty.
    """
    _check_is_no_file(folder)
    return FORMATS[data_format].list_chunks(folder, split, source, settings)


def read_chunk(data_format: str, folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Stream the records, rejects and classes of one chunk; find images whose names are written in another way."""
    for item in FORMATS[data_format].read_chunk(folder, chunk, settings):
        if isinstance(item, SourceRecord) and item.example_at is None:
            yield with_image(folder, item, settings.images_dir)
        else:
            yield item


def detect_format(folder: DataFolder) -> tuple[str, FormatEvidence]:
    """Return the format of the folder, and the evidence for it.

    Every format is checked. Labels take precedence over the images they belong to. Two labelled formats have no
    precedence, because either could be outdated. Images count as unlabelled only if nothing looks like labels.

    Raises:
        InputError: if no labelled format or more than one is found, or images with labels of an unknown form.
    """
    _check_is_no_file(folder)
    detected = {name: label_format.detect(folder) for name, label_format in FORMATS.items()}
    found = {name: evidence for name, evidence in detected.items() if evidence is not None}
    labelled = [name for name in found if name != UNLABELLED]
    if CSV in labelled and len(labelled) == 2 and (other := (set(labelled) & {"voc", "tfrecord"})):
        labelled = list(other)
        unread = f"{found[labelled[0]].sentence}; not read: {found[CSV].sentence}"
        found[labelled[0]] = replace(found[labelled[0]], sentence=unread)
    if len(labelled) > 1:
        reasons = "; ".join(f"{name}: {found[name].sentence}" for name in labelled)
        raise InputError(
            f"{folder.root}: matches more than one format ({reasons}); choose one with --format or data.format."
        )
    if labelled:
        return labelled[0], found[labelled[0]]
    if not folder.is_folder(""):
        raise InputError(f"{folder.root}: the folder does not exist; give the folder with the data set.")
    _check_is_not_above(folder)
    images, label = found.get(UNLABELLED), find_label_like(folder)
    if images and not label:
        return UNLABELLED, images
    parts = [images.sentence] if images else []
    if label:
        parts.append(f"{label}, which no format can read{describe_unknown(folder, label)}")
    contains = f"contains {', and '.join(parts)}" if parts else "no format is recognised"
    looked_for = "; ".join(f"{name}: {known.DESCRIPTION}" for name, known in FORMATS.items())
    raise InputError(
        f"{folder.root}: {contains}; looked for {looked_for}. Check the folder, or choose with --format or "
        f"data.format. For images without labels, use {UNLABELLED} (--format {UNLABELLED})."
    )


def _check_is_no_file(folder: DataFolder) -> None:
    if folder.is_file(""):
        parent = posixpath.dirname(folder.root) or "."
        raise InputError(f"{folder.root}: this is a file; give the folder with the data set, such as {parent}.")


def _check_is_not_above(folder: DataFolder) -> None:
    """Raise if folders below this one are data sets."""
    paths = [""]
    for _ in range(_MAX_LEVELS_ABOVE):
        paths = [path for parent in paths for path in folder.list_folders(parent)][:_MAX_FOLDERS]
        found = [(path, name) for path in paths if (name := _find_labelled_format(f"{folder.root}/{path}"))]
        if found:
            shown = list_first((f"{path} ({name})" for path, name in found), 3)
            raise InputError(f"{folder.root}: is not a data set, but contains {shown}; give the folder of a data set.")


def _find_labelled_format(root: str) -> str:
    found = (name for name, known in FORMATS.items() if name != UNLABELLED and known.detect(DataFolder(root)))
    return next(found, "")


def find_label_like(folder: DataFolder) -> str:
    """Return a file that may contain labels: by suffix, or a .txt in a label folder or with an image's name."""
    for path in folder.iter_files():
        stem, suffix = posixpath.splitext(path)
        if suffix.lower() in _LABEL_SUFFIXES:
            return path
        if suffix.lower() == ".txt":
            parent = posixpath.dirname(path).lower()
            if any(word in parent for word in _LABEL_WORDS) or find_image(folder, stem):
                return path
    return ""
