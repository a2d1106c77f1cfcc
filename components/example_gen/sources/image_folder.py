"""Read a folder of images without labels: input for a model, or background images of a data set."""

import posixpath
from collections.abc import Iterator

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.source_record import (
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceRecord,
    cut_into_chunks,
)
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "image files"
_MAX_FILES = 10_000  # files


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find image files at any depth; top-level folders with names of splits are the splits."""
    for number, path in enumerate(folder.iter_files()):
        if path.lower().endswith(IMAGE_SUFFIXES):
            return FormatEvidence(f"images such as {path}", layout.find_split_folders(folder, IMAGE_SUFFIXES))
        if number >= _MAX_FILES:
            break
    return None


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """List the images in the folder `source` and below; "" is the folder of images, or the data folder."""
    source = source or settings.images_dir
    prefix = f"{source}/" if source else ""
    names = (path.removeprefix(prefix) for path in folder.iter_files(source, IMAGE_SUFFIXES))
    if_empty = f"{folder.root}/{source}: no image found, allowed: a folder with files {', '.join(IMAGE_SUFFIXES)}."
    return cut_into_chunks(split, source, names, if_empty)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield the records; the record key is the path of the image in the source."""
    for name in chunk.names:
        path = posixpath.join(chunk.source, name)
        yield SourceRecord(chunk.split, name, path, path, None, ())
